"""Which strings an engine with a tokenizer of its own would read as special tokens, and where a text spells them.

The model's own where its files are known, else those of every family in ``special_tokens.toml``. Knows no message.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from importlib.resources import files

import msgspec

from opsin.models.files import AddedToken
from opsin.prompt.spelling import spellings

_PATTERN_CHARS = 80
"""No pattern of the table matches more."""

_WINDOW_CHARS = 2**16
"""Searched at once. A search holds up all other threads: for 4 ms in so many ``<``, which is the slowest text."""


class _Family(msgspec.Struct, frozen=True):
    name: str
    source: str
    tokens: tuple[str, ...]


class _Table(msgspec.Struct, frozen=True):
    patterns: tuple[str, ...]
    engines: tuple[str, ...]
    family: tuple[_Family, ...]

    @property
    def tokens(self) -> frozenset[str]:
        """Of all families."""
        return frozenset(token for family in self.family for token in family.tokens)


class SpecialTokens:
    """Finds ``tokens`` and what matches ``patterns`` in texts, but for what is ``allowed``."""

    def __init__(self, tokens: Collection[str], patterns: Sequence[str] = (), allowed: Collection[str] = ()) -> None:
        # A token of one character cannot be broken up, and as a part of ordinary text means nothing.
        names = [token for token in tokens if len(token) > 1]
        self._pattern = re.compile("|".join([*patterns, spellings(names)] if names else patterns))
        self._longest = max([_PATTERN_CHARS, *map(len, names)])
        self._allowed = frozenset(allowed)

    def starts(self, text: str) -> Iterator[int]:
        """Where one begins, also within another, in order. Linear in the text."""
        for begin in range(0, len(text), _WINDOW_CHARS):
            place, end = begin, begin + _WINDOW_CHARS
            while (found := self._pattern.search(text, place, end + self._longest)) and found.start() < end:
                if found[0] not in self._allowed:
                    yield found.start()
                place = found.start() + 1


def known_special_tokens(allowed: Collection[str] = ()) -> SpecialTokens:
    """Those of all listed families, and whatever looks like one: for a model whose files are not here."""
    table = _table()
    return SpecialTokens({*table.tokens, *table.engines}, table.patterns, allowed)


def special_tokens_of(added: Sequence[AddedToken], allowed: Collection[str] = ()) -> SpecialTokens:
    """Those of one model: what its tokenizer calls special, and of its other added tokens what any family has listed.

    The rest of the added tokens is text: white space, and tags that people write about, as ``<think>`` and ``<table>``.
    """
    table = _table()
    listed = SpecialTokens(table.tokens, table.patterns)
    own = {token.content for token in added if token.special or 0 in listed.starts(token.content)}
    return SpecialTokens({*own, *table.engines}, allowed=allowed)


@cache
def _table() -> _Table:
    text = files("opsin.prompt").joinpath("special_tokens.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), _Table)
