"""Lines of a log, whole and bounded, however they come."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from opsin.engine.managed.lines import MAX_LINE_CHARS, MAX_LINES_PER_S, Lines

words = st.lists(st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1, max_size=9), max_size=20)


@given(words, st.lists(st.integers(1, 12), min_size=1, max_size=9))
def test_cuts_do_not_matter(lines: list[str], cuts: list[int]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    reader, told, at = Lines(), list[str](), 0
    for cut in itertools.cycle(cuts):
        told += reader.feed(data[at : at + cut], 0.0)
        at += cut
        if at >= len(data):
            break
    assert told == lines


def test_colours_progress_bars_and_blanks() -> None:
    assert Lines().feed(b"\x1b[32mINFO\x1b[0m ok  \r\n\r\n 10%\r 20%\r\xff\n", 0.0) == [
        "INFO ok",
        " 10%",
        " 20%",
        "\N{REPLACEMENT CHARACTER}",
    ]


def test_a_line_without_end_takes_no_memory() -> None:
    lines = Lines()
    for _ in range(100):
        assert lines.feed(b"x" * 10**6, 0.0) == []
    (line,) = lines.feed(b"\n", 0.0)
    assert line == "x" * MAX_LINE_CHARS + "…"


def test_a_flood_is_counted_not_told() -> None:
    lines = Lines()
    assert len(lines.feed(b"x\n" * 1000, 0.0)) == MAX_LINES_PER_S
    assert lines.feed(b"x\n" * 5, 0.9) == []
    assert lines.feed(b"y\n", 1.0) == [f"… {1005 - MAX_LINES_PER_S} lines more", "y"]
    assert lines.feed(b"z\n", 2.5) == ["z"]
