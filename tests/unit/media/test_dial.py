from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest

from opsin.media.dial import Dial, WrongAddress
from opsin.testing.canary import Canary

STREAM = socket.SOCK_STREAM


async def test_any_name_is_the_judged_addresses() -> None:
    found = await Dial([ip_address("8.8.8.8"), ip_address("2606:4700::1111")]).resolve("whatever", 443)
    assert [(one["host"], one["port"], one["family"]) for one in found] == [
        ("8.8.8.8", 443, socket.AF_INET),
        ("2606:4700::1111", 443, socket.AF_INET6),
    ]


def test_no_socket_for_another_address() -> None:
    dial = Dial([ip_address("127.0.0.1")])
    with pytest.raises(WrongAddress):
        dial.socket((socket.AF_INET, STREAM, 0, "", ("127.0.0.2", 80)))
    dial.socket((socket.AF_INET, STREAM, 0, "", ("127.0.0.1", 80))).close()


def test_the_other_end_is_looked_at() -> None:
    """A socket that was made for one address and is connected to another."""
    dial = Dial([ip_address("127.0.0.1")])
    with Canary("127.0.0.2") as elsewhere, dial.socket((socket.AF_INET, STREAM, 0, "", ("127.0.0.1", 80))) as made:
        made.connect(("127.0.0.2", elsewhere.port))
        with pytest.raises(WrongAddress):
            dial.check_peer()
        assert made.recv(1) == b""  # it is shut down


def test_the_right_other_end_and_closed_sockets_pass() -> None:
    dial = Dial([ip_address("127.0.0.1")])
    dial.socket((socket.AF_INET, STREAM, 0, "", ("127.0.0.1", 80))).close()
    with Canary("127.0.0.1") as there, dial.socket((socket.AF_INET, STREAM, 0, "", ("127.0.0.1", 80))) as made:
        made.connect(("127.0.0.1", there.port))
        dial.check_peer()


def test_another_spelling_of_the_same_address_is_the_same() -> None:
    dial = Dial([ip_address("::ffff:127.0.0.1")])
    with Canary("127.0.0.1") as there, dial.socket((socket.AF_INET6, STREAM, 0, "", ("::ffff:7f00:1", 80))) as made:
        made.connect(("::ffff:127.0.0.1", there.port))
        dial.check_peer()
