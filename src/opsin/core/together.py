"""Several coroutines at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> tuple[T, ...]:
    """All at once, results in order; the first failure cancels the rest and is raised as itself, with its cause."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as failures:
        first = failures.exceptions[0]
        raise first from first.__cause__  # which `None` would forget
    return tuple(task.result() for task in tasks)
