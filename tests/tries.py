"""Second chances for tests of times: a busy machine is late now and then, a wrong product every time."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec

import pytest

P = ParamSpec("P")

TRIES = 3


def tried(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    """Runs a test again when it fails, TRIES times in all. It fails as the last try did, with the others in its notes.

    For tests that begin anew: what their fixtures give them must not remember the try before.
    """

    @functools.wraps(test)
    async def until_it_holds(*args: P.args, **kwargs: P.kwargs) -> None:
        before = list[str]()
        for number in range(1, TRIES + 1):
            try:
                await test(*args, **kwargs)
            except (Exception, pytest.fail.Exception) as failure:
                if number == TRIES:
                    for told in before:
                        failure.add_note(told)
                    raise
                before.append(f"try {number}: {type(failure).__name__}: {failure}")
            else:
                return

    return until_it_holds
