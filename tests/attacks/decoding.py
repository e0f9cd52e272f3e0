"""What the attacks on decoding share: requests with pictures, answers that must not leak, workers that can be held."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from opsin.media.config import MediaConfig
from opsin.media.loader import inspect
from opsin.media.pool import RenderPool
from opsin.vision.plan import Size
from opsin.vision.recipe import whole
from tests.corpus.pictures import data_url
from tests.integration.gateways import Served

LEAKS = ("0x", "object at", "PIL", "Error", "/", "Traceback", "base64,")
"""What no answer about a picture may hold."""


def body_of(pictures: Sequence[bytes], question: str = "What is it?", **fields: Any) -> bytes:
    """A request with these pictures and a question."""
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": data_url(picture)}} for picture in pictures
    ]
    content = [*parts, {"type": "text", "text": question}]
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 4, **fields}).encode()


async def ask(served: Served, *pictures: bytes, **fields: Any) -> dict[str, Any]:
    """The answer to a request that has to be answered."""
    status, answer = await post(served, body_of(pictures, **fields))
    assert status == 200, answer
    return answer


async def refusal(served: Served, *pictures: bytes, **fields: Any) -> tuple[int, str, str]:
    """Status, code and message of a request that has to be refused, after a look at what no answer may hold."""
    status, answer = await post(served, body_of(pictures, **fields))
    assert 400 <= status < 500, answer
    error = answer["error"]
    assert not [leak for leak in LEAKS if leak in error["message"]], error["message"]
    return status, error["code"], error["message"]


async def post(served: Served, body: bytes) -> tuple[int, dict[str, Any]]:
    """Status and JSON; a client error says that sending it again is useless."""
    async with served.http.post(f"{served.url}/v1/chat/completions", data=io.BytesIO(body)) as response:
        if 400 <= response.status < 500:
            assert response.headers["x-should-retry"] == "false"
        return response.status, await response.json()


async def python(code: str) -> str:
    """What a program prints that has to end well."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def is_alive(served: Served) -> bool:
    async with served.http.get(f"{served.url}/health") as response:
        return response.status == 200


async def until_decoding(served: Served, num_bytes: int) -> None:
    """Returns when pictures of so many bytes decoded are with the workers, or wait for one."""
    async with asyncio.timeout(60):
        while served.application.renderer.decoding_bytes != num_bytes:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)


async def pixels_of(pool: RenderPool, data: bytes, config: MediaConfig) -> tuple[Size, bytes]:
    """Upright size and RGB of a picture, as a model would get them."""
    media = inspect(data, config, "p")
    size = media.header.upright
    rendered = await pool.render(media, whole(size))
    return size, rendered.pixels


@contextmanager
def held(pids: Sequence[int]) -> Generator[None]:
    """Stops processes to the end of the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
