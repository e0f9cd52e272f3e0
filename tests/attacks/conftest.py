"""What the attacks meet: two real gateways, one as it comes and one opened a little, with a trap beside each."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from opsin.testing.canary import Canary
from opsin.testing.scripted_dns import ScriptedDns
from opsin.testing.scripted_origin import ScriptedOrigin, answer, redirect
from tests.attacks.fetching import DNS, FOREIGN, HOME, OPEN, PNG
from tests.corpus.bodies import image_body
from tests.integration.gateways import Served, gateway

KEY = "valid-key"


@pytest.fixture(scope="session")
def canary() -> Iterator[Canary]:
    """On an address that no policy opens."""
    with Canary(FOREIGN) as listening:
        yield listening


@pytest.fixture(autouse=True)
def no_canary_hit(canary: Canary) -> Iterator[None]:
    """No attack of this directory may make a single connection to where it must not."""
    before = canary.hits
    yield
    assert canary.hits == before


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway under attack by somebody with a valid key."""

    served: Served
    origin: ScriptedOrigin
    dns: ScriptedDns

    async def ask(self, url: str, **fields: Any) -> tuple[int, dict[str, Any]]:
        """Status and JSON of a request with one picture."""
        headers = {"authorization": f"Bearer {KEY}"}
        route = f"{self.served.url}/v1/chat/completions"
        async with self.served.http.post(route, data=image_body(url, **fields), headers=headers) as response:
            if response.status != 200:
                assert response.headers["x-should-retry"] == "false"
            return response.status, await response.json()

    async def refusal(self, url: str) -> str:
        """The code of a request that has to be refused, after a look at what no answer may hold."""
        status, body = await self.ask(url)
        assert status == 400, body
        error = body["error"]
        assert error["param"] == "messages.0.content.0.image_url"
        for secret in (HOME, FOREIGN, "169.254", "img.example", "Traceback", "Errno", str(self.origin.port)):
            assert secret not in error["message"]
        return str(error["code"])


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def origin(canary: Canary) -> AsyncGenerator[ScriptedOrigin]:
    """A web server with a picture and with ways out of it."""
    modes = {"/a.png": answer(PNG), "/b c%23.png": answer(PNG)}
    origin = ScriptedOrigin(modes)
    async with origin.serve(HOME):
        modes["/to-canary"] = redirect(f"http://{FOREIGN}:{canary.port}/")
        modes["/to-canary-by-name"] = redirect(f"http://internal.example:{canary.port}/")
        modes["/to-picture"] = redirect("/a.png")
        yield origin


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def as_it_comes(origin: ScriptedOrigin) -> AsyncGenerator[Target]:
    """A gateway whose operator has set nothing but a key."""
    dns = ScriptedDns(DNS)
    async with gateway(gateway={"api_key": KEY}, media={"render_workers": 1}, lookup=dns) as served:
        yield Target(served, origin, dns)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def opened(origin: ScriptedOrigin, canary: Canary) -> AsyncGenerator[Target]:
    """A gateway that may fetch from the origin, also over redirects and ports, and from literal addresses."""
    dns = ScriptedDns(DNS)
    fetch = {**OPEN, "allow_ip_literals": True, "allow_public_https": True, "max_redirects": 3}
    fetch["allowed_ports"] = [origin.port, canary.port]
    media = {"render_workers": 1, "fetch": fetch}
    async with gateway(gateway={"api_key": KEY}, media=media, lookup=dns) as served:
        yield Target(served, origin, dns)
