"""``opsin ask PICTURE… QUESTION``: in this process, or at a running server."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from opsin.app import Application, build
from opsin.cli.pictures import data_url
from opsin.core.errors import ConfigError, EngineError
from opsin.core.ids import new_request_id
from opsin.demo.hint import PHOTO_HINT, is_photo
from opsin.engine.api import Delta
from opsin.gateway.streaming import to_completion
from opsin.media.loader import MediaLoader
from opsin.media.types import MediaBytes
from opsin.protocol.request import parse_request
from opsin.protocol.response import encode
from opsin.settings import DEMO_MODEL, Settings, load_settings


def run(args: argparse.Namespace, flags: dict[str, Any]) -> int:
    """Prints the answer as it comes; returns the exit status."""
    *pictures, question = args._words
    settings = load_settings(flags)
    loader = MediaLoader(settings.media)
    media = [loader.load_file(Path(name), name) for name in pictures]
    body = _body(media, question, args)
    if args._url:
        return asyncio.run(_ask_server(args._url, body, as_json=args._json))
    return asyncio.run(_ask_here(settings, media, body, as_json=args._json))


def _body(media: list[MediaBytes], question: str, args: argparse.Namespace) -> bytes:
    parts: list[dict[str, object]] = []
    for number, picture in enumerate(media, 1):
        if len(media) > 1:
            parts.append({"type": "text", "text": f"Image {number}:"})
        parts.append({"type": "image_url", "image_url": {"url": data_url(picture), "detail": args._detail}})
    parts.append({"type": "text", "text": question})
    message = {"role": "user", "content": parts}
    return json.dumps({"messages": [message], "max_tokens": args._max_tokens}).encode()


async def _ask_here(settings: Settings, media: list[MediaBytes], body: bytes, *, as_json: bool) -> int:
    application = build(settings)
    try:
        with Console(stderr=True).status(f"loading {settings.model} …"):
            await application.start()
        await _answer(application, body, as_json=as_json)
        if settings.model == DEMO_MODEL and [
            picture for picture in media if await is_photo(application.renderer, picture)
        ]:
            print(PHOTO_HINT, file=sys.stderr)
        return 0
    finally:
        await application.close()


async def _answer(application: Application, body: bytes, *, as_json: bool) -> None:
    request_id = new_request_id()
    answer = application.gateway.chat.answer(parse_request(body), request_id=request_id, tenant="cli")
    text = ""
    async with aclosing(answer) as events:
        async for event in events:
            if isinstance(event, Delta):
                text += event.text
                if not as_json:
                    print(event.text, end="", flush=True)
                continue
            if as_json:
                model = application.gateway.models[0].id
                print(encode(to_completion(text, event, request_id=request_id, model=model)).decode())
    if not as_json:
        print()


async def _ask_server(url: str, body: bytes, *, as_json: bool) -> int:
    base = url.rstrip("/").removesuffix("/v1")
    request = json.loads(body) | ({} if as_json else {"stream": True})
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{base}/v1/chat/completions", json=request) as response,
        ):
            if response.status != 200:
                detail = (await response.json())["error"]
                raise EngineError(f"the server answered {response.status}: {detail['message']}")
            if as_json:
                print((await response.read()).decode())
                return 0
            async for text in _deltas(response.content):
                print(text, end="", flush=True)
    except aiohttp.ClientError as error:
        raise ConfigError(f"no answer from {base} ({type(error).__name__}); is a server running there?") from None
    print()
    return 0


async def _deltas(lines: AsyncIterator[bytes]) -> AsyncIterator[str]:
    async for line in lines:
        data = line.decode().removeprefix("data: ").strip()
        if not data or data == "[DONE]":
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            raise EngineError(chunk["error"]["message"])
        for choice in chunk["choices"]:
            yield choice["delta"].get("content") or ""
