"""``[[models]]``: each table is a model as if it were alone, and all that is wrong in them is told at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsin import startup
from opsin.core.errors import ConfigError
from opsin.settings import EngineKind, Settings, configuration
from opsin.sources import Given

SEVERAL = """
[media.limit_mm_per_prompt]
image = 3
[gateway]
max_image_tokens = 500
[[models]]
name = "a"
aliases = ["b"]
upstream = { url = ["http://h:1", "http://h:2"], draining = ["http://h:2"] }
max_model_len = "8k"
routing = { load_bound = 2.0 }
[[models]]
name = "c"
engine = "fake"
limit_mm_per_prompt = { image = 1 }
max_image_tokens = 9
[[models]]
name = "d"
model = "demo"
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "opsin.toml"


def settings(file: Path, text: str) -> Settings:
    file.write_text(text)
    return configuration({}).checked()


def test_what_a_table_does_not_say_the_file_says(file: Path) -> None:
    first, second, third = settings(file, SEVERAL).each_model
    assert [one.engine for one in (first, second, third)] == [EngineKind.UPSTREAM, EngineKind.FAKE, EngineKind.LOCAL]
    assert [one.served_model_name for one in (first, second, third)] == [("a", "b"), ("c",), ("d",)]
    assert [one.media.limit_mm_per_prompt.image for one in (first, second, third)] == [3, 1, 3]
    assert [one.gateway.max_image_tokens for one in (first, second, third)] == [500, 9, 500]
    assert [one.stated_model for one in (first, second, third)] == [None, None, "demo"]
    assert first.upstream is not None
    assert tuple(first.upstream.servers) == ("http://h:1/v1", "http://h:2/v1")
    assert (first.max_model_len, first.routing.load_bound, third.routing.load_bound) == (8000, 2.0, 1.25)


def test_without_tables_there_is_one_model() -> None:
    alone = Settings()
    assert alone.each_model == (alone,)


def test_every_mistake_in_every_table_is_told_where_it_stands(file: Path) -> None:
    text = """
    [[models]]
    name = "a"
    nme = 3
    max_model_len = "x"
    upstream = { url = ["http://h:1", "ftp://x"], api_key = 3 }
    [[models]]
    engine = "fake"
    limit_mm_per_prompt = { image = -1 }
    [models.upstream]
    urll = 3
    [[models]]
    name = "c"
    """
    with pytest.raises(ConfigError) as caught:
        settings(file, text)
    told = caught.value.message
    for problem in (
        "models.0.nme in opsin.toml: there is no setting nme; did you mean name?",
        "models.0.max_model_len in opsin.toml: should be an integer; got 'x'",
        "models.0.upstream.replicas in opsin.toml: expected http://host:port",
        "models.0.upstream.api_key in opsin.toml: should be a valid string\n",
        "models.1.name in opsin.toml: is missing",
        "models.1.limit_mm_per_prompt.image in opsin.toml: should be greater than or equal to 0; got -1",
        "models.1.upstream.url in opsin.toml: is missing",
        "models.1.upstream.urll in opsin.toml: there is no setting upstream.urll; did you mean upstream.url?",
        "models.2 in opsin.toml: c: engine local needs a model",
    ):
        assert problem in told


def test_no_table_is_quoted_as_it_may_hold_a_key(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(file, '[[models]]\nname = "a"\nengine = "upstream"\n[[models]]\nname = "a"\nupstream = "geheim"')
    assert "geheim" not in caught.value.message


def test_a_name_stands_once(file: Path) -> None:
    tables = '[[models]]\nname = "a"\nengine = "fake"\n[[models]]\nname = "b"\naliases = ["a"]\nengine = "fake"'
    with pytest.raises(ConfigError, match=r"models in opsin\.toml: should have every name once, and has more of a$"):
        settings(file, tables)


def test_the_environment_can_state_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSIN_MODELS", '[{"name": "a", "engine": "fake"}]')
    assert [one.served_model_name for one in configuration({}).checked().each_model] == [("a",)]
    monkeypatch.setenv("OPSIN_MODELS", '[{"name": 3}]')
    with pytest.raises(ConfigError, match=r"OPSIN_MODELS: models\.0\.name: should be a valid string; got 3"):
        configuration({}).checked()


def test_what_a_table_says_stands_nowhere_else(file: Path) -> None:
    file.write_text(f'served_model_name = ["x"]\n{SEVERAL}')
    problems = [problem.text for problem in startup.problems(configuration({}))]
    assert problems == ["served_model_name in opsin.toml: there are several [[models]], and each says this for itself"]


def test_a_stronger_source_that_names_one_model_wins(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(SEVERAL)
    for flag, value in (("model", "demo"), ("upstream.url", "http://h"), ("engine", "fake")):
        stated = configuration({flag: Given(value, "flag", f"--{flag}")})
        assert stated.checked().models == ()
        assert stated.notices == (f"models in opsin.toml: not served, as --{flag} names one model",)
    monkeypatch.setenv("OPSIN_MODELS", '[{"name": "other", "engine": "fake"}]')
    assert [table.name for table in configuration({}).checked().models] == ["other"]


def test_each_model_is_judged_under_its_name(file: Path) -> None:
    file.write_text('[[models]]\nname = "a"\nmodel = "./nowhere"\n[[models]]\nname = "b"\nmodel = "./lost"')
    problems = [problem.text for problem in startup.problems(configuration({}))]
    assert [text.partition(":")[0] for text in problems] == ["model a", "model b"]
