from __future__ import annotations

import asyncio

from opsin.testing.scripted_origin import Mode, ScriptedOrigin, answer, endless_body, redirect, silence, trickled_body


async def asked(origin: ScriptedOrigin, path: str, num_bytes: int = -1) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", origin.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\nX-One: 1\r\n\r\n".encode())
    try:
        return await (reader.read() if num_bytes < 0 else reader.readexactly(num_bytes))
    finally:
        writer.close()


async def test_answers_are_the_bytes_that_were_scripted() -> None:
    modes: dict[str, Mode] = {
        "/a": answer(b"x", length="9", content_type="y"),
        "/b": redirect("/a", 307),
        "/c": endless_body(b"zz"),
        "/d": trickled_body(0.001),
    }
    origin = ScriptedOrigin(modes)
    async with origin.serve():
        assert await asked(origin, "/a?q") == b"HTTP/1.1 200 Scripted\r\nContent-Length: 9\r\ncontent-type: y\r\n\r\nx"
        assert (await asked(origin, "/b")).startswith(b"HTTP/1.1 307 Scripted\r\nContent-Length: 0\r\nlocation: /a\r\n")
        assert (await asked(origin, "/absent")).startswith(b"HTTP/1.1 404")
        assert (await asked(origin, "/c", 1000)).count(b"2\r\nzz\r\n") > 100
        assert (await asked(origin, "/d", 100)).endswith(b"\0\0\0")
        await origin.until_idle()
    assert origin.connections == 5
    assert origin.asked[0].line == "GET /a?q HTTP/1.1"
    assert origin.asked[0].values("x-one") == ["1"]


async def test_a_client_that_leaves_is_noticed() -> None:
    origin = ScriptedOrigin({"/": silence})
    async with origin.serve():
        task = asyncio.create_task(asked(origin, "/"))
        while not origin.asked:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.005)
        assert origin.open == 1
        task.cancel()
        await asyncio.wait({task})
        await origin.until_idle()
