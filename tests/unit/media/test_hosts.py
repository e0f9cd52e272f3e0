from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsin.media.hosts import parse_host, parse_pattern


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("images.example.com", "images.example.com"),
        ("IMAGES.Example.COM", "images.example.com"),
        ("images.example.com.", "images.example.com"),
        ("my_bucket.s3.example.com", "my_bucket.s3.example.com"),
        ("localhost", "localhost"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("例え.jp", "xn--r8jz45g.jp"),
        ("1.2.3.4.example", "1.2.3.4.example"),
        ("93.184.216.34", "93.184.216.34"),
        ("93.184.216.34.", "93.184.216.34"),
        ("[2606:4700::1111]", "2606:4700::1111"),
        ("[2606:4700:0:0:0:0:0:1111]", "2606:4700::1111"),
    ],
)
def test_one_form_of_each(text: str, name: str) -> None:
    assert parse_host(text).name == name


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "a..b", ".a", "a.b..", "-a.example", "a-.example", "a b", "a%2eb", "a\tb", "a/b", "a@b", "a:1",
        "a" * 64, ".".join(["a" * 60] * 5), "*", "*.example.com", "exa*mple.com",
        "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "127.0.0.01", "0", "1.2.3", "1.2.3.4.5",
        "1.2.3.256", "a.0x", "a.1", "127。0。0。1", "127．0．0．1", "①②⑦.0.0.1", "１２７.0.0.1", "BÜCHER.example",
        "ﬀ.example", "example。com", "a\u200db.example", "a\u00adb.example", "\u202eexample.com", "ⓔxample.com",
        "\u212a.example", "\udcff.com",
        "[::1%25lo]", "[::1%lo]", "[::1", "[]", "[127.0.0.1]", "[::g]", "[1:2:3:4:5:6:7:8:9]", "[::ffff:127.1]",
        "[v1.a]",
    ],
)  # fmt: skip
def test_no_other_form(text: str) -> None:
    with pytest.raises(ValueError):
        parse_host(text)


@settings(deadline=None)  # a machine may be busy
@given(st.text(max_size=30))
def test_what_is_accepted_is_its_own_canonical_form(text: str) -> None:
    try:
        host = parse_host(text)
    except ValueError:
        return
    assert parse_host(host.in_url) == host
    assert host.name.isascii()


@pytest.mark.parametrize(
    ("pattern", "host", "matches"),
    [
        ("example.com", "example.com", True),
        ("Example.COM.", "example.com", True),
        ("example.com", "www.example.com", False),
        ("example.com", "badexample.com", False),
        ("*.example.com", "www.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "badexample.com", False),
        ("*.example.com", "www.example.com.evil.org", False),
        ("*.bücher.example", "img.xn--bcher-kva.example", True),
        ("93.184.216.34", "93.184.216.34", True),
        ("[2606:4700::1111]", "[2606:4700:0::1111]", True),
    ],
)
def test_patterns(pattern: str, host: str, matches: bool) -> None:
    assert parse_pattern(pattern).matches(parse_host(host)) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        "", "*", "*.", "*.com", "*.*.example.com", "a.*.example.com", "img*.example.com", ".example.com",
        "*example.com", "https://example.com", "example.com/path", "example.com:443", "*.10.0.0.1", "*.[::1]", "a b",
        "example.com,b.com",
    ],
)  # fmt: skip
def test_patterns_that_cannot_be_honoured(pattern: str) -> None:
    with pytest.raises(ValueError, match="should"):
        parse_pattern(pattern)


@pytest.mark.parametrize(
    ("name", "public"),
    [("example.com", True), ("localhost", False), ("intranet", False), ("a.localhost", False), ("nas.local", False),
     ("metadata.google.internal", False), ("router.home.arpa", False), ("mylocal", False), ("a.mylocal", True)],
)  # fmt: skip
def test_names_that_only_a_private_network_knows(name: str, public: bool) -> None:
    assert parse_host(name).is_public_name is public
