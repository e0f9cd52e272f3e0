"""On the import path of a server, makes its processes fail with exceptions that quote what they work on.

A request asks for it: in a route, in a chat, in a task of the gateway, in a render worker, in the engine. The numbers
are those of ``test_logs.py``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from opsin.engine.local.core import EngineCore
from opsin.gateway.auth import Auth
from opsin.media import render
from opsin.prompt.build import PromptBuilder

MAX_TOKENS_OF_A_BUG = 13
SIZE_OF_A_BUG = (13, 13)


def _sabotage(owner: object, name: str, hook: Callable[..., None]) -> None:
    """Calls ``hook`` with the arguments before the function itself."""
    original = getattr(owner, name)

    def sabotaged(*arguments: Any) -> Any:
        hook(*arguments)
        return original(*arguments)

    setattr(owner, name, sabotaged)


def _fail(what: object) -> None:
    raise ValueError(f"quoted: {what!r}") from KeyError(repr(what))


def _in_route(_: object, authorization: str | None) -> None:
    if authorization and "sabotage" in authorization:
        _fail(authorization)


def _in_gateway(_: object, conversation: object, *__: object) -> None:
    text = repr(conversation)
    if "sabotage the gateway" in text:
        _fail(conversation)
    if "sabotage a task" in text:
        loop = asyncio.get_running_loop()
        loop.create_task(asyncio.to_thread(_fail, conversation))  # noqa: RUF006 nobody shall retrieve its exception
        loop.call_soon(_fail, text)
        threading.Thread(target=_fail, args=(conversation,)).start()


def _in_engine(_: object, chunk: Any, _tokens: object) -> None:
    if chunk.sequence.sampling.max_tokens == MAX_TOKENS_OF_A_BUG:
        _fail(chunk.sequence)


def _in_render_worker(data: bytes, header: Any, *_: object) -> None:
    if (header.size.width, header.size.height) == SIZE_OF_A_BUG:
        _fail(data)


_sabotage(Auth, "caller", _in_route)
_sabotage(PromptBuilder, "tokenise", _in_gateway)
_sabotage(EngineCore, "_go_on", _in_engine)
_sabotage(render, "render", _in_render_worker)
