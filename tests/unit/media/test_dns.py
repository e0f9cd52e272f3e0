from __future__ import annotations

import pytest

from opsin.media.addresses import Address, is_allowed
from opsin.media.dns import NoAddress, Resolver, system_lookup
from opsin.media.hosts import parse_host
from opsin.testing.scripted_dns import ScriptedDns

DNS = {
    "good.example": [["93.184.216.34", "2606:4700::1111"]],
    "mixed.example": [["93.184.216.34", "127.0.0.1"]],
    "scoped.example": [["fe80::1%eth0"]],
    "nonsense.example": [["not an address"]],
}


async def resolve(name: str) -> tuple[Address, ...]:
    return await Resolver(ScriptedDns(DNS)).addresses(parse_host(name), is_allowed)


async def test_all_answers_in_order() -> None:
    assert list(map(str, await resolve("good.example"))) == ["93.184.216.34", "2606:4700::1111"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mixed.example", "refused_address"),
        ("scoped.example", "refused_address"),
        ("127.0.0.1", "refused_address"),
        ("[::ffff:127.0.0.1]", "refused_address"),
        ("absent.example", "unresolved"),
        ("nonsense.example", "unresolved"),
    ],
)
async def test_one_bad_answer_refuses_the_name(name: str, reason: str) -> None:
    with pytest.raises(NoAddress, match=reason):
        await resolve(name)


async def test_an_address_needs_no_name_service() -> None:
    dns = ScriptedDns({})
    assert await Resolver(dns).addresses(parse_host("8.8.8.8"), is_allowed)
    assert dns.asked == []


def test_the_systems_own() -> None:
    assert "127.0.0.1" in system_lookup("localhost")
    with pytest.raises(OSError):
        system_lookup("absent.invalid")
