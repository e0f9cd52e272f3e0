"""What is wrong with a field, in opsin's own words: a library's change with its version and name its functions."""

from __future__ import annotations

from collections.abc import Mapping

_WORDS = {
    "missing": "is missing",
    "model_type": "must be an object",
    "list_type": "must be a list",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "named_once": "must have either a URL or a file_id",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
}
"""By pydantic's name of the mistake; what stands in braces is ours, the limit of a field."""


def complaint(mistake: str, limits: Mapping[str, object]) -> str:
    """Completes "the field …". Never quotes a value."""
    return _WORDS.get(mistake, "is not valid").format_map({name: _shown(limit) for name, limit in limits.items()})


def _shown(limit: object) -> object:
    """Limits of numbers come as 0.0 where 0 was written."""
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit
