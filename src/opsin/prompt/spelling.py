"""Finds spelled tokens in text, in time that grows with the text alone and not with the number of tokens."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from os.path import commonprefix


def spellings(tokens: Collection[str]) -> str:
    """A regular expression that matches the longest of ``tokens`` that begins at a place; at least one is needed.

    It is their prefix tree. A plain alternation tries every token at every place: 100 kB of ``<`` then take 1.7 s with
    Gemma's 6,000 added tokens, and 1 ms with the tree.
    """
    return "|".join(_branches(sorted(set(tokens))))


def _branches(tokens: Sequence[str]) -> Iterator[str]:
    """One for each first character of the sorted tokens."""
    for _, group in groupby(tokens, key=itemgetter(0)):
        same = list(group)
        prefix = commonprefix(same)  # noqa: RUF071 - no paths: characters are what it is wanted for
        yield re.escape(prefix) + _tails([token.removeprefix(prefix) for token in same])


def _tails(tails: Sequence[str]) -> str:
    """What may follow a prefix; nothing, too, if one of the tokens ends there."""
    longer = [tail for tail in tails if tail]
    if not longer:
        return ""
    return f"(?:{'|'.join(_branches(longer))})" + ("?" if len(longer) < len(tails) else "")
