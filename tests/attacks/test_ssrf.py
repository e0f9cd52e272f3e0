"""Server-side request forgery: section 2A of the public cases, one test for each number.

Numbers that are missing are of cases that need what opsin has not.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from opsin.cli.main import main
from opsin.core.errors import ConfigError, MediaError
from opsin.core.ids import new_request_id
from opsin.gateway.chat import collect
from opsin.llm.prompts import chat_request
from opsin.llm.sampling import SamplingParams
from opsin.media.config import MediaConfig
from opsin.media.loader import MediaLoader
from opsin.settings import load_settings
from opsin.testing.canary import Canary
from opsin.testing.scripted_dns import ScriptedDns
from opsin.testing.scripted_origin import ScriptedOrigin, answer, endless_body, redirect
from opsin.testing.scripted_upstream import ScriptedUpstream
from opsin.testing.scripted_upstream import serve as scripted
from tests.attacks.conftest import KEY, Target
from tests.attacks.dials import dialled
from tests.attacks.fetching import DNS, FOREIGN, HOME, OPEN, PNG, fetch, fetcher, refused
from tests.certificates import certificate
from tests.integration.gateways import gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADDRESSES = (
    "224.0.0.1", "239.255.255.250", "[ff02::1]", "[ff0e::1]", "[::127.0.0.2]", "[64:ff9b::169.254.169.254]",
    "[64:ff9b::7f00:2]", "[64:ff9b:1::a00:1]", "[2002:7f00:2::]", "[fec0::1]", "192.0.0.192", "168.63.129.16",
    "100.64.0.1", "[::ffff:127.0.0.2]", "[::ffff:0:127.0.0.2]", "[2001:0:4136:e378:8000:63bf:3fff:fdd2]",
    "[fd00:ec2::254]", "[fe80::1]", "0.0.0.0", "[::]", "240.0.0.1", "198.18.0.1", "169.254.169.254", "10.0.0.1",
    "127.0.0.2", "[::1]", "192.168.0.1", "172.16.0.1", "[2001:db8::1]", "[2001:470::5efe:7f00:2]",
)  # fmt: skip
"""Section 4.1 with the closed 127.0.0.2 for 127.0.0.1, and a few of their neighbours."""


async def test_case_01_a_url_to_loopback(as_it_comes: Target, opened: Target, canary: Canary) -> None:
    for target in (as_it_comes, opened):
        assert await target.refusal(f"http://{FOREIGN}:{canary.port}/x.png") == "media_url_blocked"


async def test_case_02_a_backslash_between_two_hosts(opened: Target, canary: Canary) -> None:
    url = f"http://img.example\\@{FOREIGN}:{canary.port}/"
    assert await opened.refusal(url) == "invalid_media_url"


@pytest.mark.parametrize(
    "url",
    [
        "http://{canary}\\@img.example/",
        "http://img.example\\@{canary}/",
        "http://img.example\n@{canary}/",
        "http://img.example\t@{canary}/",
        "http://img.example@{canary}/",
        "http://img.example:80@{canary}/",
        "http://img.example#@{canary}/",
        "http://img.example?@{canary}/",
        "http://img.example%2f@{canary}/",
        "http://img.example%00.{canary}/",
        "http://img.example;@{canary}/",
        "http:{canary}/",
        "http:///{canary}/",
        "//{canary}/",
        " http://{canary}/",
        "http://{canary} /",
        "httpx://{canary}/",
        "http\u017f://{canary}/",
        "http://[{canary}]/",
        "http://img.example\r\nHost: {canary}/",
    ],
)
async def test_case_03_no_two_parsers(opened: Target, canary: Canary, url: str) -> None:
    """Whatever these are to a parser, nothing is dialled but what the one parse says: img.example, on no such port."""
    with dialled() as addresses:
        code = await opened.refusal(url.format(canary=f"{FOREIGN}:{canary.port}"))
    assert code in ("invalid_media_url", "media_url_unreachable")
    assert set(addresses) - {HOME} == set()


async def test_case_03_what_was_parsed_is_what_is_sent(opened: Target) -> None:
    port = opened.origin.port
    assert (await opened.ask(f"HTTP://IMG.Example.:{port}/b c%23.png".replace(" ", "%20") + "?q=ä&r=%2F#f"))[0] == 400
    asked = opened.origin.asked[-1]
    assert asked.line == "GET /b%20c%23.png?q=%C3%A4&r=%2F HTTP/1.1"
    assert asked.values("host") == [f"img.example:{port}"]


async def test_case_04_metadata_with_no_configuration_at_all(as_it_comes: Target) -> None:
    with dialled() as addresses:
        assert await as_it_comes.refusal("http://169.254.169.254/latest/meta-data/") == "media_url_blocked"
    assert set(addresses) <= {HOME}


@pytest.mark.parametrize("path", ["/to-canary", "/to-canary-by-name"])
async def test_case_05_a_redirect_to_loopback(opened: Target, path: str) -> None:
    assert await opened.refusal(f"http://img.example:{opened.origin.port}{path}") == "media_url_blocked"


async def test_case_05_every_part_of_a_hop_is_judged_again(origin: ScriptedOrigin, canary: Canary) -> None:
    locations = {
        "https": (f"https://img.example:{origin.port}/a.png", "media_url_timeout"),  # no TLS there
        "scheme": ("ftp://img.example/a.png", "invalid_media_url"),
        "file": ("file:///etc/passwd", "invalid_media_url"),
        "data": ("data:image/png;base64,iVBORw0KGgo=", "invalid_media_url"),
        "host": (f"http://other.example:{origin.port}/a.png", "media_url_blocked"),
        "port": ("http://img.example:1/a.png", "media_url_blocked"),
        "user": (f"http://u:p@img.example:{origin.port}/a.png", "invalid_media_url"),
        "address": (f"http://{FOREIGN}:{canary.port}/", "media_url_blocked"),
        "name": (f"http://internal.example:{canary.port}/", "media_url_blocked"),
        "none": ("", "media_url_redirect"),
    }
    hops = ScriptedOrigin({f"/{name}": redirect(location) for name, (location, _) in locations.items()})
    async with hops.serve(HOME):
        guarded = fetcher(origin.port, canary.port, hops.port, max_redirects=3, connect_timeout_s=0.3)
        for name, (_, code) in locations.items():
            assert (await refused(guarded, f"http://img.example:{hops.port}/{name}")).code == code, name


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_case_05_a_redirect_to_every_address(canary: Canary, status: int) -> None:
    modes = {
        f"/{number}": redirect(f"http://{address}:{canary.port}/", status) for number, address in enumerate(ADDRESSES)
    }
    hops = ScriptedOrigin(modes)
    async with hops.serve(HOME):
        guarded = fetcher(canary.port, hops.port, max_redirects=3, allow_ip_literals=True, allow_public_https=True)
        with dialled() as addresses:
            for path in modes:
                error = await refused(guarded, f"http://img.example:{hops.port}{path}")
                assert error.code == "media_url_blocked", ADDRESSES[int(path[1:])]
    assert set(addresses) == {HOME}


async def test_case_07_no_redirect_is_followed_by_default(as_it_comes: Target, origin: ScriptedOrigin) -> None:
    """And the same through every front end: streamed, not streamed, and from Python."""
    before = len(origin.asked)
    url = f"http://img.example:{origin.port}/to-picture"
    fields = {**OPEN, "allowed_ports": [origin.port]}
    async with gateway(media={"fetch": fields, "render_workers": 1}, lookup=ScriptedDns(DNS)) as served:
        picture = {"type": "image_url", "image_url": {"url": url}}
        messages = [{"role": "user", "content": [picture]}]
        for stream in (False, True):
            status, body = await served.chat(messages=messages, stream=stream)
            assert (status, body["error"]["code"]) == (400, "media_url_redirect")
        request = chat_request(messages, SamplingParams(), MediaLoader(MediaConfig()))
        with pytest.raises(MediaError) as caught:
            chat = served.application.gateway.models.default.chat
            await collect(chat.answer(request, request_id=new_request_id(), tenant="python"))
        assert caught.value.code == "media_url_redirect"
    assert [asked.line for asked in origin.asked[before:]] == ["GET /to-picture HTTP/1.1"] * 3


async def test_case_07_a_redirect_that_is_not_followed_is_not_looked_at(origin: ScriptedOrigin, canary: Canary) -> None:
    guarded = fetcher(origin.port, canary.port)
    error = await refused(guarded, f"http://img.example:{origin.port}/to-canary")
    assert error.code == "media_url_redirect"


async def test_case_08_a_chain_that_ends_inside(canary: Canary) -> None:
    modes = {f"/{n}": redirect(f"/{n + 1}") for n in range(6)}
    modes["/2"] = redirect(f"http://internal.example:{canary.port}/")
    modes["/4"] = answer(PNG)
    hops = ScriptedOrigin(modes)
    async with hops.serve(HOME):
        guarded = fetcher(hops.port, canary.port, max_redirects=3)
        assert (await refused(guarded, f"http://img.example:{hops.port}/0")).code == "media_url_blocked"
        assert await fetch(guarded, f"http://img.example:{hops.port}/3") == PNG
        modes["/2"] = redirect("/3")
        assert (await refused(guarded, f"http://img.example:{hops.port}/0")).code == "media_url_redirect"


async def test_case_09_no_check_at_all(as_it_comes: Target, opened: Target, canary: Canary) -> None:
    """Schemes, addresses, redirects and sizes in one go; sizes have tests of their own beside this file."""
    for scheme in ("ftp", "gopher", "dict", "ldap", "tftp", "jar", "netdoc", "unix", "ws", "javascript", "blob"):
        assert await opened.refusal(f"{scheme}://{FOREIGN}:{canary.port}/") == "invalid_media_url"
        assert await as_it_comes.refusal(f"{scheme}://{FOREIGN}:{canary.port}/") == "invalid_media_url"


async def test_case_10_a_validator_and_a_client_that_disagree(opened: Target, canary: Canary) -> None:
    assert await opened.refusal(f"http://{FOREIGN}\\@1.1.1.1:{canary.port}/") == "invalid_media_url"


async def test_case_12_an_engine_gets_bytes_and_never_a_url(origin: ScriptedOrigin) -> None:
    upstream = ScriptedUpstream()
    fields = {**OPEN, "allowed_ports": [origin.port]}
    async with (
        scripted(upstream) as url,
        gateway(engine="upstream", upstream={"url": url}, media={"fetch": fields}, lookup=ScriptedDns(DNS)) as served,
    ):
        picture = {"type": "image_url", "image_url": {"url": f"http://img.example:{origin.port}/a.png"}}
        status, _ = await served.chat(messages=[{"role": "user", "content": [picture]}])
        assert status == 200
    body = upstream.received[-1].body.decode()
    assert "data:image/png;base64," in body
    assert "img.example" not in body


@pytest.mark.parametrize(
    "host",
    ["2130706433", "2130706434", "0x7f000002", "0x7f.2", "0177.0.0.2", "017700000002", "127.2", "127.0.2", "0", "00"],
)
async def test_case_13_numbers_that_resolvers_take_for_addresses(opened: Target, canary: Canary, host: str) -> None:
    assert await opened.refusal(f"http://{host}:{canary.port}/") == "invalid_media_url"


async def test_case_15_counting_tokens_fetches_nothing(canary: Canary, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://{FOREIGN}:{canary.port}/x.png"
    assert await asyncio.to_thread(main, ["tokens", url]) == 1
    assert await asyncio.to_thread(main, ["ask", url, "What is it?"]) == 1
    told = capsys.readouterr().err
    assert told.count("--allowed-media-domains") == 2
    assert FOREIGN not in told


async def test_case_16_a_name_that_is_rebound(origin: ScriptedOrigin, canary: Canary) -> None:
    dns = ScriptedDns({"rebind.example": [[HOME], [FOREIGN]]})
    guarded = fetcher(origin.port, lookup=dns)
    url = f"http://rebind.example:{origin.port}/a.png"
    assert await fetch(guarded, url) == PNG
    assert dns.asked == ["rebind.example"]  # once: what was judged is what was dialled
    assert origin.asked[-1].values("host") == [f"rebind.example:{origin.port}"]
    assert (await refused(guarded, url)).code == "media_url_blocked"


async def test_case_16_between_two_hops(canary: Canary) -> None:
    dns = ScriptedDns({"rebind.example": [[HOME], [FOREIGN]]})
    hops = ScriptedOrigin({"/": redirect(f"http://rebind.example:{canary.port}/")})
    async with hops.serve(HOME):
        guarded = fetcher(hops.port, canary.port, lookup=dns, max_redirects=3)
        error = await refused(guarded, f"http://rebind.example:{hops.port}/")
    assert error.code == "media_url_blocked"


@pytest.mark.parametrize("answers", [[HOME, FOREIGN], [FOREIGN, HOME], [HOME, "::1"], [HOME, "64:ff9b::7f00:2"]])
async def test_case_16_one_bad_answer_among_good_ones(canary: Canary, answers: list[str]) -> None:
    guarded = fetcher(canary.port, lookup=ScriptedDns({"mixed.example": [answers]}))
    with dialled() as addresses:
        assert (await refused(guarded, f"http://mixed.example:{canary.port}/")).code == "media_url_blocked"
    assert addresses == []


async def test_case_17_a_valid_key_relaxes_nothing(as_it_comes: Target, canary: Canary) -> None:
    route = f"{as_it_comes.served.url}/v1/chat/completions"
    for headers, status in (({}, 401), ({"authorization": f"Bearer {KEY}"}, 400)):
        picture = {"type": "image_url", "image_url": {"url": f"http://{FOREIGN}:{canary.port}/"}}
        body = {"messages": [{"role": "user", "content": [picture]}]}
        async with as_it_comes.served.http.post(route, json=body, headers=headers) as response:
            assert response.status == status


async def test_case_18_nobody_behind_us_follows_a_redirect(origin: ScriptedOrigin, canary: Canary) -> None:
    upstream = ScriptedUpstream()
    fields = {**OPEN, "allowed_ports": [origin.port, canary.port], "max_redirects": 1}
    async with (
        scripted(upstream) as url,
        gateway(engine="upstream", upstream={"url": url}, media={"fetch": fields}, lookup=ScriptedDns(DNS)) as served,
    ):
        for path, expected in (("/to-canary-by-name", 400), ("/to-picture", 200)):
            picture = {"type": "image_url", "image_url": {"url": f"http://img.example:{origin.port}{path}"}}
            assert (await served.chat(messages=[{"role": "user", "content": [picture]}]))[0] == expected
    (received,) = upstream.received
    assert b"to-picture" not in received.body


async def test_case_20_a_blocked_url_is_a_400_with_a_stable_code(as_it_comes: Target, opened: Target) -> None:
    for host in (FOREIGN, "[::1]", "localhost", "internal.example"):
        for url in (f"http://{host}/", f"https://{host}/"):
            for target in (as_it_comes, opened):
                assert await target.refusal(url) == "media_url_blocked"


async def test_case_21_each_switch_opens_one_thing(origin: ScriptedOrigin) -> None:
    url = f"http://img.example:{origin.port}/a.png"
    everything: dict[str, Any] = {**OPEN, "allowed_ports": [origin.port]}
    assert await fetch(fetcher(**everything), url) == PNG
    without = {
        "allow_plain_http": False,
        "allowed_private_networks": [],
        "allowed_ports": [],
        "allowed_media_domains": ["other.example"],
    }
    for name, value in without.items():
        fields: dict[str, Any] = {**everything, name: value}
        error = await refused(fetcher(**fields), url)
        assert error.code == "media_url_blocked", name


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[::ffff:0.0.0.0]", "[0:0:0:0:0:0:0:0]"])
async def test_case_22_the_unspecified_address(opened: Target, canary: Canary, host: str) -> None:
    assert await opened.refusal(f"http://{host}:{canary.port}/") == "media_url_blocked"


@pytest.mark.parametrize("address", ADDRESSES)
async def test_case_23_addresses_inside_addresses(opened: Target, canary: Canary, address: str) -> None:
    """As literals, and as what a name resolves to."""
    with dialled() as addresses:
        assert await opened.refusal(f"http://{address}:{canary.port}/") == "media_url_blocked"
    assert set(addresses) <= {HOME}
    guarded = fetcher(canary.port, lookup=ScriptedDns({"img.example": [[address.strip("[]")]]}))
    with dialled() as addresses:
        assert (await refused(guarded, f"http://img.example:{canary.port}/")).code == "media_url_blocked"
    assert addresses == []


@pytest.mark.parametrize(
    "host",
    ["[::1%25lo]", "[::1%lo]", "[fe80::1%25eth0]", "127。0。0。2", "127．0．0．2", "127｡0｡0｡2", "①②⑦.0.0.2",
     "１２７.0.0.2", "img。example", "ⓘmg.example", "img\u00ad.example", "img\u200b.example", "IMG\u212a.example"],
)  # fmt: skip
async def test_case_24_zones_and_look_alike_dots_and_digits(opened: Target, canary: Canary, host: str) -> None:
    assert await opened.refusal(f"http://{host}:{canary.port}/") == "invalid_media_url"


async def test_case_25_a_chunked_body_does_not_escape_the_count() -> None:
    origin = ScriptedOrigin({"/": endless_body()})
    async with origin.serve(HOME):
        error = await refused(fetcher(origin.port), f"http://img.example:{origin.port}/")
        assert (error.status, error.code) == (413, "media_too_large")
        await origin.until_idle()


async def test_case_26_an_endless_body_ends_at_the_limit() -> None:
    """Stopped at the cap, and the connection is closed."""
    origin = ScriptedOrigin({"/": endless_body(chunked=False)})
    async with origin.serve(HOME):
        error = await refused(fetcher(origin.port, max_image_bytes=2**20), f"http://img.example:{origin.port}/")
        assert (error.status, error.code) == (413, "media_too_large")
        await origin.until_idle()


async def test_case_27_a_public_name_with_a_private_address(canary: Canary) -> None:
    guarded = fetcher(canary.port, lookup=ScriptedDns({"localtest.example.org": [[FOREIGN]]}), allow_public_https=True)
    error = await refused(guarded, f"https://localtest.example.org:{canary.port}/")
    assert error.code == "media_url_blocked"


async def test_case_27_nobody_learns_which_private_names_exist(canary: Canary) -> None:
    guarded = fetcher(canary.port, allow_public_https=True)
    there = await refused(guarded, f"http://internal.example:{canary.port}/")
    not_there = await refused(guarded, f"http://empty.cdn.example:{canary.port}/")
    assert (there.code, there.message) == (not_there.code, not_there.message)


async def test_case_29_wildcards_mean_what_they_say(origin: ScriptedOrigin) -> None:
    dns = ScriptedDns(DNS)
    guarded = fetcher(origin.port, lookup=dns)
    assert await fetch(guarded, f"http://a.cdn.example:{origin.port}/a.png") == PNG
    for host in ("cdn.example", "acdn.example", "cdn.example.evil.org", "a.cdn.example.evil.org"):
        assert (await refused(guarded, f"http://{host}:{origin.port}/a.png")).code == "media_url_blocked"
    assert dns.asked == ["a.cdn.example"]  # a name that nobody has is blocked too, so the code alone says nothing


@pytest.mark.parametrize(
    "pattern", ["*", "*.com", "img*.example.com", "https://a.example", "a.example:443", ".a.example"]
)
async def test_case_29_a_pattern_that_cannot_be_honoured_forbids_the_start(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"allowed_media_domains: .*should"):
        load_settings({"media": {"fetch": {"allowed_media_domains": [pattern]}}})


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"])
async def test_case_31_proxies_of_the_environment_are_not_asked(
    origin: ScriptedOrigin, canary: Canary, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, f"http://{FOREIGN}:{canary.port}")
    assert await fetch(fetcher(origin.port), f"http://img.example:{origin.port}/a.png") == PNG


async def test_case_31_only_the_configured_proxy_is() -> None:
    proxy = ScriptedOrigin({"http://img.example/a.png": answer(PNG)})
    async with proxy.serve(HOME):
        guarded = fetcher(proxy=f"http://user:pass@{HOME}:{proxy.port}", allowed_private_networks=[])
        assert await fetch(guarded, "http://img.example/a.png") == PNG
        assert proxy.asked[-1].line == "GET http://img.example/a.png HTTP/1.1"
        assert proxy.asked[-1].values("proxy-authorization") == ["Basic dXNlcjpwYXNz"]
        with dialled() as addresses:
            assert (await refused(guarded, "http://169.254.169.254/")).code == "media_url_blocked"
        assert addresses == []


async def test_case_31_https_goes_through_the_proxy_to_the_name(tmp_path: Path) -> None:
    """The proxy gets the name, and the certificate still has to be the name's."""
    asked: list[str] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[0])
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        ahead, behind = await asyncio.open_connection(HOME, origin.port)
        await asyncio.gather(_pumped(reader, behind), _pumped(ahead, writer))

    chain, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    origin = ScriptedOrigin({"/a.png": answer(PNG)})
    async with origin.serve(HOME, context):
        proxy = await asyncio.start_server(tunnel, HOME, 0)
        async with proxy:
            guarded = fetcher(
                proxy=f"http://{HOME}:{proxy.sockets[0].getsockname()[1]}",
                allowed_private_networks=[],
                allowed_media_domains=["localhost", "img.example"],
                ca_file=chain,
            )
            assert await fetch(guarded, "https://localhost/a.png") == PNG
            assert (await refused(guarded, "https://img.example/a.png")).code == "media_url_unreachable"
            await origin.until_idle()
    assert asked == ["CONNECT localhost:443 HTTP/1.1", "CONNECT img.example:443 HTTP/1.1"]
    assert len(origin.asked) == 1


async def _pumped(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(2**16):
            sink.write(data)
            await sink.drain()
    sink.close()


async def test_nothing_of_the_caller_or_the_environment_is_sent_on(origin: ScriptedOrigin, tmp_path: Path) -> None:
    hops = ScriptedOrigin(
        {"/": answer(status=302, location=f"http://a.cdn.example:{origin.port}/a.png", set_cookie="c=1")}
    )
    async with hops.serve(HOME):
        await fetch(fetcher(hops.port, origin.port, max_redirects=1), f"http://img.example:{hops.port}/?secret=1")
    asked = origin.asked[-1]
    assert {name.lower() for name, _ in asked.headers} == {
        "host",
        "accept",
        "accept-encoding",
        "user-agent",
        "connection",
    }
    assert asked.values("accept-encoding") == ["identity"]
    assert "secret" not in json.dumps(asked.headers)
