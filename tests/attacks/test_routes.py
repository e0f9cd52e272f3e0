"""One policy on every way in: cases 6 and 28. A new route that takes a body has to be entered here, or this fails."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.routing import Route

from opsin.core.errors import MediaError
from opsin.core.ids import new_request_id
from opsin.gateway.chat import RawRequest, collect
from opsin.gateway.routes import create_app
from opsin.llm.prompts import chat_request, read_prompt
from opsin.llm.sampling import SamplingParams
from opsin.media.config import MediaConfig
from opsin.media.loader import MediaLoader
from opsin.protocol.request import ChatCompletionRequest
from opsin.testing.canary import Canary
from tests.attacks.conftest import KEY, Target
from tests.attacks.fetching import FOREIGN
from tests.corpus.bodies import image_body

pytestmark = pytest.mark.asyncio(loop_scope="session")

WITH_PICTURES = {"/v1/chat/completions": image_body, "/v1/tokens": image_body}
"""By path, how a picture is put into a body."""
WITHOUT_PICTURES = {"/v1/files", "/v1/files/{id}", "/v1/media/{sha256}", "/v1/tenants/{tenant}/media"}
"""Uploads, which name no address, and deletions."""


def writable(target: Target) -> set[str]:
    """Every route that takes a body."""
    routes = create_app(target.served.application.gateway).routes
    paths = {route.path for route in routes if isinstance(route, Route) and (route.methods or set()) - {"GET", "HEAD"}}
    assert len(routes) > len(paths) > 0
    return paths


async def test_case_06_and_28_every_route_shares_the_policy(
    as_it_comes: Target, opened: Target, canary: Canary
) -> None:
    for target in (as_it_comes, opened):
        assert writable(target) == WITH_PICTURES.keys() | WITHOUT_PICTURES
        for path, body_with in WITH_PICTURES.items():
            for stream in (False, True):
                body = {**json.loads(body_with(f"http://{FOREIGN}:{canary.port}/x.png")), "stream": stream}
                headers = {"authorization": f"Bearer {KEY}"}
                async with target.served.http.post(target.served.url + path, json=body, headers=headers) as response:
                    assert response.status == 400, path
                    assert (await response.json())["error"]["code"] == "media_url_blocked", path


@pytest.mark.parametrize(
    "path", ["/invocations", "/tokenize", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/batches", "/pooling"]
)
async def test_case_28_routes_of_other_servers_are_not_there(as_it_comes: Target, canary: Canary, path: str) -> None:
    body = image_body(f"http://{FOREIGN}:{canary.port}/x.png")
    async with as_it_comes.served.http.post(as_it_comes.served.url + path, data=body) as response:
        assert response.status == 404


async def test_case_28_a_picture_that_is_hidden_in_a_large_body(as_it_comes: Target, canary: Canary) -> None:
    """A large body goes another way: a worker takes it apart first."""
    text = {"type": "text", "text": "x" * 300_000}
    picture = {"type": "image_url", "image_url": {"url": f"http://{FOREIGN}:{canary.port}/x.png"}}
    headers = {"authorization": f"Bearer {KEY}"}
    body = {"messages": [{"role": "user", "content": [text, picture]}]}
    route = f"{as_it_comes.served.url}/v1/chat/completions"
    async with as_it_comes.served.http.post(route, json=body, headers=headers) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (400, "media_url_blocked")


async def test_case_06_from_python_too(opened: Target, canary: Canary) -> None:
    """``LLM.chat`` and ``LLM.generate`` make these requests for the same service."""
    url, loader = f"http://{FOREIGN}:{canary.port}/x.png", MediaLoader(MediaConfig())
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "image_pil", "image_pil": url}, {"type": "text", "text": "?"}]}
    ]
    raw = read_prompt({"prompt": "What is it?", "multi_modal_data": {"image": url}})
    requests: list[ChatCompletionRequest | RawRequest] = [
        chat_request(messages, SamplingParams(), loader),
        raw.to_request(SamplingParams(), loader),
    ]
    for request in requests:
        chat = opened.served.application.gateway.models.default.chat
        with pytest.raises(MediaError) as caught:
            await collect(chat.answer(request, request_id=new_request_id(), tenant="python"))
        assert caught.value.code == "media_url_blocked"
