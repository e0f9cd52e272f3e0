"""The suspicious client, against a server that says just what a test wants."""

from __future__ import annotations

import json

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from opsin.testing.chat_client import Reply, Unanswered, post

ID = {"x-request-id": "chatcmpl-1"}
DELTA = "data: " + json.dumps({"choices": [{"delta": {"content": "red"}}]})
FINISH = "data: " + json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]})
ERROR = "data: " + json.dumps({"error": {"code": "engine_died", "message": "It died."}})
DONE = "data: [DONE]"
COMMENT = ": waiting"


async def answered(response: web.Response) -> Reply:
    async def handler(_: web.Request) -> web.Response:
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        return await post(http, str(server.make_url("")).rstrip("/"), b"{}")


async def streamed(*events: str) -> Reply:
    body = "".join(f"{event}\n\n" for event in events)
    return await answered(web.Response(text=body, headers=ID, content_type="text/event-stream"))


async def test_a_whole_answer_and_a_whole_error() -> None:
    completion = {"choices": [{"message": {"content": "red"}}]}
    assert await answered(web.json_response(completion, headers=ID)) == Reply(200, "chatcmpl-1", "red")
    error = {"error": {"code": "overloaded", "message": "Later."}}
    reply = await answered(web.json_response(error, status=503, headers=ID))
    assert reply == Reply(503, "chatcmpl-1", code="overloaded", message="Later.")


async def test_streams_end_in_done_or_in_an_error() -> None:
    reply = await streamed(COMMENT, DELTA, COMMENT, FINISH, DONE)
    assert (reply.text, reply.code, reply.comments, reply.deltas) == ("red", None, 2, ("red", ""))
    reply = await streamed(DELTA, ERROR)
    assert (reply.text, reply.code, reply.in_band) == ("red", "engine_died", True)


@pytest.mark.parametrize(
    "events", [(), (COMMENT,), (DELTA,), (DELTA, DONE, DONE), (ERROR, DELTA), (ERROR, DONE), (DONE, DELTA)]
)
async def test_any_other_end_is_no_answer(events: tuple[str, ...]) -> None:
    with pytest.raises(Unanswered):
        await streamed(*events)
