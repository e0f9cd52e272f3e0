"""Large bodies arrive whole, on connections that go on afterwards, whatever loop and whatever encryption."""

from __future__ import annotations

import asyncio
import os
import ssl
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
import uvloop
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from opsin.core.errors import BodyTooSlow
from opsin.gateway.body import BodyLimits, read_body
from opsin.gateway.listener import Listener
from opsin.gateway.receive_into import MIN_BYTES, DirectHttp, receive_into
from tests.certificates import certificate

PATIENT = BodyLimits(64 * 2**20, "max_body_bytes", 20.0, 0)
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Server:
    """Answers each body with itself."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self.direct: list[bool] = []
        self.errors: list[Exception] = []
        self.failed = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.direct.append(receive_into(scope) is not None)
        try:
            response = Response(bytes(await read_body(request, self._limits)))
        except (BodyTooSlow, ClientDisconnect) as error:
            self.errors.append(error)
            self.failed.set()
            response = Response(b"", status_code=408)
        await response(scope, receive, send)


@asynccontextmanager
async def serving(server: Server, tls: tuple[Path, Path] | None = None) -> AsyncGenerator[int]:
    config = uvicorn.Config(server, http=DirectHttp, ws="none", port=0, lifespan="off", log_config=None)
    if tls is not None:
        config.ssl_certfile, config.ssl_keyfile = str(tls[0]), str(tls[1])
    config.timeout_graceful_shutdown = 1
    listener = Listener(config)
    running = asyncio.create_task(listener.serve())
    await listener.listening.wait()
    yield listener.port
    listener.should_exit = True
    await running


async def connect(port: int, tls: tuple[Path, Path] | None = None) -> Connection:
    context = ssl.create_default_context(cafile=str(tls[0])) if tls else None
    return await asyncio.open_connection("localhost" if tls else "127.0.0.1", port, ssl=context)


def request(body: bytes, num_bytes: int | None = None) -> bytes:
    length = len(body) if num_bytes is None else num_bytes
    return b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n%b" % (length, body)


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    (length,) = (int(line.partition(b":")[2]) for line in head if line.startswith(b"content-length"))
    return int(head[0].split()[1]), await reader.readexactly(length)


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], test: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(test, 30))


@LOOPS
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_bodies_of_any_length_and_the_requests_behind_them(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path, *, encrypted: bool
) -> None:
    tls = certificate(tmp_path / "tls") if encrypted else None
    lengths = (0, 5, MIN_BYTES - 1, MIN_BYTES, 3_300_001, 17 * 2**20, 7)

    async def test() -> None:
        server = Server(PATIENT)
        async with serving(server, tls) as port:
            reader, writer = await connect(port, tls)
            bodies = [os.urandom(length) for length in lengths]
            writer.write(b"".join(map(request, bodies)))  # one behind the other, without waiting
            for body in bodies:
                assert await answer(reader) == (200, body)
            writer.close()
        assert server.direct == [length >= MIN_BYTES for length in lengths]

    run(new_loop, test())


@LOOPS
def test_a_client_that_leaves_in_the_middle(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        server = Server(PATIENT)
        async with serving(server) as port:
            _, writer = await connect(port)
            writer.write(request(bytes(MIN_BYTES), 2 * MIN_BYTES))
            await writer.drain()
            writer.close()
            await server.failed.wait()
        assert [type(error) for error in server.errors] == [ClientDisconnect]

    run(new_loop, test())


@LOOPS
def test_the_rest_of_a_body_that_was_given_up_is_no_request(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Nothing of a body may ever be taken for the next request, and the connection goes on behind it."""

    async def test() -> None:
        server = Server(BodyLimits(PATIENT.max_bytes, PATIENT.setting, 0.5, 0))
        async with serving(server) as port:
            reader, writer = await connect(port)
            smuggled = request(b"smuggled") * 1000
            writer.write(request(bytes(2 * MIN_BYTES), 2 * MIN_BYTES + len(smuggled)))
            assert await answer(reader) == (408, b"")
            writer.write(smuggled + request(b"behind it"))
            assert await answer(reader) == (200, b"behind it")
            writer.close()
        assert [type(error) for error in server.errors] == [BodyTooSlow]
        assert len(server.direct) == 2

    run(new_loop, test())


@LOOPS
def test_a_client_that_waits_to_be_asked_for_its_body(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        async with serving(Server(PATIENT)) as port:
            reader, writer = await connect(port)
            body = os.urandom(2 * MIN_BYTES)
            head = request(b"", len(body)).replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n")
            writer.write(head)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
            writer.write(body)
            assert await answer(reader) == (200, body)
            writer.close()

    run(new_loop, test())


@LOOPS
@pytest.mark.parametrize("blanks", [b" ", b"\t", b" \t "])
def test_a_length_with_blanks_behind_it(new_loop: Callable[[], asyncio.AbstractEventLoop], blanks: bytes) -> None:
    """HTTP allows them, and the parser leaves them in the header."""

    async def test() -> None:
        async with serving(Server(PATIENT)) as port:
            reader, writer = await connect(port)
            body = os.urandom(2 * MIN_BYTES)
            writer.write(request(body).replace(b"\r\n\r\n", blanks + b"\r\n\r\n", 1) + request(b"behind it"))
            assert await answer(reader) == (200, body)
            assert await answer(reader) == (200, b"behind it")
            writer.close()

    run(new_loop, test())


def test_memory_is_taken_for_what_comes_and_not_for_what_is_announced() -> None:
    async def test() -> None:
        server = Server(PATIENT)
        async with serving(server) as port:
            reader, writer = await connect(port)
            body = os.urandom(33 * 2**20)
            tracemalloc.start()
            writer.write(request(body[:1000], len(body)))
            await asyncio.sleep(0.2)
            taken, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            writer.write(body[1000:])
            assert await answer(reader) == (200, body)
            writer.close()
        assert taken < 2**20

    run(asyncio.new_event_loop, test())
