from __future__ import annotations

import pytest

from opsin.core.errors import ConfigError
from opsin.tenants.keys import ApiKey, Limits, digest_of, new_key


def test_what_is_kept_opens_nothing_and_comes_back_from_its_line() -> None:
    key, kept = new_key("acme", lifetime_s=60, admin=True, limits=Limits(max_concurrency=2))
    assert kept.digest == digest_of(key)
    assert len(key.removeprefix("sk-opsin-")) == 43, "256 bits in base64"
    line = kept.line()
    assert key not in line
    assert kept.id not in key
    assert ApiKey.model_validate_json(line) == kept
    assert (kept.has_expired(kept.created + 59), kept.has_expired(kept.created + 60)) == (False, True)
    assert not new_key("acme")[1].has_expired(1e12)
    assert new_key("acme")[0] != key


def test_a_keys_limits_come_before_general_ones() -> None:
    general = Limits(requests_per_minute=10, max_queue=4)
    assert Limits(requests_per_minute=99).over(general) == Limits(requests_per_minute=99, max_queue=4)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "ä", "a\n", "a" * 65])
def test_names_of_tenants_are_plain(name: str) -> None:
    with pytest.raises(ConfigError, match="is no name of a tenant"):
        new_key(name)
