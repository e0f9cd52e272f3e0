from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from opsin.media.fetch_config import FetchConfig


def test_the_promises_are_the_defaults() -> None:
    config = FetchConfig()
    assert not config.enabled
    assert (config.dns_timeout_s, config.connect_timeout_s, config.first_byte_timeout_s) == (2, 2, 3)
    assert (config.total_timeout_s, config.min_bytes_per_s, config.max_redirects) == (8, 4096, 0)
    assert (config.max_remote_images, config.max_bytes_per_request) == (8, 32 * 2**20)
    assert not any(
        (config.allow_plain_http, config.allow_ip_literals, config.allowed_private_networks, config.allowed_ports)
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"max_redirects": 4},
        {"allowed_ports": [0]},
        {"allowed_ports": [65536]},
        {"allowed_private_networks": ["10.0.0.1/8"]},
        {"allowed_private_networks": ["everything"]},
        {"allowed_media_domains": ["*"]},
        {"allowed_media_domains": ["8.8.8.8"]},
        {"allowed_media_domains": ["[::1]"]},
        {"total_timeout_s": 0},
        {"follow": True},
    ],
)
def test_nonsense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FetchConfig.model_validate(fields)


@pytest.mark.parametrize(
    ("proxy", "right"),
    [
        ("http://proxy:3128", True),
        ("http://user:pass@10.0.0.1:3128/", True),
        ("http://[::1]:3128", True),
        ("http://proxy", False),
        ("https://proxy:3128", False),
        ("socks5://proxy:1080", False),
        ("proxy:3128", False),
        ("http://proxy:3128/path", False),
        ("http://user@proxy:3128", False),
    ],
)
def test_proxies(proxy: str, right: bool) -> None:
    try:
        FetchConfig.model_validate({"proxy": proxy})
    except ValidationError as error:
        assert not right
        assert "pass@" not in str(error)
    else:
        assert right
