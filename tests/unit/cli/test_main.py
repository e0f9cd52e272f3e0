"""The entry point in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = [sys.executable, "-m", "opsin", "config", "show", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait() == 1


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize(
    "words",
    [
        ("config", "show", "--json"),  # a text longer than a buffer
        ("tokens", "--size", "100x100"),  # a table, by rich
        ("preprocess", "src/opsin/demo/examples/red_circle.png", "--base64"),
    ],
)
def test_output_that_cannot_be_written_is_one_line(words: tuple[str, ...]) -> None:
    with FULL.open("w") as full:
        ran = subprocess.run([sys.executable, "-m", "opsin", *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ran.returncode, ran.stderr) == (1, "opsin: standard output: No space left on device\n")


def test_without_a_standard_output_nothing_is_printed() -> None:
    command = f"'{sys.executable}' -m opsin tokens --size 100x100 >&-"
    ran = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
