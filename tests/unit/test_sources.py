"""Settings out of file, environment and flags: merged, judged at once, and traced to who stated them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from opsin.core.errors import ConfigError
from opsin.settings import EngineKind, Settings, configuration, load_settings
from opsin.sources import (
    Given,
    Layer,
    closest,
    flatten,
    from_environment,
    from_file,
    from_text,
    load,
    setting_at,
    settings_of,
    variable_of,
)


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    port: int = Field(default=1, ge=0)
    key: SecretStr | None = None
    names: tuple[str, ...] = ()


class Optional(BaseModel):
    model_config = ConfigDict(extra="forbid")

    url: str
    model: str = "first"


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    inner: Inner = Inner()
    other: Optional | None = None
    weights: dict[str, float] = Field(default_factory=dict[str, float])
    title: str = "none"


def stated(**values: Any) -> Layer:
    return {path: Given(value, "code", path) for path, value in flatten(Outer, values)}


def problems(layer: Layer) -> list[str]:
    return [problem.text for problem in load(Outer, layer).problems]


def test_every_setting_is_found_inside_its_sections() -> None:
    assert [setting.path for setting in settings_of(Outer)] == [
        "inner.port", "inner.key", "inner.names", "other.url", "other.model", "weights", "title",
    ]  # fmt: skip
    assert setting_at(Outer, "inner.key").is_secret
    assert setting_at(Outer, "other.url").default is None
    with pytest.raises(KeyError):
        setting_at(Outer, "inner.colour")


def test_a_later_source_wins_setting_by_setting() -> None:
    file = stated(inner={"port": 2, "names": ["a"]}, title="file")
    environment = from_environment(Outer, {"OPSIN_INNER__PORT": "3", "OTHER_PORT": "9"})
    loaded = load(Outer, {**file, **environment, **from_text(Outer, "title", "typed", "flag --title", "--title")})
    assert (loaded.settings.inner.port, loaded.settings.inner.names, loaded.settings.title) == (3, ("a",), "typed")
    assert {path: given.source for path, given in loaded.given.items()} == {
        "inner.port": "env OPSIN_INNER__PORT",
        "inner.names": "code",
        "title": "flag --title",
    }


def test_structures_are_json_in_a_variable_or_flag_and_a_section_can_be_stated_as_one() -> None:
    layer = from_environment(
        Outer, {"OPSIN_INNER": '{"port": 4, "names": ["x"]}', "OPSIN_WEIGHTS": '{"a": 1}', "OPSIN_TITLE": "[1]"}
    )
    loaded = load(Outer, layer)
    assert (loaded.settings.inner.port, loaded.settings.inner.names) == (4, ("x",))
    assert loaded.settings.weights == {"a": 1.0}
    assert loaded.settings.title == "[1]"
    assert loaded.given["inner.port"].name == "OPSIN_INNER"


@pytest.mark.parametrize("words", [["a", "b"], ['["a", "b"]'], '["a", "b"]'])
def test_a_list_is_words_or_json(words: Any) -> None:
    assert load(Outer, from_text(Outer, "inner.names", words, "flag", "--names")).settings.inner.names == ("a", "b")


def test_all_that_is_wrong_is_told_at_once_and_the_rest_still_counts() -> None:
    layer = stated(inner={"port": -1, "names": "x", "prot": 3}, weights={"a": "heavy"}, title="kept", colour="red")
    loaded = load(Outer, layer)
    assert loaded.settings.title == "kept"
    assert loaded.settings.inner == Inner()
    assert problems(layer) == [
        "inner.port: should be greater than or equal to 0; got -1",
        'inner.names: should be a list, as JSON: ["one", "two"]; got \'x\'',
        "inner.prot: there is no setting inner.prot; did you mean inner.port?",
        "weights: should be a number; got {'a': 'heavy'}",
        "colour: there is no setting colour",
    ]


def test_a_section_that_lacks_something_is_one_problem() -> None:
    loaded = load(Outer, stated(other={"model": "x"}, title="kept"))
    assert loaded.settings.other is None
    assert [problem.text for problem in loaded.problems] == ["other.url: is missing"]


def test_a_value_in_the_place_of_a_section_is_a_problem() -> None:
    assert problems({**stated(inner=3), **stated(title="kept")}) == [
        'inner: should be a section, or an object as JSON: {"name": 1}'
    ]


def test_secrets_are_not_quoted() -> None:
    assert all("geheim" not in text for text in problems(stated(inner={"key": ["geheim"], "kee": "geheim"})))


def test_values_are_quoted_only_so_far() -> None:
    assert len(problems(stated(inner={"port": "9" * 500 + "x"}))[0]) < 150


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("inner.prot", "inner.port"),
        ("port", "inner.port"),
        ("iner", "inner"),
        ("inner_port", "inner.port"),
        ("zzz", None),
    ],
)
def test_what_was_probably_meant(wrong: str, meant: str | None) -> None:
    assert closest(Outer, wrong) == meant


def test_a_file_names_itself_and_the_place(tmp_path: Path) -> None:
    path = tmp_path / "opsin.toml"
    path.write_text("[inner]\nport = -3\n")
    assert problems(from_file(Outer, path)) == [
        "inner.port in opsin.toml: should be greater than or equal to 0; got -3"
    ]


class TestSettings:
    """The same through the real settings."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.chdir(tmp_path)
        return tmp_path

    def test_each_setting_says_what_it_is_for(self) -> None:
        assert [setting.path for setting in settings_of(Settings) if not setting.description] == []

    def test_a_file_that_is_not_toml_or_not_there(self, folder: Path) -> None:
        (folder / "opsin.toml").write_text("port 3")
        with pytest.raises(ConfigError, match=r"opsin\.toml: not TOML"):
            load_settings({})
        assert "cannot be read" in configuration({}, folder / "absent.toml").problems[0].text

    def test_another_file_can_be_named(self, folder: Path) -> None:
        (folder / "opsin.toml").write_text("log_level = 'error'")
        (folder / "mine.toml").write_text("[gateway]\nport = 5")
        settings = configuration({}, folder / "mine.toml").checked()
        assert (settings.gateway.port, settings.log_level) == (5, "info")

    def test_a_variable_of_no_setting_is_noted_and_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # The first is a common slip, the second is what Kubernetes sets for a Service that is called opsin.
        monkeypatch.setenv("OPSIN_GATEWAY_PORT", "5")
        monkeypatch.setenv("OPSIN_PORT", "tcp://10.0.0.1:80")
        found = configuration({})
        assert found.problems == ()
        assert found.settings.gateway.port == 8000
        assert set(found.notices) == {
            "OPSIN_GATEWAY_PORT is no setting and is ignored; did you mean OPSIN_GATEWAY__PORT?",
            "OPSIN_PORT is no setting and is ignored; did you mean OPSIN_GATEWAY__PORT?",
        }

    def test_a_variable_inside_a_section_is_meant_for_us(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPSIN_GATEWAY__PROT", "5")
        with pytest.raises(
            ConfigError, match=r"^OPSIN_GATEWAY__PROT: there is no setting gateway.prot; did you mean gateway"
        ):
            load_settings({})

    def test_naming_an_upstream_chooses_it_unless_the_same_source_says_otherwise(self, folder: Path) -> None:
        (folder / "opsin.toml").write_text("engine = 'local'\n[upstream]\nurl = 'http://127.0.0.1:1'")
        assert load_settings({}).engine is EngineKind.LOCAL
        assert load_settings({"upstream": {"url": "http://127.0.0.1:2"}}).engine is EngineKind.UPSTREAM
        (folder / "opsin.toml").write_text("[upstream]\nurl = 'http://127.0.0.1:1'")
        assert load_settings({}).engine is EngineKind.UPSTREAM

    def test_variables_have_names(self) -> None:
        assert variable_of("gateway.api_key") == "OPSIN_GATEWAY__API_KEY"
