"""Public cases of section 2G: who may ask what."""

from __future__ import annotations

import ast
import inspect

import pytest
from pydantic import SecretStr
from starlette.routing import Route
from yarl import URL

from opsin.core.errors import Unauthorized
from opsin.gateway import auth
from opsin.gateway.auth import SINGLE_TENANT, Auth
from opsin.gateway.routes import OPEN_ROUTES, create_app
from opsin.tenants import store
from tests.corpus.bodies import text_body
from tests.integration.gateways import Served, gateway

KEY = "sk-right"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
ELSEWHERE = (
    *("/", "/invocations", "/v1/embeddings", "/v1/responses", "/v2/embed", "/inference/v1/generate", "/tokenize"),
    *("/v1", "/v1/", "/v1/chat/completions/", "//v1/models", "/V1/MODELS", "/v1/models/../models", "/v1%2fmodels"),
    *("/health/", "/health/../metrics", "/ready/..", "/health%2f..%2fmetrics", "/metrics/", "/docs/", "/favicon.ico"),
)
"""Routes of other servers, and other spellings of ours."""


async def status(served: Served, method: str, path: str, **headers: str) -> int:
    url = URL(f"{served.url}{path}", encoded=True)  # as it stands
    body = text_body() if method == "POST" else None
    async with served.http.request(method, url, headers=headers, data=body) as answer:
        return answer.status


def paths(served: Served) -> list[str]:
    """Every route of the application, with something in the place of its parameters."""
    routes = create_app(served.application.gateway).routes
    assert all(isinstance(route, Route) for route in routes), "a mount would hide routes from this test"
    return [route.path.replace("{model:path}", "fake") for route in routes if isinstance(route, Route)]


async def test_case_95_every_route_is_closed_but_those_named_open() -> None:
    assert set(OPEN_ROUTES) == {"/health", "/ready"}
    async with gateway(gateway={"api_key": KEY}) as served:
        assert len(paths(served)) >= 9
        for path in paths(served):
            for method in METHODS:
                refused = await status(served, method, path)
                if path in OPEN_ROUTES and method in ("GET", "HEAD"):
                    assert refused == 200, path
                else:
                    assert refused in (401, 405), (method, path)
                allowed = await status(served, method, path, authorization=f"Bearer {KEY}")
                assert (allowed == 405) == (refused == 405), (method, path)


async def test_case_95_there_is_no_other_way_in() -> None:
    async with gateway(gateway={"api_key": KEY}) as served:
        for path in ELSEWHERE:
            for method in ("GET", "POST"):
                assert await status(served, method, path) in (401, 404, 405), (method, path)


async def test_case_95_metrics_of_their_own_port_are_the_operators_choice() -> None:
    """Behind the key like all else, unless ``metrics_port`` is set."""
    async with gateway(gateway={"api_key": KEY}) as served:
        assert await status(served, "GET", "/metrics") == 401


WRONG_KEYS = ("", "sk-righ", "sk-right1", "SK-RIGHT", "sk-right\x00", "sk-wrong", "ſk-right", "a" * 100_000)


async def test_case_97_only_the_whole_key_opens() -> None:
    door = Auth([SecretStr(KEY)])
    for header in (f"Bearer {KEY}", f"bearer  {KEY} "):
        assert (await door.caller(header)).tenant == SINGLE_TENANT
    for header in (None, "", KEY, f"Basic {KEY}", "Bearer", *(f"Bearer {key}" for key in WRONG_KEYS)):
        with pytest.raises(Unauthorized) as caught:
            await door.caller(header)
        assert "sk-" not in caught.value.message


def test_case_97_keys_are_compared_as_digests_in_constant_time() -> None:
    """By reading: no comparison of the modules looks at a key but ``hmac.compare_digest``, and that at two digests."""
    trees = [ast.parse(inspect.getsource(module)) for module in (auth, store)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    compared = [ast.unparse(node) for node in nodes if isinstance(node, ast.Compare)]
    assert [one for one in compared if ("key" in one or "sent" in one) and " is " not in one] == []
    calls = [ast.unparse(node) for node in nodes if isinstance(node, ast.Call)]
    assert [one for one in calls if "compare_digest" in one] == [
        "hmac.compare_digest(_digest(sent), digest)",
        "hmac.compare_digest(digest, found.digest if found else _NOBODY)",
    ]
