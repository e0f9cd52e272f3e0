"""The table of addresses, over the vectors that other guards let through."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from opsin.media.addresses import is_allowed, readings

REFUSED = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.255",
    "168.63.129.16", "169.254.169.254", "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.9",
    "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1",
    "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1",
    "::ffff:0:8.8.8.8", "64:ff9b::169.254.169.254", "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "64:ff9b:1::808:808",
    "100::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001::1", "2001:2::1", "2001:10::1", "2001:20::1",
    "2001:db8::1", "2002:7f00:1::", "2002:808:808::1", "2001:470::5efe:7f00:1",
    "2001:470::200:5efe:169.254.169.254", "fe80::5efe:8.8.8.8", "3fff::1", "4000::1", "5f00::1", "fc00::1",
    "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fe80::1%eth0", "2606:4700::1111%eth0", "fec0::1", "ff02::1",
    "ff0e::1",
]  # fmt: skip

PUBLIC = [
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "93.184.216.34", "100.63.255.255", "100.128.0.0",
    "126.255.255.255", "128.0.0.1", "168.63.129.15", "169.253.255.255", "172.15.255.255", "172.32.0.0", "192.0.1.1",
    "192.31.196.1", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255",
    "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2001:200::1", "2001:470::5efe:8.8.8.8", "2003::1",
    "2606:4700:4700::1111", "2a00:1450:4001:80b::200e", "3ffe::1",
]  # fmt: skip


@pytest.mark.parametrize("address", REFUSED)
def test_refused_by_default(address: str) -> None:
    assert not is_allowed(ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_public(address: str) -> None:
    assert is_allowed(ip_address(address))


@pytest.mark.parametrize(
    ("address", "network", "allowed"),
    [
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "10.2.0.0/16", False),
        ("::ffff:10.1.2.3", "10.0.0.0/8", True),
        ("127.0.0.1", "127.0.0.1/32", True),
        ("127.0.0.2", "127.0.0.1/32", False),
        ("::1", "::1/128", True),
        ("fd12::1", "fd00::/8", True),
        ("fd12::1", "0.0.0.0/0", False),
        # A wide network opens no metadata, nothing link-local and nothing unspecified by the way.
        ("169.254.169.254", "0.0.0.0/0", False),
        ("169.254.169.254", "169.254.0.0/16", False),
        ("169.254.169.254", "169.254.169.254/32", True),
        ("169.254.7.7", "169.254.0.0/16", True),
        ("169.254.7.7", "160.0.0.0/4", False),
        ("100.100.100.200", "100.64.0.0/10", False),
        ("100.64.0.1", "100.64.0.0/10", True),
        ("168.63.129.16", "168.0.0.0/8", False),
        ("192.0.0.192", "192.0.0.0/24", False),
        ("0.0.0.0", "0.0.0.0/0", False),
        ("0.0.0.0", "0.0.0.0/8", True),
        ("::", "::/0", False),
        ("fd00:ec2::254", "fd00::/8", False),
        ("fe80::1", "::/0", False),
        ("fe80::1", "fe80::/10", True),
        ("fe80::1%eth0", "fe80::/10", False),
        # A tunnel's own network is not enough: what it leads to counts too.
        ("2002:7f00:1::", "2002::/16", False),
        ("2002:808:808::1", "2002::/16", True),
        ("64:ff9b:1::a00:1", "64:ff9b:1::/48", False),
        ("64:ff9b:1::808:808", "64:ff9b:1::/48", True),
    ],
)
def test_opened_networks(address: str, network: str, allowed: bool) -> None:
    assert is_allowed(ip_address(address), [ip_network(network)]) is allowed


@pytest.mark.parametrize(
    ("address", "embedded"),
    [
        ("2002:c000:204::1", ["192.0.2.4"]),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", ["65.54.227.120", "192.0.2.45"]),  # RFC 4380's own example
        ("64:ff9b:1::c000:204", ["192.0.2.4"]),
        ("::c000:204", ["192.0.2.4"]),
        ("::ffff:0:c000:204", ["192.0.2.4"]),
        ("2003::5efe:c000:204", ["192.0.2.4"]),
        ("2003::200:5efe:c000:204", ["192.0.2.4"]),
        ("2003::c000:204", []),
        ("::1", []),
    ],
)
def test_what_is_embedded(address: str, embedded: list[str]) -> None:
    assert list(map(str, readings(ip_address(address))))[1:] == embedded


@pytest.mark.parametrize("address", ["::ffff:192.0.2.4", "64:ff9b::192.0.2.4"])
def test_other_spellings_of_an_ipv4_address(address: str) -> None:
    assert list(map(str, readings(ip_address(address)))) == ["192.0.2.4"]
