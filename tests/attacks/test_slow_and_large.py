"""Servers that send too much, too little, too slowly or nonsense: public cases 58 to 60 and 68, and section 4.5."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import sys
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from opsin.core.errors import MediaError, Overloaded
from opsin.testing.canary import Canary
from opsin.testing.scripted_dns import ScriptedDns
from opsin.testing.scripted_origin import (
    Mode,
    ScriptedOrigin,
    answer,
    endless_body,
    raw,
    redirect,
    silence,
    stalled,
    trickled,
    trickled_body,
    trickled_headers,
)
from tests.attacks.fetching import DNS, HOME, OPEN, PNG, Clock, fetch, fetcher, refused
from tests.certificates import certificate
from tests.tries import tried

ZEROS = b"\0" * (50 * 2**20)
BOMB = gzip.compress(ZEROS, 1)


@asynccontextmanager
async def serving(mode: Mode, tls: ssl.SSLContext | None = None) -> AsyncGenerator[ScriptedOrigin]:
    """A server with this one answer; every connection to it has to be over at the end."""
    origin = ScriptedOrigin({"/": mode})
    async with origin.serve(HOME, tls):
        yield origin
        await origin.until_idle()


async def code_of(mode: Mode, **fields: Any) -> str:
    """How a fetch of this answer fails."""
    async with serving(mode) as origin:
        return (await refused(fetcher(origin.port, **fields), f"http://img.example:{origin.port}/")).code


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BROKEN: dict[str, bytes] = {
    "nothing": b"",
    "no HTTP": b"\x89PNG\r\n\x1a\n" * 100,
    "HTTP/0.9": PNG,
    "half a status line": b"HTTP/1.1 2",
    "no status": b"HTTP/1.1 abc\r\n\r\n",
    "a header without a colon": HEAD + b"nonsense\r\n\r\n",
    "a NUL in a header": HEAD + b"a: \0\r\n\r\n",
    "headers that break off": HEAD + b"Content-Length: 5\r\n",
    "a length below zero": HEAD + b"Content-Length: -5\r\n\r\n12345",
    "a length that is no number": HEAD + b"Content-Length: 0x5\r\n\r\n12345",
    "an enormous length": HEAD + b"Content-Length: 99999999999999999999999999\r\n\r\n12345",
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n123456",
    "a length and chunks": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a body that breaks off": HEAD + b"Content-Length: 100\r\n\r\n12345",
    "chunks that break off": CHUNKED + b"5\r\n12345\r\n",
    "a chunk below zero": CHUNKED + b"-5\r\n12345\r\n0\r\n\r\n",
    "an enormous chunk": CHUNKED + b"FFFFFFFFFFFFFFFFFF\r\n12345",
    "a chunk that is no number": CHUNKED + b"zz\r\n12345\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", BROKEN)
async def test_an_answer_that_is_no_whole_http(name: str) -> None:
    assert await code_of(raw(BROKEN[name])) == "media_url_unreachable"


@pytest.mark.parametrize("status", [100, 101, 204, 206, 300, 304, 400, 401, 403, 404, 410, 429, 500, 503, 999])
async def test_every_status_but_200_is_refused_and_never_passed_on(status: int) -> None:
    """Ours is 400 whatever theirs is: the official clients would retry a 429 or a 503."""
    body = b"" if status in (204, 304) else PNG
    code = await code_of(answer(body, status=status, retry_after="1"))
    assert code == ("media_url_unreachable" if status == 100 else "media_url_status")


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async with serving(raw(HEAD + b"\r\n" + PNG)) as origin:
        assert await fetch(fetcher(origin.port), f"http://img.example:{origin.port}/") == PNG


async def test_a_length_that_is_too_short_ends_the_picture_there() -> None:
    """Or the answer is refused, where the rest comes with it."""
    async with serving(answer(PNG, length="20")) as origin:
        try:
            assert await fetch(fetcher(origin.port), f"http://img.example:{origin.port}/") == PNG[:20]
        except MediaError as error:
            assert error.code == "media_url_unreachable"


@pytest.mark.parametrize("kind", ["text/html", "application/octet-stream", "image/jpeg", "", "nonsense"])
async def test_the_declared_type_counts_for_nothing(kind: str) -> None:
    async with serving(answer(PNG, content_type=kind)) as origin:
        assert await fetch(fetcher(origin.port), f"http://img.example:{origin.port}/") == PNG


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "x-gzip", "deflate", "br", "zstd", "identity, gzip", "unheard-of"])
async def test_case_58_a_compressed_body(coding: str) -> None:
    assert await code_of(answer(gzip.compress(PNG), content_encoding=coding)) == "media_url_encoding"


async def test_case_58_a_bomb_in_a_redirect_is_not_read() -> None:
    async with serving(answer(BOMB, status=302, location="/", content_encoding="gzip")) as origin:
        error = await refused(fetcher(origin.port, max_redirects=1), f"http://img.example:{origin.port}/")
    assert error.code == "media_url_redirect"


async def test_case_59_compressed_twice() -> None:
    assert await code_of(answer(gzip.compress(BOMB), content_encoding="gzip, gzip")) == ("media_url_encoding")


async def test_case_59_compressed_as_a_transfer() -> None:
    assert await code_of(raw(HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")) == "media_url_encoding"


async def test_an_honest_identity_is_none() -> None:
    async with serving(answer(PNG, content_encoding="identity")) as origin:
        assert await fetch(fetcher(origin.port), f"http://img.example:{origin.port}/") == PNG


NO_LOOKUP: dict[str, Any] = {"allow_ip_literals": True, "allow_public_https": True}
"""For a URL with an address: on a busy machine the thread of a lookup is late, before the phase that is measured."""

TIMED: dict[str, tuple[Mode, dict[str, Any], float]] = {
    "silence": (silence, {"first_byte_timeout_s": 0.4}, 0.4),
    "trickled headers": (trickled_headers(0.02), {"first_byte_timeout_s": 0.4}, 0.4),
    "trickled body": (trickled_body(0.02), {"total_timeout_s": 0.5, "min_bytes_per_s": 0}, 0.5),
    "a body that stops": (stalled(PNG[:50], len(PNG)), {"total_timeout_s": 0.5}, 0.5),
    "a body below the least rate": (trickled_body(0.02), {"min_bytes_per_s": 4096}, 1.0),
    "trickled chunks": (trickled(b"1\r\na\r\n", 0.01, whole=CHUNKED), {"total_timeout_s": 0.5}, 0.5),
    "an endless chunk extension": (
        trickled(b"x" * 512, 0.0005, whole=CHUNKED + b"1;"),
        {"total_timeout_s": 0.5},
        0.5,
    ),
}


@pytest.mark.timing
@pytest.mark.parametrize("name", TIMED)
@tried
async def test_case_60_a_deadline_is_a_wall_clock(name: str) -> None:
    mode, limits, deadline_s = TIMED[name]
    async with serving(mode) as origin:
        guarded = fetcher(origin.port, **NO_LOOKUP, **limits)
        async with Clock() as clock:
            error = await refused(guarded, f"http://{HOME}:{origin.port}/")
            await clock.check(deadline_s)
    assert error.code == "media_url_timeout"


INTERIM = b"HTTP/1.1 103 Early Hints\r\n\r\n"


async def test_case_60_a_flood_of_interim_answers_ends_by_number() -> None:
    async with serving(trickled(INTERIM, 0.0, whole=INTERIM * 10_000)) as origin:
        error = await refused(fetcher(origin.port), f"http://img.example:{origin.port}/")
    assert error.code == "media_url_unreachable"  # and not a timeout


async def test_a_few_interim_answers_are_skipped() -> None:
    async with serving(raw(INTERIM * 8 + HEAD + b"Content-Length: %d\r\n\r\n" % len(PNG) + PNG)) as origin:
        assert await fetch(fetcher(origin.port), f"http://img.example:{origin.port}/") == PNG


@pytest.mark.timing
@tried
async def test_case_60_a_name_that_hangs() -> None:
    dns = ScriptedDns(DNS, hanging=frozenset({"img.example"}))
    guarded = fetcher(80, lookup=dns, dns_timeout_s=0.3)
    async with Clock() as clock:
        error = await refused(guarded, "http://img.example:80/")
        await clock.check(0.3)
    dns.release()
    assert error.code == "media_url_timeout"


@pytest.mark.timing
@tried
async def test_case_60_a_listener_that_never_speaks_tls() -> None:
    with Canary(HOME) as silent:
        guarded = fetcher(silent.port, connect_timeout_s=0.3, **NO_LOOKUP)
        async with Clock() as clock:
            error = await refused(guarded, f"https://{HOME}:{silent.port}/")
            await clock.check(0.3)
        assert silent.hits == 1
    assert error.code == "media_url_timeout"


@pytest.mark.timing
@tried
async def test_case_60_a_listener_that_never_accepts() -> None:
    with ExitStack() as held:
        full = held.enter_context(socket.socket())
        full.bind((HOME, 0))
        full.listen(0)
        for _ in range(3):  # what the kernel accepts by itself
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        port = full.getsockname()[1]
        guarded = fetcher(port, connect_timeout_s=0.3, **NO_LOOKUP)
        async with Clock() as clock:
            error = await refused(guarded, f"http://{HOME}:{port}/")
            await clock.check(0.3)
    assert error.code == "media_url_timeout"


@pytest.mark.timing
@tried
async def test_case_60_redirects_share_one_clock() -> None:
    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        await redirect("/")(writer)

    async with serving(slow) as origin:
        guarded = fetcher(origin.port, max_redirects=3, total_timeout_s=0.5)
        async with Clock() as clock:
            error = await refused(guarded, f"http://img.example:{origin.port}/")
            await clock.check(0.5)
    assert error.code == "media_url_timeout"  # and not one redirect too many, which four clocks would come to


async def test_case_60_waiting_for_a_place_has_an_end_too() -> None:
    async with serving(silence) as origin:
        guarded = fetcher(origin.port, max_fetches=2, total_timeout_s=0.3, first_byte_timeout_s=20)
        url = f"http://img.example:{origin.port}/"
        outcomes = await asyncio.gather(*(fetch(guarded, url) for _ in range(8)), return_exceptions=True)
    assert origin.most_open <= 4  # the server may see the end of two only after the next two have come
    assert {type(outcome) for outcome in outcomes} == {MediaError, Overloaded}


HEADERS: dict[str, bytes] = {
    "one of a megabyte": HEAD + b"a: " + b"b" * 2**20 + b"\r\n\r\n",
    "a name of a megabyte": HEAD + b"a" * 2**20 + b": b\r\n\r\n",
    "a status line of a megabyte": b"HTTP/1.1 200 " + b"O" * 2**20 + b"\r\n\r\n",
    "one more than there may be": HEAD + b"Content-Length: 0\r\n" + b"a: b\r\n" * 64 + b"\r\n",
    "a thousand": HEAD + b"".join(b"h%d: x\r\n" % number for number in range(1000)) + b"\r\n",
    "ten thousand cookies": HEAD + b"Set-Cookie: a=b\r\n" * 10_000 + b"\r\n",
}


@pytest.mark.parametrize("name", HEADERS)
async def test_case_68_headers_have_limits(name: str) -> None:
    assert await code_of(raw(HEADERS[name])) == "media_url_unreachable"


async def test_case_68_headers_without_end() -> None:
    endless = trickled(b"a: b\r\n" * 100, 0, whole=HEAD)
    assert await code_of(endless) == "media_url_unreachable"


@asynccontextmanager
async def https(folder: Path, mode: Mode) -> AsyncGenerator[tuple[ScriptedOrigin, list[str], Path]]:
    """A server with a certificate for ``localhost``, the names that clients asked it for, and whom to trust."""
    chain, key = certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    names: list[str] = []
    context.sni_callback = lambda _, name, __: names.append(name)
    async with serving(mode, context) as origin:
        yield origin, names, chain


DNS_TLS = ScriptedDns({"localhost": [[HOME]], "img.example": [[HOME]]})


async def test_tls_keeps_the_name_of_the_url(tmp_path: Path) -> None:
    async with https(tmp_path, answer(PNG)) as (origin, names, chain):
        domains = [*OPEN["allowed_media_domains"], "localhost"]
        guarded = fetcher(origin.port, lookup=DNS_TLS, ca_file=chain, allowed_media_domains=domains)
        assert await fetch(guarded, f"https://localhost:{origin.port}/") == PNG
        wrong_name = await refused(guarded, f"https://img.example:{origin.port}/")
        untrusting = fetcher(origin.port, lookup=DNS_TLS, allowed_media_domains=domains)
        unknown = await refused(untrusting, f"https://localhost:{origin.port}/")
    assert wrong_name.code == unknown.code == "media_url_unreachable"
    assert names == ["localhost", "img.example", "localhost"]
    assert len(origin.asked) == 1  # nothing is sent before the certificate is right


async def test_no_redirect_from_https_to_http(tmp_path: Path) -> None:
    with Canary(HOME) as plain:
        async with https(tmp_path, redirect(f"http://localhost:{plain.port}/")) as (origin, _, chain):
            domains = [*OPEN["allowed_media_domains"], "localhost"]
            fields: dict[str, Any] = {"ca_file": chain, "allowed_media_domains": domains, "max_redirects": 1}
            guarded = fetcher(origin.port, plain.port, lookup=DNS_TLS, **fields)
            error = await refused(guarded, f"https://localhost:{origin.port}/")
        assert plain.hits == 0
    assert error.code == "media_url_redirect"


@pytest.mark.parametrize("mode", [silence, trickled_headers(0.01), trickled_body(0.01), endless_body()])
async def test_cancelling_leaves_nothing_behind(mode: Mode) -> None:
    before = asyncio.all_tasks()
    async with serving(mode) as origin:
        guarded = fetcher(origin.port, max_fetches=1, min_bytes_per_s=0, max_image_bytes=2**40)
        url = f"http://img.example:{origin.port}/"
        for _ in range(3):  # the place of the one before is free again
            fetching = asyncio.create_task(fetch(guarded, url, budget=2**40))
            async with asyncio.timeout(30):
                while not origin.open:  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            fetching.cancel()
            await asyncio.wait({fetching})
            assert fetching.cancelled()
            await origin.until_idle()
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}


MEASURED = """
import asyncio, json, re, sys
from pathlib import Path
from opsin.core.errors import MediaError
from tests.attacks.fetching import fetch, fetcher

