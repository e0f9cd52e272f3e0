"""``opsin ask`` with a model of its own, at a server, and with a photograph."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from opsin.cli.main import main
from opsin.demo.examples import EXAMPLES, path
from opsin.demo.tasks import caption

RIGHT = caption(EXAMPLES["red_circle"], "en", split=True)


def test_the_command() -> None:
    command = [sys.executable, "-m", "opsin", "ask", str(path("red_circle")), "What is in this picture?"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == RIGHT
    assert "only knows drawn shapes" not in result.stderr


def test_at_a_server(demo_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", str(path("red_circle")), "What is in this picture?", "--url", demo_url]) == 0
    assert capsys.readouterr().out.strip() == RIGHT
    assert main(["ask", str(path("red_circle")), "What colour is it?", "--url", demo_url, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["choices"][0]["message"]["content"].strip() == "red"


def test_a_photograph_gets_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = tmp_path / "photo.jpg"
    # As many colours as a sunset has.
    bands = [Image.linear_gradient("L"), Image.radial_gradient("L"), Image.linear_gradient("L").rotate(90)]
    Image.merge("RGB", bands).resize((640, 480)).save(photo, quality=90)
    assert main(["ask", str(photo), "What is it?"]) == 0
    assert "use a real model" in capsys.readouterr().err


def test_what_an_answer_warns_of_is_said_beside_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPSIN_ENGINE", "fake")
    assert main(["ask", "What is <image>?"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "This answer comes from the fake engine.\n"
    assert "warning: Special tokens in texts were broken up" in printed.err


def test_no_server_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", str(path("red_circle")), "What is it?", "--url", "http://127.0.0.1:9"]) == 1
    assert "cannot be reached" in capsys.readouterr().err
