"""The least that a gateway of opsin's libraries can do; what opsin adds above it is its own. For `benchmarks.gateway`.

    python -m benchmarks.bare_relay http://127.0.0.1:8101/v1/chat/completions 8000

Reads each body whole, parses it once as JSON, posts it, and passes on what comes as it comes. It has no key, no limits,
no metrics and no answer to an error.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from opsin.core.allocator import keep_large_blocks

_KEEPALIVE_S = 4.0


def relay(url: str) -> Starlette:
    """The application."""
    session: aiohttp.ClientSession

    @asynccontextmanager
    async def open_session(_: Starlette) -> AsyncGenerator[None]:
        nonlocal session
        connector = aiohttp.TCPConnector(keepalive_timeout=_KEEPALIVE_S)
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
            yield

    async def chat(request: Request) -> StreamingResponse:
        body = await request.body()
        msgspec.json.decode(body)
        response = await session.post(url, data=body, headers={"Content-Type": "application/json"})
        return StreamingResponse(response.content.iter_any(), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])], lifespan=open_session)


if __name__ == "__main__":
    keep_large_blocks()
    uvicorn.run(
        relay(sys.argv[1]),
        port=int(sys.argv[2]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
