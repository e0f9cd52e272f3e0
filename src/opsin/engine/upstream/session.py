"""The HTTP client as every request to an upstream uses it. Knows no route."""

from __future__ import annotations

import aiohttp

from opsin.engine.upstream.config import UpstreamConfig

_KEEPALIVE_S = 4.0
"""Under uvicorn's 5 s: a POST must not meet a connection that the upstream is just closing, as it is never re-sent."""


def open_session(config: UpstreamConfig) -> aiohttp.ClientSession:
    """Keeps no cookies and heeds no proxy variables. Only silence and connecting are limited, never a whole answer."""
    key = config.api_key.get_secret_value() if config.api_key else None
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=config.max_connections, keepalive_timeout=_KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(
            total=None,
            sock_connect=config.connect_timeout_s,
            sock_read=config.read_timeout_s,
        ),
        headers={"Authorization": f"Bearer {key}"} if key else None,
        cookie_jar=aiohttp.DummyCookieJar(),
    )
