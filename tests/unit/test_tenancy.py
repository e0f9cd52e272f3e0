from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opsin import tenancy
from opsin.core.errors import ConfigError
from opsin.gateway.auth import check_exposure
from opsin.settings import Settings, load_settings
from opsin.tenants.keys import new_key


def settings(**gateway: Any) -> Settings:
    return load_settings({"engine": "fake", "gateway": gateway})


def test_what_contradicts_itself_is_told() -> None:
    both = settings(api_keys_file="keys", api_keys_in_redis=True)
    assert [problem.text.partition(":")[0] for problem in tenancy.problems(both)] == [
        "--api-keys-in-redis needs --redis-url",
        "--api-keys-file and --api-keys-in-redis",
    ]
    assert list(tenancy.problems(settings(api_keys_file="keys"))) == []


def test_keys_of_many_tenants_are_keys_enough_for_other_machines() -> None:
    check_exposure(settings(host="0.0.0.0", api_keys_file="keys").gateway)
    with pytest.raises(ConfigError, match="--api-keys-file FILE"):
        check_exposure(settings(host="0.0.0.0").gateway)


def test_the_secret_is_beside_the_keys_or_where_it_is_said_and_nowhere_without_either(tmp_path: Path) -> None:
    assert tenancy.server_secret(settings()) is None
    beside = tenancy.server_secret(settings(api_keys_file=str(tmp_path / "keys")))
    assert (tmp_path / "keys.secret").read_text().strip() == (beside or b"").hex()
    said = settings(api_keys_file=str(tmp_path / "keys"), server_secret_file=str(tmp_path / "own"))
    assert tenancy.server_secret(said) not in (beside, None)
    assert tenancy.key_store(settings()) is None


async def test_one_tenants_key_is_admin_only_while_there_are_no_others(tmp_path: Path) -> None:
    alone = tenancy.auth(settings(api_key="sk-one"))
    assert (await alone.caller("Bearer sk-one")).is_admin
    key, kept = new_key("acme")
    among = settings(api_key="sk-one", api_keys_file=str(tmp_path / "keys"))
    store = tenancy.key_store(among)
    assert store is not None
    await store.add(kept)
    auth = tenancy.auth(among)
    await auth.start()
    one, other = await auth.caller("Bearer sk-one"), await auth.caller(f"Bearer {key}")
    assert (one.tenant, one.is_admin, other.tenant, other.key_id) == ("default", False, "acme", kept.id)
    await auth.close()
