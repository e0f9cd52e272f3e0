from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsin.core.errors import MediaError, MediaSourceForbidden
from opsin.media.fetch_config import FetchConfig
from opsin.media.policy import MAX_URL_BYTES, FetchPolicy, Target

OPEN: dict[str, Any] = {"allow_public_https": True, "allow_plain_http": True, "allow_ip_literals": True}


def policy(**fields: Any) -> FetchPolicy:
    return FetchPolicy(FetchConfig.model_validate(fields))


def refusal(url: str, **fields: Any) -> MediaError:
    with pytest.raises(MediaError) as caught:
        policy(**fields).target(url)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("https://example.com/a.png", "https://example.com/a.png"),
        ("HTTPS://EXAMPLE.com./a.png", "https://example.com/a.png"),
        ("https://example.com", "https://example.com/"),
        ("https://example.com?x=1", "https://example.com/?x=1"),
        ("https://example.com?", "https://example.com/"),  # the HTTP client drops it too: found by fuzzing
        ("https://example.com/a?#b", "https://example.com/a"),
        ("https://example.com/a??", "https://example.com/a??"),
        ("https://example.com/a?b=c/d?e#f?g", "https://example.com/a?b=c/d?e"),
        ("https://example.com/a%2Fb%zz/../c", "https://example.com/a%2Fb%zz/../c"),
        ('https://example.com/ä{}?q=é"', "https://example.com/%C3%A4%7B%7D?q=%C3%A9%22"),
        ("https://example.com//x//y", "https://example.com//x//y"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("http://[2606:4700:0:0::1111]/", "http://[2606:4700::1111]/"),
        ("https://example.com/@x:y", "https://example.com/@x:y"),
    ],
)
def test_one_parse_to_one_form(url: str, canonical: str) -> None:
    target = policy(**OPEN).target(url)
    assert target.url == canonical
    assert policy(**OPEN).target(target.url) == target


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1\\@1.1.1.1/", "http://good.com\\@127.0.0.1/", "http://good.com\n@127.0.0.1/", "http://127。0。0。1/",
        "http://[::1%25eth0]/", "http://0177.0.0.1/", " http://127.0.0.1/", "http://127.0.0.1/ ", "https://a.example/\t",
        "https://a.example/\x00", "https://a.example/\x7f", "https://a.example/\u2028", "https://a.example/\xa0x",
        "https://a.example/\udcff", "https://user@a.example/", "https://user:pw@a.example/", "https://@a.example/",
        "https://:@a.example/", "https:a.example", "https:/a.example", "https:///a.example", "https://", "https://?x",
        "https://a.example:/", "https://a.example:0/", "https://a.example:0443/", "https://a.example:65536/",
        "https://a.example:+443/", "https://a.example:４４３/", "https://a.example:443:443/", "https://a.example:x/",
        "https://[::1]x/", "https://x[::1]/", "https://[[::1]]/", "https://a.example%2f.evil.org/", "http://①②⑦.0.0.1/",
        "http://2130706433/", "http://0x7f.1/", "http://127.1/", "http://0/", "\u017fhttps://a.example/", "http\u017f://a.example/",
        "https://a.example/" + "a" * MAX_URL_BYTES, "https://a.example/" + "é" * (MAX_URL_BYTES // 2),
    ],
)  # fmt: skip
def test_outside_the_grammar(url: str) -> None:
    error = refusal(url, **OPEN)
    assert error.code == "invalid_media_url"
    assert "127.0.0.1" not in error.message


