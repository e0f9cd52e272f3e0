"""Identifiers."""

from __future__ import annotations

import re
import secrets

_CLIENT_ID = re.compile(r"[A-Za-z0-9._\-]{1,128}")


def new_request_id() -> str:
    """A fresh id in OpenAI's style, e.g. ``chatcmpl-9f86d081884c7d65``."""
    return f"chatcmpl-{secrets.token_hex(12)}"


def safe_client_id(value: str | None) -> str | None:
    """A client's own ``x-request-id`` if it is short and plain enough to log, else None."""
    return value if value and _CLIENT_ID.fullmatch(value) else None
