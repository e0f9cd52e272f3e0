"""The streams of OpenAI, Anthropic and Gemini, scripted, over real HTTP: the other end for tests. Knows no engine.

Shapes as in each provider's reference: chunks of chat completions, events of ``/v1/messages``, responses of
``streamGenerateContent?alt=sse``. Which provider is asked is told by the path.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from opsin.gateway.listener import Listener

TEXTS = ("A red ", "circle.")
PROMPT_TOKENS, OUTPUT_TOKENS, IMAGE_TOKENS = 80, 4, 64


class Mode(StrEnum):
    """How the next answers go."""

    WHOLE = "whole"
    CUT = "cut"  # the body ends cleanly after the texts
    ERROR = "error"  # an error event after the texts
    HANG = "hang"  # silence after the texts
    SILENT = "silent"  # a head, and then nothing


@dataclass(slots=True, eq=False)
class ReceivedCall:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    left: asyncio.Event = field(default_factory=asyncio.Event)  # the client went before the end


class ScriptedApis:
    """The state of one server. ``status`` other than 200 answers with that and ``message``."""

    def __init__(self) -> None:
        self.mode = Mode.WHOLE
        self.status = 200
        self.message = "nope"
        self.received: list[ReceivedCall] = []
        self.arrived = asyncio.Event()

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(routes=[Route("/{path:path}", self._answer, methods=["POST"])])

    async def _answer(self, request: Request) -> Response:
        call = ReceivedCall(request.url.path, dict(request.headers), msgspec.json.decode(await request.body()))
        self.received.append(call)
        self.arrived.set()
        if self.status != 200:
            body = msgspec.json.encode({"error": {"message": self.message, "type": "invalid_request_error"}})
            headers = {"Retry-After": "7"} if self.status == 429 else None
            return Response(body, self.status, headers, media_type="application/json")
        return StreamingResponse(self._play(call), media_type="text/event-stream")

    async def _play(self, call: ReceivedCall) -> AsyncGenerator[bytes, None]:
        whole = False
        try:
            if self.mode is not Mode.SILENT:
                for event in _events(call.path, self.mode):
                    yield event
            if self.mode in (Mode.HANG, Mode.SILENT):
                await asyncio.Event().wait()
            whole = True
        finally:
            if not whole:
                call.left.set()


@asynccontextmanager
async def serve(apis: ScriptedApis) -> AsyncGenerator[str]:
    """Runs it in the caller's loop; yields its address."""
    listener = Listener(uvicorn.Config(apis.app(), port=0, lifespan="off", log_config=None, access_log=False))
    listener.config.timeout_graceful_shutdown = 1
    serving = asyncio.create_task(listener.serve())
    try:
        await listener.listening.wait()
        yield f"http://127.0.0.1:{listener.port}"
    finally:
        listener.should_exit = True
        await serving


def _events(path: str, mode: Mode) -> Iterator[bytes]:
    if path.endswith("/chat/completions"):
        return _of_openai(mode)
    return _of_anthropic(mode) if path.endswith("/messages") else _of_gemini(mode)


def _of_openai(mode: Mode) -> Iterator[bytes]:
    chunk: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    for text in ("", *TEXTS):
        delta = {"role": "assistant", "content": text}
        yield _data({**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    if mode is Mode.ERROR:
        yield _data({"error": {"message": "The server had an error", "type": "server_error", "code": None}})
    if mode is Mode.WHOLE:
        nothing: dict[str, Any] = {}
        yield _data({**chunk, "choices": [{"index": 0, "delta": nothing, "finish_reason": "stop"}]})
        usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": OUTPUT_TOKENS}
        total = PROMPT_TOKENS + OUTPUT_TOKENS
        yield _data({**chunk, "choices": [], "usage": {**usage, "total_tokens": total}})
        yield b"data: [DONE]\n\n"


def _of_anthropic(mode: Mode) -> Iterator[bytes]:
    message: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "claude"}
    usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": 1}
    begun: dict[str, Any] = {**message, "stop_reason": None, "usage": usage}
    yield _data({"type": "message_start", "message": begun}, "message_start")
    block = {"type": "text", "text": ""}
    yield _data({"type": "content_block_start", "index": 0, "content_block": block}, "content_block_start")
    yield _data({"type": "ping"}, "ping")
    for text in TEXTS:
        delta = {"type": "text_delta", "text": text}
        yield _data({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")
    if mode is Mode.ERROR:
        yield _data({"type": "error", "error": {"type": "api_error", "message": "Internal server error"}}, "error")
    if mode is Mode.WHOLE:
        yield _data({"type": "content_block_stop", "index": 0}, "content_block_stop")
        end = {"stop_reason": "end_turn", "stop_sequence": None}
        used = {"output_tokens": OUTPUT_TOKENS}
        yield _data({"type": "message_delta", "delta": end, "usage": used}, "message_delta")
        yield _data({"type": "message_stop"}, "message_stop")


def _of_gemini(mode: Mode) -> Iterator[bytes]:
    first, last = TEXTS
    yield _data(_of_candidate(first, None))
    if mode is not Mode.WHOLE:
        yield _data(_of_candidate(last, None))
    if mode is Mode.ERROR:
        yield _data({"error": {"code": 500, "message": "An internal error has occurred", "status": "INTERNAL"}})
    if mode is Mode.WHOLE:
        yield _data(_of_candidate(last, "STOP"))


def _of_candidate(text: str, finish_reason: str | None) -> dict[str, Any]:
    details = [
        {"modality": "TEXT", "tokenCount": PROMPT_TOKENS - IMAGE_TOKENS},
        {"modality": "IMAGE", "tokenCount": IMAGE_TOKENS},
    ]
    usage = {"promptTokenCount": PROMPT_TOKENS, "candidatesTokenCount": OUTPUT_TOKENS, "promptTokensDetails": details}
    ended = {"finishReason": finish_reason} if finish_reason else {}
    candidate = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0, **ended}
    total = PROMPT_TOKENS + OUTPUT_TOKENS
    return {"candidates": [candidate], "usageMetadata": {**usage, "totalTokenCount": total}, "modelVersion": "gemini"}


def _data(value: object, event: str | None = None) -> bytes:
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + msgspec.json.encode(value) + b"\n\n"
