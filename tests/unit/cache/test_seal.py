from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsin.cache.seal import Seal
from opsin.cache.tier import Address, TierError, Value

AT = Address("scope", "record", "field")
SEAL = Seal(b"secret")


@given(st.binary(max_size=50), st.binary(max_size=200))
def test_what_is_sealed_opens(head: bytes, data: bytes) -> None:
    assert SEAL.opened(AT, SEAL.sealed(AT, Value(head, data), 60)) == Value(head, data)


@given(st.data())
def test_one_changed_byte_or_a_cut_is_garbage(data: st.DataObject) -> None:
    stored = SEAL.sealed(AT, Value(b"head", b"a picture"), 60)
    at = data.draw(st.integers(0, len(stored) - 1))
    changed = bytearray(stored)
    changed[at] ^= data.draw(st.integers(1, 255))
    for wrong in (bytes(changed), stored[:at], stored + b"x"):
        with pytest.raises(TierError):
            SEAL.opened(AT, wrong)


def test_it_opens_only_under_its_own_address_and_secret() -> None:
    stored = SEAL.sealed(AT, Value(b"", b"a picture"), 60)
    for other in (Address("scop", "erecord", "field"), Address("scope", "record", "other")):
        with pytest.raises(TierError):
            SEAL.opened(other, stored)
    with pytest.raises(TierError):
        Seal(b"another").opened(AT, stored)


def test_a_head_and_its_data_are_told_apart() -> None:
    """Else what says how large a picture is could become part of it."""
    assert SEAL.sealed(AT, Value(b"ab", b"c"), 60)[24:] != SEAL.sealed(AT, Value(b"a", b"bc"), 60)[24:]


def test_who_copies_it_has_no_picture_and_cannot_tell_two_alike() -> None:
    value = Value(b"a name of a file", b"a picture")
    one, two = SEAL.sealed(AT, value, 60), SEAL.sealed(AT, value, 60)
    assert value.head not in one
    assert value.data not in one
    assert one[24:35] != two[24:35]
    assert one[35:] != two[35:]


def test_it_is_nothing_when_its_time_is_over() -> None:
    now = 1000.0
    seal = Seal(b"secret", now=lambda: now)
    stored = seal.sealed(AT, Value(b"", b"x"), 10)
    now = 1009.9
    assert seal.opened(AT, stored) is not None
    now = 1010.0
    assert seal.opened(AT, stored) is None
