"""What forbids a start, gathered so that an operator hears of everything at once. Knows no setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsin.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason not to start. ``settings`` are the dotted paths whose values it rests on."""

    text: str
    settings: tuple[str, ...] = ()


def raise_all(problems: Sequence[Problem]) -> None:
    """Raises ConfigError with a line for each problem; returns when there is none."""
    if len(problems) == 1:
        raise ConfigError(problems[0].text)
    if problems:
        lines = "".join(f"\n  - {problem.text}" for problem in problems)
        raise ConfigError(f"{len(problems)} problems to solve before a start:{lines}")
