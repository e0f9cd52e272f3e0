from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opsin.core.errors import ConfigError
from opsin.llm.options import NAMES, to_settings
from opsin.settings import EngineKind


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No ``opsin.toml`` of the tester's."""
    monkeypatch.chdir(tmp_path)


def test_names_are_vllms() -> None:
    settings = to_settings(
        {
            "model": "some/model", "max_model_len": 1024, "dtype": "float32", "device": "cpu", "max_num_seqs": 2,
            "gpu_memory_utilization": 0.9, "limit_mm_per_prompt": {"image": 4}, "tensor_parallel_size": 1,
            "trust_remote_code": False, "revision": "abc", "hf_token": "hf_mine", "attn_implementation": "eager",
        }
    )  # fmt: skip
    local = settings.local
    assert (settings.model, settings.max_model_len, settings.revision) == ("some/model", 1024, "abc")
    assert (local.dtype, local.device, local.max_num_seqs) == ("float32", "cpu", 2)
    assert (local.gpu_memory_utilization, local.attn_implementation) == (0.9, "eager")
    assert settings.media.limit_mm_per_prompt.image == 4
    assert "hf_mine" not in repr(settings)


def test_pictures_by_url_are_allowed_as_in_vllm() -> None:
    media = to_settings({"allowed_media_domains": ["images.example.com"], "allowed_local_media_path": "/tmp"}).media
    assert media.fetch.allowed_media_domains == ("images.example.com",)
    assert media.allowed_local_media_path == Path("/tmp")


def test_every_name_is_a_setting() -> None:
    assert {"model", "chat_template", "quantization", "upstream", "engine", "media"} <= NAMES.keys()


def test_sections_hold_what_has_no_flag() -> None:
    assert to_settings({"media": {"render_workers": 1}, "local": {"feature_cache_bytes": 0}}).media.render_workers == 1


def test_a_template_may_be_a_path(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages }}")
    assert to_settings({"chat_template": template}).chat_template == str(template)


def test_an_upstream_is_an_engine() -> None:
    settings = to_settings({"upstream": "http://127.0.0.1:1"})
    assert settings.engine is EngineKind.UPSTREAM
    assert settings.upstream is not None
    assert settings.upstream.url.startswith("http://127.0.0.1:1")


def test_unknown_names_are_told_with_what_they_may_mean() -> None:
    with pytest.raises(TypeError, match=r"LLM has no option 'max_model_length' \(did you mean max_model_len"):
        to_settings({"max_model_length": 5})
    with pytest.raises(TypeError, match=r"'dtipe' \(did you mean dtype\?\), 'zzz'$"):
        to_settings({"zzz": 5, "dtipe": "auto"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_model_len": 0, "dtype": "int3"}, ["max_model_len", "dtype"]),
        ({"tensor_parallel_size": 4, "max_num_seqs": 0}, ["runs on one device", "max_num_seqs"]),
        ({"model": "/no/such/folder"}, ["/no/such/folder"]),
    ],
)
def test_all_that_is_wrong_is_told_at_once(options: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        to_settings(options)
    assert [text for text in said if text not in caught.value.message] == []


def test_what_has_no_effect_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    to_settings({"enable_prefix_caching": True})
    assert "local.prefix_cache_bytes" in caplog.text


def test_where_a_server_would_listen_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSIN_GATEWAY__HOST", "0.0.0.0")
    monkeypatch.setenv("OPSIN_MAX_MODEL_LEN", "99")
    assert to_settings({}).max_model_len == 99


def test_pixels_have_room_unless_the_operator_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    media = to_settings({}).media
    assert media.max_image_bytes == 5 * media.max_image_pixels
    monkeypatch.setenv("OPSIN_MEDIA__MAX_IMAGE_BYTES", "1000")
    assert to_settings({}).media.max_image_bytes == 1000
