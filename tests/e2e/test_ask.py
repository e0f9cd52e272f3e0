"""``opsin ask`` in its own process, at a server, and with a photograph."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from opsin.demo.examples import EXAMPLES, path
from opsin.demo.tasks import caption

RIGHT = caption(EXAMPLES["red_circle"], "en", split=True)


def _ask(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opsin", "ask", *words], capture_output=True, text=True, timeout=300, check=False
    )


def test_in_process() -> None:
    result = _ask(str(path("red_circle")), "What is in this picture?")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == RIGHT
    assert "only knows drawn shapes" not in result.stderr


def test_at_a_server(demo_url: str) -> None:
    result = _ask(str(path("red_circle")), "What is in this picture?", "--url", demo_url)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == RIGHT
    answer = json.loads(_ask(str(path("red_circle")), "What colour is it?", "--url", demo_url, "--json").stdout)
    assert answer["choices"][0]["message"]["content"].strip() == "red"


def test_a_photograph_gets_a_hint(tmp_path: Path) -> None:
    photo = tmp_path / "photo.jpg"
    # As many colours as a sunset has.
    bands = [Image.linear_gradient("L"), Image.radial_gradient("L"), Image.linear_gradient("L").rotate(90)]
    Image.merge("RGB", bands).resize((640, 480)).save(photo, quality=90)
    result = _ask(str(photo), "What is it?")
    assert result.returncode == 0, result.stderr
    assert "use a real model" in result.stderr


def test_what_an_answer_warns_of_is_said_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSIN_ENGINE", "fake")
    result = _ask("What is <image>?")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "This answer comes from the fake engine.\n"
    assert "warning: Special tokens in texts were broken up" in result.stderr


def test_no_server_is_said_plainly() -> None:
    result = _ask(str(path("red_circle")), "What is it?", "--url", "http://127.0.0.1:9")
    assert result.returncode == 1
    assert "cannot be reached" in result.stderr
