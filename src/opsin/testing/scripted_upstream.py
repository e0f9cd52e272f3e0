"""An OpenAI-compatible server whose every answer is scripted: the other end for tests and benchmarks.

    python -m opsin.testing.scripted_upstream --port 0     prints {"port": …} once it accepts connections

Serves ``/v1/models`` and streamed ``/v1/chat/completions``. Which :class:`Script` answers: the next of the queue, else
the entry of MODES or MIXES that the request's ``model`` names, else the default. ``GET /__scripts`` tells what was
received, ``GET /__sent`` when each event of each answer left, ``POST /__scripts`` queues. Knows no opsin engine and
looks into no picture.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import re
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from opsin.core.allocator import keep_large_blocks
from opsin.core.errors import InvalidRequest
from opsin.gateway.listener import Listener
from opsin.gateway.receive_into import DirectHttp, ReceiveInto, receive_into
from opsin.testing.picture_cache import PictureCache, picture_gone
from opsin.testing.script import (
    MIXES,
    MODES,
    ConnectionReset,
    EventKind,
    Failure,
    Script,
    error_body,
    parse_scripts,
    play,
)

_KEPT = 256
_KEPT_BYTES = 32 * 2**20
"""Requests that are remembered, and how much their bodies may take together; older ones are forgotten, so that a long
benchmark fits, and large bodies come to lie where others have been."""

_KEPT_TRUTHS = 8192
"""Answers whose times are remembered."""
_MODEL = re.compile(rb'"model"\s*:\s*"([^"]*)"')

_BASE64 = b";base64,"

_LOADING = Failure(message="Loading model", type="unavailable_error", code=503)
_WRONG_KEY = Failure(message="Incorrect API key provided", type="invalid_request_error", code="invalid_api_key")
_NOT_STREAMED = Failure(message="only stream=true is served", type="invalid_request_error", code="unsupported")

_NO_CHAT = Failure(message="the body is no chat request", type="invalid_request_error", code="invalid_request")


class _TextPart(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    content: str | list[_TextPart] | None = None


class ChatBody(msgspec.Struct):
    """The few fields of a request that steer an answer."""

    class Options(msgspec.Struct):
        """``stream_options``."""

        include_usage: bool = False

    model: str
    stream: bool = False
    stream_options: Options = msgspec.field(default_factory=Options)
    messages: list[_Message] = []

    @property
    def last_text(self) -> str:
        """Of the last message."""
        content = self.messages[-1].content if self.messages else None
        return "".join(part.text for part in content) if isinstance(content, list) else content or ""


class Sent(msgspec.Struct, array_like=True):
    """One event of an answer and when its last byte was handed to the socket, by ``time.monotonic_ns()``."""

    kind: EventKind
    at_ns: int
    num_tokens: int


class Truth(msgspec.Struct):
    """What happened to one request, by this server's own clock, which all processes of a machine share."""

    request_id: str | None  # the client's x-request-id
    arrived_ns: int  # the whole body was there
    body_bytes: int
    status: int
    sent: list[Sent] = []


@dataclass(slots=True, eq=False)
class Received:
    """One request as it came, and what became of its answer."""

    client: tuple[str, int]  # the other end of the connection
    body: bytes | bytearray
    authorization: str | None
    script: Script
    truth: Truth
    finished: asyncio.Event = field(default_factory=asyncio.Event)  # the answer was written to its scripted end
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)  # the client left before that


