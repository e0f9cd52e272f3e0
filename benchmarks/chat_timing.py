"""A chat request with the moment of every piece of its answer, for any server with OpenAI's streaming format."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from PIL import Image

from opsin.bench.photo import PhotoMaker

Part = dict[str, Any]
"""Of a message: a text or a picture, in OpenAI's form."""
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds since the request was sent; ``times`` of every piece that held text, ``tokens`` as the server counts."""

    times: tuple[float, ...]
    prompt_tokens: int
    tokens: int
    stages_ms: Mapping[str, float]

    @property
    def ttft_s(self) -> float:
        """To the first text."""
        return self.times[0]

    @property
    def tpot_s(self) -> float:
        """Between first and last."""
        return (self.times[-1] - self.times[0]) / max(self.tokens - 1, 1)


async def ask(http: aiohttp.ClientSession, parts: Sequence[Part], max_tokens: int, **more: object) -> Answer:
    """``more`` are fields of the body. Raises RuntimeError if the answer is an error or empty, and as ``chunks``."""
    times: list[float] = []
    usage: dict[str, Any] = {}
    stages: dict[str, float] = {}
    started = time.perf_counter()
    async for chunk in chunks(http, parts, max_tokens, **more):
        usage = chunk.get("usage") or usage
        stages = _timeline(chunk) or stages
        if has_text(chunk):
            times.append(time.perf_counter() - started)
    if not times:
        raise RuntimeError("an answer without text")
    tokens = usage.get("completion_tokens") or len(times)
    return Answer(tuple(times), usage.get("prompt_tokens") or 0, tokens, stages)


async def chunks(
    http: aiohttp.ClientSession, parts: Sequence[Part], max_tokens: int, **more: object
) -> AsyncGenerator[dict[str, Any]]:
    """Of one answer, as they arrive. Raises RuntimeError at an error, aiohttp.ClientError, TimeoutError."""
    body = {
        "model": await _model(http), "messages": [{"role": "user", "content": list(parts)}], "max_tokens": max_tokens,
        "temperature": 0, "stream": True, "stream_options": {"include_usage": True}, **more,
    }  # fmt: skip
    data = json.dumps(body).encode()
    headers, limit = {"content-type": "application/json"}, aiohttp.ClientTimeout(_TIMEOUT_S)
    async with http.post("/v1/chat/completions", data=data, headers=headers, timeout=limit) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {(await response.text())[:300]}")
        async for line in response.content:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise RuntimeError(str(chunk["error"]))
                yield chunk


def has_text(chunk: dict[str, Any]) -> bool:
    """Whether it carries a piece of the answer."""
    choices: list[dict[str, Any]] = chunk.get("choices") or []
    deltas: list[dict[str, Any]] = [choice.get("delta") or {} for choice in choices]
    return any(delta.get("content") for delta in deltas)


def _timeline(chunk: dict[str, Any]) -> dict[str, float]:
    """Milliseconds by stage; empty but for opsin's last chunk."""
    extension: dict[str, Any] = chunk.get("opsin") or {}
    return extension.get("timeline") or {}


async def _model(http: aiohttp.ClientSession) -> str:
    async with http.get("/v1/models") as response:
        return (await response.json())["data"][0]["id"]


def text(words: str) -> Part:
    """A text part."""
    return {"type": "text", "text": words}


def picture(data: bytes, kind: str) -> Part:
    """A picture part; ``kind`` jpeg or png."""
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{base64.b64encode(data).decode()}"}}


def photo(maker: PhotoMaker, number: int, side: int) -> bytes:
    """A square JPEG that no other number gives."""
    return _bytes(maker.draw(number, side, side), "JPEG", quality=85)


def screenshots(maker: PhotoMaker, count: int, size: tuple[int, int] = (1920, 1080)) -> list[bytes]:
    """PNGs; from one to the next a window of 5 % of the area changes, at another place each time."""
    screen = maker.draw(0, *size).convert("RGB")
    share = 0.05**0.5
    window = int(size[0] * share), int(size[1] * share)
    shown = [_bytes(screen, "PNG", compress_level=1)]
    for number in range(1, count):
        left = (number * 617) % (size[0] - window[0])
        top = (number * 389) % (size[1] - window[1])
        screen.paste(maker.draw(number, *window).convert("RGB"), (left, top))
        shown.append(_bytes(screen, "PNG", compress_level=1))
    return shown


def _bytes(image: Image.Image, kind: str, **options: Any) -> bytes:
    output = io.BytesIO()
    image.save(output, kind, **options)
    return output.getvalue()
