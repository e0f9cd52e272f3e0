"""A checkpoint that brings its own class: refused in words, and run in the engine process once it is trusted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from opsin.cli.main import main
from opsin.demo.examples import path
from opsin.settings import Settings

CODE = """
from pathlib import Path
from transformers import Idefics3ForConditionalGeneration

class Own(Idefics3ForConditionalGeneration):
    def __init__(self, config):
        super().__init__(config)
        Path({ran!r}).touch()
"""


def test_only_when_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder, ran = tmp_path / "own", tmp_path / "ran"
    shutil.copytree(Settings().model_location, folder)
    (folder / "modeling_own.py").write_text(CODE.format(ran=str(ran)))
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForImageTextToText": "modeling_own.Own"}
    (folder / "config.json").write_text(json.dumps(config))
    words = ["ask", str(path("receipt")), "What is the total?", "--detail", "high", "--model", str(folder)]
    assert main(words) == 1
    assert "brings code of its own (modeling_own.Own)" in capsys.readouterr().err
    assert not ran.exists()
    assert main([*words, "--trust-remote-code"]) == 0
    assert capsys.readouterr().out.strip() == "32.85"
    assert ran.exists()
