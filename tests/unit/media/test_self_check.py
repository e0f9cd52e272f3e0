"""The server's own vectors: silent on a right policy, loud on an opened or a broken one."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from opsin.media.config import MediaConfig
from opsin.media.self_check import Check, check_intake
from opsin.media.types import ImageFormat
from opsin.media.vectors import BYTES, DATA_URLS, URLS


def wrong(**media: Any) -> dict[str, str]:
    """What came of the vectors that did not come out as expected."""
    checks = check_intake(MediaConfig.model_validate(media))
    return {check.vector: check.got for check in checks if not check.passed}


def opened(setting: str, *urls: str) -> dict[str, str]:
    return {f"url {url!r}": f"allowed by your settings: {setting}" for url in urls}


@pytest.mark.parametrize(
    "media",
    [
        {},
        {"fetch": {"allow_public_https": True, "allow_plain_http": True, "allow_ip_literals": True}},
        {"fetch": {"allowed_media_domains": ["images.example.com", "*.cdn.example.com"], "allowed_ports": [8443]}},
        {"fetch": {"allow_public_https": True, "allowed_private_networks": ["10.1.0.0/16"]}},
        {"formats": ["png"]},
        {"formats": list(ImageFormat)},
        {"max_image_side": 100_000, "max_image_pixels": 178_956_970},
    ],
)
def test_every_vector_is_refused_as_expected(media: dict[str, Any]) -> None:
    assert wrong(**media) == {}


def test_an_opened_network_is_told_with_its_setting() -> None:
    setting = "media.fetch.allowed_private_networks"
    by_loopback = opened(setting, "http://127.0.0.1/", "http://[::ffff:127.0.0.1]/")
    assert wrong(fetch={"allowed_private_networks": ["127.0.0.0/8"]}) == by_loopback
    assert wrong(fetch={"allowed_private_networks": ["169.254.169.254/32"]}) == opened(
        setting, "http://169.254.169.254/"
    )


def test_a_wide_network_opens_no_metadata() -> None:
    told = wrong(fetch={"allowed_private_networks": ["0.0.0.0/0", "::/0"]})
    assert "url 'http://10.0.0.1/'" in told
    for guarded in ("http://169.254.169.254/", "http://100.100.100.200/", "http://[fd00:ec2::254]/", "http://0.0.0.0/"):
        assert f"url {guarded!r}" not in told


def test_a_port_and_a_private_name_are_told_with_their_setting() -> None:
    told = wrong(fetch={"allowed_ports": [6379], "allowed_media_domains": ["localhost", "*.google.internal"]})
    assert told == {
        **opened("media.fetch.allowed_ports", "https://images.example.com:6379/"),
        **opened("media.fetch.allowed_media_domains", "http://localhost/", "http://metadata.google.internal/"),
    }


def test_a_vector_counts_once_and_none_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", None)
    monkeypatch.setattr(socket, "socket", None)
    names = [check.vector for check in check_intake(MediaConfig())]
    assert len(names) == len(set(names)) == len(URLS) + len(DATA_URLS) + len(BYTES)


def test_what_was_not_run_is_no_failure_and_a_wrong_code_is_one() -> None:
    assert Check("v", "refused", "not run", is_run=False).passed
    assert not Check("v", "media_url_blocked", "invalid_media_url").passed
