"""The further fields of a stream's events, put together as the whole answer would have had them.

As OpenAI's own client does: the strings of a delta grow, numbered entries of lists grow entry by entry, other lists get
longer. Elsewhere a string comes whole in every event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import msgspec

from opsin.core.conversation import Fields
from opsin.core.errors import Code, EngineError
from opsin.protocol.response import JsonObject

_WHOLE = frozenset({"id", "type", "role"})
"""Strings that come at once, and perhaps again."""


def merged(events: Iterable[Fields], *, growing: bool = False) -> JsonObject:
    """Of the same object in all events of a stream, in order; ``growing``: of the deltas. Linear in their size.

    Raises:
        EngineError: a value cannot be read, or is nested too deeply.
    """
    try:
        return _object([{name: msgspec.json.decode(value) for name, value in fields} for fields in events], growing)
    except (RecursionError, msgspec.DecodeError):
        why = "the upstream sent a field that cannot be read, or is nested too deeply"
        raise EngineError(why, code=Code.UPSTREAM_PROTOCOL) from None


def _object(pieces: Sequence[JsonObject], growing: bool) -> JsonObject:
    names = dict.fromkeys(name for piece in pieces for name in piece)
    return {
        name: _value([piece[name] for piece in pieces if name in piece], growing and name not in _WHOLE)
        for name in names
    }


def _value(pieces: Sequence[object], growing: bool) -> object:
    pieces = [piece for piece in pieces if piece is not None]
    if not pieces:
        return None
    if growing and all(isinstance(piece, str) for piece in pieces):
        return "".join(cast("Sequence[str]", pieces))
    if all(isinstance(piece, dict) for piece in pieces):
        return _object(cast("Sequence[JsonObject]", pieces), growing)
    if all(isinstance(piece, list) for piece in pieces):
        return _list([entry for piece in cast("Sequence[list[object]]", pieces) for entry in piece], growing)
    return pieces[-1]


def _list(entries: list[object], growing: bool) -> list[object]:
    """``index`` tells entries of a stream apart; in the whole answer their order does."""
    if not entries or not all(isinstance(entry, dict) and "index" in entry for entry in entries):
        return entries
    by_index: dict[object, list[JsonObject]] = {}
    for entry in cast("list[JsonObject]", entries):
        by_index.setdefault(str(entry["index"]), []).append({key: entry[key] for key in entry if key != "index"})
    return [_object(pieces, growing) for pieces in by_index.values()]