def peak() -> int:
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

async def main() -> None:
    port = int(sys.argv[1])
    guarded = fetcher(port)
    async def outcome(path: str) -> str | int:
        try:
            return len(await fetch(guarded, f"http://img.example:{port}{path}"))
        except MediaError as error:
            return error.code
    assert await outcome("/warm-up") == "media_url_status"
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what it is now
    before = peak()
    print(json.dumps({"outcome": await outcome("/"), "growth": peak() - before}))

asyncio.run(main())
"""
"""In a process of its own, whose largest size the kernel tells. Not by ``getrusage``, where a process begins with its
parent's size."""

CAP = 10 * 2**20
SIZED: dict[str, tuple[Mode, str | int]] = {
    "endless chunks": (endless_body(), "media_too_large"),
    "a body without an end": (endless_body(chunked=False), "media_too_large"),
    "gzip": (answer(BOMB, content_encoding="gzip"), "media_url_encoding"),
    "gzip, gzip": (answer(gzip.compress(BOMB), content_encoding="gzip, gzip"), "media_url_encoding"),
    "a length that is too large": (answer(ZEROS, length=str(2**40)), "media_too_large"),
    "one byte too many": (answer(b"\xff" * (CAP + 1)), "media_too_large"),
    "exactly the limit": (answer(b"\xff" * CAP), CAP),
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize("name", SIZED)
async def test_memory_grows_by_the_cap_at_most(name: str) -> None:
    mode, outcome = SIZED[name]
    async with serving(mode) as origin:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", MEASURED, str(origin.port), stdout=asyncio.subprocess.PIPE
        )
        told, _ = await process.communicate()
    measured = json.loads(told)
    assert measured["outcome"] == outcome
    assert measured["growth"] <= 1.2 * CAP
    if name in ("endless chunks", "exactly the limit"):
        assert measured["growth"] > 0.9 * CAP  # or nothing was measured
