from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsin.cli.main import main
from opsin.demo.examples import path


def test_tokens_of_shipped_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", str(path("receipt")), str(path("before")), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [picture["image_tokens"] for picture in answer["pictures"]] == [80, 80]
    assert answer["image_tokens"] == 160
    assert main(["tokens", str(path("receipt")), "--detail", "low"]) == 0
    assert "16" in capsys.readouterr().out


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "nowhere.png"]) == 1
    assert "nowhere.png" in capsys.readouterr().err


def test_an_unknown_model_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["tokens", str(path("receipt")), "--model", str(tmp_path)]) == 1
    assert "config.json" in capsys.readouterr().err
