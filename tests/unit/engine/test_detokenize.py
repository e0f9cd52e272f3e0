from __future__ import annotations

import random

import pytest

from opsin.engine.api import Delta
from opsin.engine.local.detokenize import StopStrings, TextStream


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