@pytest.mark.parametrize(
    ("fields", "url", "flag"),
    [
        ({}, "https://example.com/", "--allowed-media-domains"),
        ({}, "http://127.0.0.1\\@1.1.1.1/", "--allowed-media-domains"),
        ({"allow_plain_http": True}, "http://example.com/", "--allowed-media-domains"),
        ({"allow_public_https": True}, "http://example.com/", "--allow-plain-http"),
        ({"allow_public_https": True}, "https://8.8.8.8/", "--allow-ip-literals"),
        ({"allow_public_https": True}, "https://intranet/", "--allowed-media-domains"),
        ({"allow_public_https": True}, "https://metadata.google.internal/", "--allowed-media-domains"),
        ({"allow_public_https": True}, "https://example.com:443/", "--allowed-media-ports"),
        ({"allow_public_https": True, "allowed_ports": [8443]}, "https://example.com:8080/", "--allowed-media-ports"),
        ({"allowed_media_domains": ["a.example"]}, "https://b.example/", "--allowed-media-domains"),
        ({"allowed_media_domains": ["a.example"]}, "http://a.example/", "--allow-plain-http"),
        ({"allowed_media_domains": ["a.example"], "allow_ip_literals": True}, "https://8.8.8.8/", "--allowed-media-d"),
    ],
)
def test_each_switch_opens_one_thing_and_the_refusal_names_it(fields: dict[str, Any], url: str, flag: str) -> None:
    error = refusal(url, **fields)
    assert isinstance(error, MediaSourceForbidden)
    assert error.code == "media_url_blocked"
    assert flag in error.message
    assert "a.example" not in error.message


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"allowed_media_domains": ["intranet"]}, "https://intranet/a.png"),
        ({"allowed_media_domains": ["*.internal.example"]}, "https://a.internal.example/a.png"),
        ({"allow_public_https": True, "allowed_ports": [443]}, "https://example.com:443/"),
        ({"allowed_media_domains": ["8.8.8.8"], "allow_ip_literals": True}, "https://8.8.8.8/"),
    ],
)
def test_allowed(fields: dict[str, Any], url: str) -> None:
    assert policy(**fields).target(url).port == 443


@pytest.mark.parametrize(
    ("location", "leads_to"),
    [
        ("/b", "https://a.example/b"),
        ("b", "https://a.example/x/b"),
        ("?q", "https://a.example/x/y?q"),
        ("//b.example/c", "https://b.example/c"),
        ("https://b.example/", "https://b.example/"),
        ("#f", "https://a.example/x/y"),
        ("../../..", "https://a.example/"),
    ],
)
def test_where_a_redirect_leads(location: str, leads_to: str) -> None:
    allowed = policy(allowed_media_domains=["a.example", "b.example"])
    assert allowed.redirect(allowed.target("https://a.example/x/y"), location).url == leads_to


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("http://a.example/", "media_url_redirect"),
        ("https://a.example/\t", "media_url_redirect"),
        ("ht\ntps://a.example/", "media_url_redirect"),
        ("\\\\b.example", "media_url_redirect"),
        ("https://[::1", "media_url_redirect"),
        ("/\udcc3\udca4", "media_url_redirect"),
        ("https://c.example/", "media_url_blocked"),
        ("//c.example", "media_url_blocked"),
        ("https://a.example:8080/", "media_url_blocked"),
        ("https://127.0.0.1/", "media_url_blocked"),
        ("https://u@a.example/", "invalid_media_url"),
        ("file:///etc/passwd", "invalid_media_url"),
        ("data:image/png;base64,AAAA", "invalid_media_url"),
        ("gopher://a.example/", "invalid_media_url"),
        ("javascript:1", "invalid_media_url"),
    ],
)
def test_where_a_redirect_must_not_lead(location: str, code: str) -> None:
    allowed = policy(allowed_media_domains=["a.example", "b.example"], allow_plain_http=True)
    with pytest.raises(MediaError) as caught:
        allowed.redirect(allowed.target("https://a.example/x/y"), location)
    assert (caught.value.status, caught.value.code) == (400, code)


def test_http_may_lead_to_https() -> None:
    allowed = policy(allowed_media_domains=["a.example"], allow_plain_http=True)
    assert allowed.redirect(allowed.target("http://a.example/"), "https://a.example/").scheme == "https"


@settings(deadline=None)  # a machine may be busy
@given(st.text(max_size=60), st.sampled_from(["", "https://", "http://", "https://a.example", "//", "/"]))
def test_any_text_is_a_target_in_canonical_form_or_a_media_error(text: str, start: str) -> None:
    allowed = policy(**OPEN, allowed_ports=[80, 443, 8080])
    base = allowed.target("https://a.example/x/y")
    for parse in (allowed.target, partial(allowed.redirect, base)):
        try:
            target: Target = parse(start + text)
        except MediaError:
            continue
        assert target.url.isascii()
        assert allowed.target(target.url) == target or target.port in (80, 443)
