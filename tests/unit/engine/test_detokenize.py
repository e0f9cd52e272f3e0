from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opsin.demo
from opsin.engine.api import Delta
from opsin.engine.local.detokenize import StopStrings, TextStream
from opsin.prompt.tokenizer import Detokenizer, Tokenizer

DEMO = Tokenizer.from_file(Path(opsin.demo.__file__).parent / "model" / "tokenizer.json")
BROKEN_UP = st.sampled_from([*"한글뷁🍣e\u0301", "👩‍👩‍👧", "🇰🇷", "a", " "])
"""Characters of which most take several tokens: jamo, emoji joined by invisible ones, flags of two."""


class Pieces:
    """A detokenizer whose tokens are given pieces of text."""

    def __init__(self, *pieces: str, rest: str = "") -> None:
        self._pieces = pieces
        self._rest = rest

    def push(self, token_id: int) -> str:
        return self._pieces[token_id]

    def flush(self) -> str:
        return self._rest


def deltas(stream: TextStream, num_tokens: int) -> list[Delta]:
    given: list[Delta] = []
    for token_id in range(num_tokens):
        if (delta := stream.push(token_id)) is not None:
            given.append(delta)
        if stream.stopped:
            return given
    if (last := stream.finish()) is not None:
        given.append(last)
    return given


def test_without_stop_strings_text_passes_at_once():
    assert deltas(TextStream(Pieces("a", "b"), (), 0), 2) == [Delta("a", 1), Delta("b", 1)]


def test_tokens_without_text_count_into_the_next_delta():
    assert deltas(TextStream(Pieces("", "", "한"), (), 0), 3) == [Delta("한", 3)]


def test_a_stop_string_across_tokens_is_not_emitted():
    stream = TextStream(Pieces("one ST", "O", "P two"), ("STOP",), 0)
    assert deltas(stream, 3) == [Delta("one ", 1)]
    assert stream.stopped
    assert stream.num_tokens == 3


def test_text_that_only_began_like_a_stop_string_comes_later():
    assert deltas(TextStream(Pieces("ST", "OVE"), ("STOP",), 0), 2) == [Delta("STOVE", 2)]


def test_held_back_text_comes_at_the_end():
    assert deltas(TextStream(Pieces("a", "ST", rest="!"), ("STOP",), 0), 2) == [Delta("a", 1), Delta("ST!", 1)]


def test_a_stop_string_completed_by_the_last_flush():
    stream = TextStream(Pieces("xST", rest="OP"), ("STOP",), 0)
    assert deltas(stream, 1) == [Delta("x", 1)]
    assert stream.stopped


def test_the_earliest_stop_string_wins():
    stop = StopStrings(("late", "early"))
    assert stop.push("an early one, a late one") == "an "
    assert stop.found


def test_the_first_min_tokens_are_not_searched():
    stream = TextStream(Pieces("stop", "stop"), ("stop",), min_tokens=1)
    assert deltas(stream, 2) == [Delta("stop", 1)]
    assert stream.stopped


@pytest.mark.parametrize("seed", range(50))
def test_any_cut_gives_the_text_before_the_first_stop_string(seed: int):
    rng = random.Random(seed)
    text = "".join(rng.choice("ab") for _ in range(60))
    stop = tuple("".join(rng.choice("ab") for _ in range(rng.randint(3, 9))) for _ in range(2))
    ends = [text.find(one) for one in stop if one in text]
    # The match that completes first in the stream ends it; with several in one piece the earliest start.
    strings = StopStrings(stop)
    given = ""
    for character in text:
        given += strings.push(character)
        if strings.found:
            break
    else:
        given += strings.flush()
    assert strings.found == bool(ends)
    assert text.startswith(given)
    assert not any(one in given for one in stop)
    if len(ends) <= 1:
        assert given == (text[: ends[0]] if ends else text)


@settings(deadline=None)
@given(st.lists(BROKEN_UP, max_size=12).map("".join), st.data())
def test_no_token_border_ever_shows_half_a_character(text: str, data: st.DataObject):
    """Of real byte-level tokens, wherever the answer is cut, with and without a stop string that lies across them."""
    ids = DEMO.encode_plain(text)
    cut = data.draw(st.integers(0, len(ids)))
    start = data.draw(st.integers(0, max(0, len(text) - 1)))
    stop = text[start : start + 3] if data.draw(st.booleans()) else ""
    stream = TextStream(Detokenizer(DEMO), (stop,), 0)
    parts: list[Delta] = []
    for token_id in ids[:cut]:
        if (delta := stream.push(token_id)) is not None:
            parts.append(delta)
        if stream.stopped:
            break
    else:
        if (last := stream.finish()) is not None:
            parts.append(last)
    given_text = "".join(part.text for part in parts)
    assert "\ufffd" not in given_text
    assert text.startswith(given_text)
    if cut == len(ids):
        assert given_text == (text[: text.index(stop)] if stop else text)
        assert stream.stopped is bool(stop)
