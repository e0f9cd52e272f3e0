from __future__ import annotations

import socket

from opsin.testing.canary import Canary


def test_every_connection_counts_at_once() -> None:
    with Canary("127.0.0.1") as canary:
        assert canary.hits == 0
        for expected in (1, 2):
            socket.create_connection(("127.0.0.1", canary.port)).close()
            assert canary.hits == expected
        assert canary.hits == 2
