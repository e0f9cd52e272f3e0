"""Any cut of the same bytes gives the same events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsin.core.sse import MAX_EVENT_BYTES, EventTooLarge, SseParser

TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), max_size=12) | st.sampled_from(
    ["", " ", "하늘", "\u2028", "\x85", "\u2029", ":", "data:", "🙂", "\ufeff"]
)
NOISE = st.sampled_from([": keep-alive", ":", "event: x", "id:1", "retry: 5", "datas: 1", "dat"])
PIECE = st.sampled_from(
    [b"\r", b"\n", b"\r\n", b"data:", b"data", b" ", b":", b"x", "하".encode()[:2], b"\xef\xbb\xbf"]
)


def parse(*reads: bytes) -> list[bytes]:
    parser = SseParser()
    return [event for read in reads for event in parser.feed(read)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """Bytes of a stream, and its events as the standard reads them."""
    newline = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    lines, events = list[str](), list[bytes]()
    for values in draw(st.lists(st.lists(TEXT, min_size=1, max_size=3), max_size=4)):
        for value in values:
            lines += draw(st.lists(NOISE, max_size=1))
            space = " " if value.startswith(" ") else draw(st.sampled_from(["", " "]))
            lines.append(f"data:{space}{value}")
        lines.append("")
        events.append("\n".join(values).encode())
    wire = draw(st.sampled_from(["", "\ufeff"])) + "".join(line + newline for line in lines)
    return wire.encode(), events


@given(streams(), st.lists(st.integers(0, 400), max_size=12))
def test_any_cut_gives_the_same_events(stream: tuple[bytes, list[bytes]], cuts: list[int]) -> None:
    wire, events = stream
    bounds = sorted({0, len(wire), *(min(cut, len(wire)) for cut in cuts)})
    reads = [wire[start:end] for start, end in zip(bounds, [*bounds[1:], len(wire)], strict=True)]
    assert parse(*reads) == events


@given(streams())
def test_byte_by_byte_gives_the_same_events(stream: tuple[bytes, list[bytes]]) -> None:
    wire, events = stream
    assert parse(*(wire[at : at + 1] for at in range(len(wire)))) == events


@given(st.lists(PIECE | st.binary(max_size=4), max_size=30))
def test_arbitrary_bytes_parse_alike_whole_and_cut(reads: list[bytes]) -> None:
    assert parse(*reads) == parse(b"".join(reads))


@pytest.mark.parametrize(
    ("wire", "events"),
    [
        (b"data: 1\n\ndata:2\n\n", [b"1", b"2"]),
        (b"data: 1\r\n\r\ndata: 2\r\n\r\n", [b"1", b"2"]),
        (b"data: 1\rdata: 2\r\r", [b"1\n2"]),
        (b"data: a\ndata:  b\n\n", [b"a\n b"]),
        (b": keep-alive\n\ndata: 1\n\n", [b"1"]),
        (b"event: x\nid: 7\nretry: 1\n\n", []),
        (b"data\n\n", [b""]),
        ("data: a\u2028b\x85c\n\n".encode(), ["a\u2028b\x85c".encode()]),
        (b"\xef\xbb\xbfdata: 1\n\n", [b"1"]),
        (b"data: half", []),
        (b"data: unfinished\n", []),
        (b"\n\n\n", []),
    ],
)
def test_the_standard(wire: bytes, events: list[bytes]) -> None:
    assert parse(wire) == events


def test_a_huge_event_is_refused_before_it_is_whole() -> None:
    parser = SseParser()
    with pytest.raises(EventTooLarge):
        for _ in range(MAX_EVENT_BYTES // 2**20 + 1):
            parser.feed(b"data" + b"x" * 2**20)


def test_an_event_within_the_limit_is_given_however_it_is_cut() -> None:
    parser, data = SseParser(), b"x" * (MAX_EVENT_BYTES - 2**10)
    wire = b"data:" + data + b"\n\n"
    assert [event for at in range(0, len(wire), 2**16) for event in parser.feed(wire[at : at + 2**16])] == [data]


def test_the_limit_is_for_one_event_not_for_the_stream() -> None:
    parser = SseParser()
    event = b"data: " + b"x" * 2**20 + b"\n\n"
    assert sum(len(parser.feed(event)) for _ in range(20)) == 20
