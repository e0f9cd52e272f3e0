"""Settings, and which model is asked for."""

from __future__ import annotations

import pytest
from pydantic import SecretStr, ValidationError

from opsin.core.errors import ConfigError
from opsin.engine.upstream.config import UpstreamConfig
from opsin.engine.upstream.probe import ServedModel, choose_model
from opsin.engine.upstream.wire import ModelEntry


@pytest.mark.parametrize("url", ["http://h:8000", "http://h:8000/", "http://h:8000/v1", "http://h:8000/v1/"])
def test_every_form_of_the_base(url: str) -> None:
    assert UpstreamConfig(url=url).url == "http://h:8000/v1"


@pytest.mark.parametrize("url", ["grpc://h:8001", "grpcs://h:8001/"])
def test_a_triton_has_no_routes(url: str) -> None:
    assert UpstreamConfig(url=url).url == url.rstrip("/")


@pytest.mark.parametrize("url", ["grpc://h", "grpc://h:1/v1", "grpc://u:p@h:1", "grpc://:1", "grpc://h:99999"])
def test_no_triton(url: str) -> None:
    with pytest.raises(ValidationError):
        UpstreamConfig(url=url)


@pytest.mark.parametrize("url", ["h:8000", "ftp://h", "http://", "http://u:p@h", "http://h?x=1", "http://h:99999", ""])
def test_no_base(url: str) -> None:
    with pytest.raises(ValidationError):
        UpstreamConfig(url=url)


def test_the_key_is_not_shown() -> None:
    assert "hunter2" not in repr(UpstreamConfig(url="http://h", api_key=SecretStr("hunter2")))


def test_the_first_model_unless_one_is_wanted() -> None:
    models = [ModelEntry("a", 4096), ModelEntry("b")]
    assert choose_model(models, None) == ServedModel("a", 4096)
    assert choose_model(models, "b") == ServedModel("b", None)
    assert choose_model([ModelEntry(id="d", max_model_len=-1)], None) == ServedModel("d", None)
    with pytest.raises(ConfigError, match="no model named c; it serves 2: a, b"):
        choose_model(models, "c")
    with pytest.raises(ConfigError, match="serves no model"):
        choose_model([], None)


def test_several_servers_are_each_one_alone() -> None:
    config = UpstreamConfig.model_validate({"url": ["http://a", "http://b/v1"], "replicas": ["http://c"], "model": "m"})
    assert tuple(config.servers) == ("http://a/v1", "http://b/v1", "http://c/v1")
    assert all(one == UpstreamConfig(url=url, model="m") for url, one in config.servers.items())


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"url": ["http://a", "http://a/"]}, "name each server once"),
        ({"url": ["http://a", "http://b"], "draining": ["http://c"]}, "not http://c/v1"),
        ({"url": []}, "valid string"),
    ],
)
def test_servers_that_cannot_be(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        UpstreamConfig.model_validate(fields)
