"""Log lines for operators: one line per event, ``key=value``, no prompts, payloads, keys or URLs."""

from __future__ import annotations

import logging


def configure(level: str) -> None:
    """Sends all of opsin's logs to standard error; other libraries only from WARNING."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("opsin").setLevel(level.upper())


def fields(**values: object) -> str:
    """``key=value`` pairs in the order given; None is left out."""
    return " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
