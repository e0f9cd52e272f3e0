"""Several coroutines at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

_SEVERAL = 2


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> tuple[T, ...]:
    """All at once, results in order; the first failure cancels the rest and is raised as itself, with its cause.

    One alone needs no task of its own, and most requests have one picture and one replica.
    """
    several = list(coroutines)
    if len(several) < _SEVERAL:
        return tuple([await alone for alone in several])
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in several]
    except BaseExceptionGroup as failures:
        first = failures.exceptions[0]
        raise first from first.__cause__  # which `None` would forget
    return tuple(task.result() for task in tasks)
