"""``opsin config show``: every setting, its value, its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opsin.cli.main import main
from opsin.settings import Settings
from opsin.sources import settings_of


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, Any]]:
    assert main(["config", "show", "--json", *words]) == 0
    return {row["setting"]: row for row in json.loads(capsys.readouterr().out)}


def test_every_setting_with_value_and_source(
    capsys: pytest.CaptureFixture[str], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "opsin.toml").write_text("log_level = 'debug'\n[media.limit_mm_per_prompt]\nimage = 3")
    monkeypatch.setenv("OPSIN_GATEWAY__MAX_REQUESTS", "7")
    rows = shown(capsys, "some/model", "--max-model-len", "2048", "--served-model-name", "a", "b")
    assert set(rows) == {setting.path for setting in settings_of(Settings)}
    expected = {
        "model": ("some/model", "flag --model"),
        "max_model_len": (2048, "flag --max-model-len"),
        "served_model_name": (["a", "b"], "flag --served-model-name"),
        "gateway.max_requests": (7, "env OPSIN_GATEWAY__MAX_REQUESTS"),
        "log_level": ("debug", "opsin.toml"),
        "media.limit_mm_per_prompt.image": (3, "opsin.toml"),
        "media.limit_mm_per_prompt.video": (0, "default"),
        "gateway.port": (8000, "default"),
        "upstream.url": (None, "default"),
        "upstream.connect_timeout_s": (5.0, "default"),
    }
    assert {name: (rows[name]["value"], rows[name]["source"]) for name in expected} == expected


def test_the_chosen_engine_has_the_source_that_chose_it(capsys: pytest.CaptureFixture[str]) -> None:
    row = shown(capsys, "--upstream", "http://127.0.0.1:1")["engine"]
    assert (row["value"], row["source"]) == ("upstream", "flag --upstream")


def test_secrets_stay_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    secrets = ["--api-key", "geheim", "--hf-token", "geheim", "--ssl-keyfile-password", "geheim"]
    for how in ([], ["--json"]):
        assert main(["config", "show", *how, *secrets, "--upstream", "http://u", "--upstream-api-key", "geheim"]) == 0
        told = capsys.readouterr().out
        assert "geheim" not in told
        assert "flag --api-key" in told


def test_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--port", "9"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "gateway.port" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["gateway.port", "9", "flag --port"]


def test_names_stay_whole_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["config", "show"]) == 0
    shown = capsys.readouterr().out
    assert {setting.path for setting in settings_of(Settings)} <= set(shown.split())


def test_a_variable_of_no_setting_is_mentioned(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPSIN_PORT", "9")
    assert main(["config", "show"]) == 0
    assert "OPSIN_PORT is no setting and is ignored; did you mean OPSIN_GATEWAY__PORT?" in capsys.readouterr().err


def test_wrong_values_are_told_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--port", "x", "--dtype", "int3"]) == 1
    told = capsys.readouterr().err
    assert "--port: should be an integer; got 'x'" in told
    assert "--dtype: should be 'auto', 'bfloat16', 'float16' or 'float32'; got 'int3'" in told
