"""No secret gets into a file of results."""

from __future__ import annotations

import pytest

from opsin.bench.provenance import provenance, redacted


@pytest.mark.parametrize(
    "words", [["--api-key", "sk-1"], ["--api-key=sk-1"], ["--api_key", "sk-1"], ["--api_key=sk-1"]]
)
def test_a_key_on_the_command_line(words: list[str]) -> None:
    told = redacted(["opsin", "bench", "http://h", *words, "--seed", "1"])
    assert "sk-1" not in " ".join(told)
    assert told[:3] == ["opsin", "bench", "http://h"]
    assert told[-2:] == ["--seed", "1"]


def test_this_machine() -> None:
    told = provenance(["opsin"])
    assert told.cores >= 1
    assert told.cpu
    assert told.started_at.endswith("+00:00")
