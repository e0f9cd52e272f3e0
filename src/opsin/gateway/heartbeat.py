"""Signs of life between the events of a slow answer, so that no proxy or client takes silence for death."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing has come for one interval."""


async def with_silences(events: AsyncGenerator[T, None], interval_s: float) -> AsyncGenerator[T | Silence, None]:
    """The same events, and a Silence after every ``interval_s`` without one; the wait goes on meanwhile."""
    async with aclosing(events):
        while True:
            following = asyncio.ensure_future(_next(events))
            try:
                while not (await asyncio.wait({following}, timeout=interval_s))[0]:
                    yield Silence()
                event = following.result()
            except StopAsyncIteration:
                return
            finally:
                following.cancel()
                await asyncio.wait({following})
            yield event


async def _next(events: AsyncGenerator[T, None]) -> T:
    return await anext(events)