class ScriptedUpstream:
    """The state of one scripted server. ``loading`` makes ``/v1/models`` answer 503; ``api_key`` None lets all in.

    ``pictures``: what it keeps of pictures, as vLLM does; None: it reads no names. ``metrics`` is its ``/metrics``.
    """

    def __init__(
        self,
        *,
        model: str = "scripted",
        root: str | None = None,
        owned_by: str = "scripted",
        script: Script | None = None,
        max_model_len: int | None = 4096,
        api_key: str | None = None,
        pictures: PictureCache | None = None,
    ) -> None:
        self.received: deque[Received] = deque()
        self._received_bytes = 0
        self.truths: deque[Truth] = deque(maxlen=_KEPT_TRUTHS)
        self.arrived = asyncio.Event()  # set by the first request; clear it to wait for another
        self.loading = False
        self._model = model
        self._root = root
        self._owned_by = owned_by
        self.pictures = pictures
        self.metrics = b""
        self._default = script or Script()
        self._max_model_len = max_model_len
        self.api_key = api_key
        self._queue: deque[Script] = deque()
        self._mixes: Mapping[str, Iterator[Script]] = {name: itertools.cycle(mix) for name, mix in MIXES.items()}

    def queue(self, *scripts: Script) -> None:
        """Scripts for the next requests, one each, before any other choice."""
        self._queue.extend(scripts)

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/metrics", self._prometheus),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/__scripts", self._tell, methods=["GET"]),
                Route("/__scripts", self._enqueue, methods=["POST"]),
                Route("/__sent", self._tell_sent, methods=["GET"]),
            ]
        )

    async def _models(self, request: Request) -> Response:
        if not self._authorized(request):
            return _failed(Script(status=401, failure=_WRONG_KEY))
        if self.loading:
            return _failed(Script(status=503, failure=_LOADING))
        told = {"owned_by": self._owned_by, "root": self._root, "max_model_len": self._max_model_len}
        known = {name: value for name, value in told.items() if value is not None}
        entries = [{"id": name, "object": "model", **known} for name in (self._model, *MODES, *MIXES)]
        return _json({"object": "list", "data": entries})

    async def _prometheus(self, _: Request) -> Response:
        return Response(self.metrics, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _chat(self, request: Request) -> Response:
        if not self._authorized(request):
            return _failed(Script(status=401, failure=_WRONG_KEY))
        body = await _read(request)
        try:
            chat = msgspec.json.decode(b"".join(_without_base64(body)), type=ChatBody)
        except msgspec.DecodeError:
            return _failed(Script(status=400, failure=_NO_CHAT))
        unknown = self.pictures.first_unknown(body) if self.pictures is not None else None
        script = self._next(chat.model) if unknown is None else Script(status=400, failure=picture_gone(unknown))
        script = replace(script, text=chat.last_text) if script.echo else script
        truth = Truth(request.headers.get("x-request-id"), time.monotonic_ns(), len(body), script.status)
        self.truths.append(truth)
        received = Received(_peer(request), body, request.headers.get("authorization"), script, truth)
        self._remember(received)
        self.arrived.set()
        if script.status != 200:
            received.finished.set()
            return _failed(script)
        return _ScriptedStream(chat, received) if chat.stream else _failed(Script(status=400, failure=_NOT_STREAMED))

    def _remember(self, received: Received) -> None:
        self.received.append(received)
        self._received_bytes += len(received.body)
        while len(self.received) > _KEPT or (len(self.received) > 1 and self._received_bytes > _KEPT_BYTES):
            self._received_bytes -= len(self.received.popleft().body)

    def _next(self, model: str) -> Script:
        if self._queue:
            return self._queue.popleft()
        if model in self._mixes:
            return next(self._mixes[model])
        return MODES.get(model, self._default)

    async def _tell_sent(self, request: Request) -> Response:
        return _json({"truths": list(self.truths)})

    async def _tell(self, request: Request) -> Response:
        told = [
            {
                "body": msgspec.Raw(received.body),
                "authorization": received.authorization,
                "finished": received.finished.is_set(),
                "disconnected": received.disconnected.is_set(),
            }
            for received in self.received
        ]
        return _json({"queued": len(self._queue), "received": told})

    async def _enqueue(self, request: Request) -> Response:
        try:
            self.queue(*parse_scripts(await request.body()))
        except InvalidRequest as error:
            return _failed(Script(status=400, failure=Failure(message=error.message, type=error.type, code=error.code)))
        return _json({"queued": len(self._queue)})

    def _authorized(self, request: Request) -> bool:
        return self.api_key is None or request.headers.get("authorization") == f"Bearer {self.api_key}"


def _without_base64(body: bytes | bytearray) -> Iterator[memoryview]:
    """A parser takes 1.3 ms to skip a picture of 2.5 MB, and no script depends on one."""
    view, position = memoryview(body), 0
    while (start := body.find(_BASE64, position)) >= 0 and (end := body.find(b'"', start)) >= 0:
        is_string = body[end - 1] != ord("\\")  # else a text goes on behind a quote
        yield view[position : start + len(_BASE64) if is_string else end]
        position = end
    yield view[position:]


async def _read(request: Request) -> bytes | bytearray:
    """The body, at the pace of the mode that it names near its start; full speed for all else."""
    pieces = list[bytes]()
    due = time.monotonic()
    bytes_per_s: float | None = None
    async with contextlib.aclosing(request.stream()) as stream:
        async for piece in stream:
            if not pieces:
                bytes_per_s = _pace(piece)
                if bytes_per_s is None and (read_rest := receive_into(request.scope)) is not None:
                    return await _whole(piece, int(request.headers["content-length"]), read_rest)
            pieces.append(piece)
            if bytes_per_s:
                due += len(piece) / bytes_per_s
                await asyncio.sleep(due - time.monotonic())
    return b"".join(pieces)


def _pace(beginning: bytes) -> float | None:
    found = _MODEL.search(beginning)
    return MODES.get(found[1].decode(), Script()).upload_bytes_per_s if found else None


async def _whole(beginning: bytes, num_bytes: int, read_rest: ReceiveInto) -> bytearray:
    body = bytearray(num_bytes)
    body[: len(beginning)] = beginning
    if len(beginning) < num_bytes:
        await read_rest(memoryview(body)[len(beginning) :], lambda _: None)
    return body


def _peer(request: Request) -> tuple[str, int]:
    assert request.client is not None, "only TCP is served"
    return (request.client.host, request.client.port)


def _json(body: dict[str, object]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


def _failed(script: Script) -> Response:
    headers = {"Retry-After": script.retry_after} if script.retry_after else None
    return Response(error_body(script), status_code=script.status, headers=headers, media_type="application/json")


class _ScriptedStream(Response):
    """Plays a script into the connection and notices at once when the client leaves."""

    def __init__(self, chat: ChatBody, received: Received) -> None:
        super().__init__()
        self._chat = chat
        self._received = received

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        playing = asyncio.create_task(self._play(scope, send))
        leaving = asyncio.create_task(_until_disconnect(receive))
        try:
            await asyncio.wait((playing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                self._received.disconnected.set()
        finally:
            playing.cancel()
            leaving.cancel()
            await asyncio.gather(playing, leaving, return_exceptions=True)

    async def _play(self, scope: Scope, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        script = self._received.script
        events = play(script, self._chat.model, include_usage=self._chat.stream_options.include_usage)
        sent = self._received.truth.sent
        try:
            async for event in events:
                at_ns = await _write(send, event.data, script.write_bytes)
                sent.append(Sent(event.kind, at_ns, event.num_tokens))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ConnectionReset:
            _reset(scope["state"]["transport"])
        self._received.finished.set()


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _write(send: Send, data: bytes, write_bytes: int | None) -> int:
    """Sends one event, in pieces if so asked; returns when its last piece went to the socket."""
    size = write_bytes or len(data)
    at_ns = 0
    for at in range(0, len(data), size):
        at_ns = time.monotonic_ns()
        await send({"type": "http.response.body", "body": data[at : at + size], "more_body": True})
        if write_bytes:
            await asyncio.sleep(0)  # lets the write out, so that the reader has a chance to see the cut
    return at_ns


def _reset(transport: asyncio.Transport) -> None:
    """Ends the connection with RST: what the client meets when the process behind it is killed."""
    linger_zero = struct.pack("ii", 1, 0)
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_zero)
    transport.abort()


class _Protocol(DirectHttp):
    """Hands the transport to the application, which ASGI does not, so that a script can break it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # as its parent does
        super().connection_made(transport)
        self.app_state = {**self.app_state, "transport": transport}


@contextlib.asynccontextmanager
async def serve(
    upstream: ScriptedUpstream, *, host: str = "127.0.0.1", port: int = 0, grace_s: int = 1
) -> AsyncGenerator[str, None]:
    """Serves in the running loop; gives the base URL. Port 0 takes a free one. Leaving cuts what runs after a grace."""
    with socket.create_server((host, port), backlog=1024) as listener:
        # asyncio does this only for sockets that it made. Without it small events wait up to 40 ms for an ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(
            upstream.app(), http=_Protocol, ws="none", lifespan="off", log_config=None, access_log=False
        )
        config.timeout_graceful_shutdown = grace_s
        server = Listener(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await server.listening.wait()
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


async def _run(host: str, port: int, upstream: ScriptedUpstream) -> None:
    async with serve(upstream, host=host, port=port) as url:
        sys.stdout.write(json.dumps({"port": int(url.rsplit(":", 1)[1])}) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    """Serves until it is interrupted."""
    parser = argparse.ArgumentParser(prog="python -m opsin.testing.scripted_upstream", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default="scripted", help="the first model that /v1/models lists")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--owned-by", default="scripted", help="what it says that it is; vllm: keeps pictures by name")
    args = parser.parse_args()
    keep_large_blocks()
    with contextlib.suppress(KeyboardInterrupt):
        upstream = ScriptedUpstream(
            model=args.model,
            max_model_len=args.max_model_len,
            owned_by=args.owned_by,
            pictures=PictureCache() if args.owned_by == "vllm" else None,
        )
        asyncio.run(_run(args.host, args.port, upstream))


if __name__ == "__main__":
    main()
