from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsin.prompt.spelling import spellings

TOKENS = st.lists(st.text("<|im>.*?(é", min_size=1, max_size=6), min_size=1, max_size=12)


def _longest(tokens: list[str], text: str) -> list[str]:
    """Leftmost longest, one place after the other."""
    found: list[str] = []
    place = 0
    while place < len(text):
        here = max((token for token in tokens if text.startswith(token, place)), key=len, default="")
        found += [here] if here else []
        place += len(here) or 1
    return found


@settings(deadline=None)
@given(TOKENS, st.data())
def test_the_longest_token_at_each_place(tokens: list[str], data: st.DataObject) -> None:
    pieces = st.one_of(st.sampled_from(tokens), st.text("<|im>.*?(é", max_size=3))
    text = "".join(data.draw(st.lists(pieces, max_size=8)))
    assert re.findall(spellings(tokens), text) == _longest(tokens, text)


def test_a_token_wins_over_those_that_it_begins_with() -> None:
    tokens = ["<im>", "<im><im>", "<i", "<image>"]
    assert re.findall(spellings(tokens), "<image><im><im><im><ima<im") == ["<image>", "<im><im>", "<im>", "<i", "<i"]


@pytest.mark.parametrize("text", ["<" * 200_000, "<unused" * 30_000, "<unused1" * 25_000])
def test_thousands_of_tokens_cost_nothing(text: str) -> None:
    """An alternation of as many tokens takes seconds here."""
    pattern = re.compile(spellings([f"<unused{number}>" for number in range(6000)]))
    start = time.process_time()
    assert pattern.search(text) is None
    assert time.process_time() - start < 0.5
