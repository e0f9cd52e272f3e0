from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opsin.cli.main import main, parse
from opsin.tenants.keys import Limits, digest_of
from tests.redis_server import needs_redis, redis_server


def test_a_key_is_made_shown_once_listed_by_its_id_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--api-keys-file", str(tmp_path / "keys")]
    made = ["keys", "create", "acme", "--expires", "90d", "--images-per-minute", "60", "--max-queue", "4"]
    assert main([*made, *where]) == main(["keys", "create", "ops", "--admin", *where]) == 0
    first, second = capsys.readouterr().out.split()
    assert main(["keys", "list", "--json", *where]) == 0
    told = capsys.readouterr().out
    assert digest_of(first) not in told
    acme, ops = json.loads(told)
    assert (acme["tenant"], acme["admin"], acme["expires"] - acme["created"]) == ("acme", False, 90 * 86400)
    assert Limits.model_validate(acme["limits"]) == Limits(images_per_minute=60, max_queue=4)
    assert (ops["tenant"], ops["admin"], "expires" in ops) == ("ops", True, False)
    assert main(["keys", "list", *where]) == 0
    shown = capsys.readouterr().out
    assert acme["id"] in shown
    assert main(["keys", "revoke", acme["id"], "nobody", *where]) == 1
    assert f"revoked {acme['id']} of acme" in capsys.readouterr().err
    kept = (tmp_path / "keys").read_text()
    assert digest_of(second) in kept
    assert digest_of(first) not in kept


def test_a_further_key_has_the_limits_of_the_newest_unless_they_are_stated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--api-keys-file", str(tmp_path / "keys")]
    _assert_limits_are_taken_over(where, capsys)


@needs_redis
def test_a_further_key_in_redis_has_the_limits_of_the_newest(capsys: pytest.CaptureFixture[str]) -> None:
    with redis_server() as server:
        where = ["--api-keys-in-redis", "--redis-url", server.url]
        _assert_limits_are_taken_over(where, capsys)


def _assert_limits_are_taken_over(where: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def make(tenant: str, *flags: str) -> tuple[dict[str, Any], str]:
        assert main(["keys", "create", tenant, *flags, *where]) == 0
        told = capsys.readouterr().err
        assert main(["keys", "list", "--json", *where]) == 0
        listed = json.loads(capsys.readouterr().out)
        return next(key for key in listed if f"key {key['id']} of {tenant};" in told), told

    old, told = make("acme", "--requests-per-minute", "2", "--max-queue", "4", "--admin", "--expires", "90d")
    assert "limits as" not in told
    second, told = make("acme")
    assert second["limits"] == old["limits"]
    assert f"limits as those of key {old['id']}: requests_per_minute 2, max_queue 4\n" in told
    assert (second["admin"], "expires" in second) == (False, False), "of what is not stated limits alone are"
    main(["keys", "revoke", second["id"], *where])
    third, told = make("acme", "--requests-per-minute", "9", "--images-per-minute", "5")
    assert third["limits"] == {"requests_per_minute": 9, "images_per_minute": 5, "max_queue": 4}
    assert f"limits as those of key {old['id']}: max_queue 4\n" in told
    other, told = make("other")
    assert not other["limits"]
    assert "limits as" not in told


def test_every_limit_is_readable_in_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    where = ["--api-keys-file", str(tmp_path / "keys")]
    flags = [word for name in Limits.model_fields for word in (f"--{name.replace('_', '-')}", "100000")]
    assert main(["keys", "create", "acme", "--expires", "90d", *flags, *where]) == main(["keys", "list", *where]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert all(f"│ {name} " in shown for name in Limits.model_fields)


def test_what_cannot_be_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "list"]) == 1
    assert "--api-keys-file FILE" in capsys.readouterr().err
    assert main(["keys", "list", "--api-keys-file", str(tmp_path / "none")]) == 1
    assert "'opsin keys create TENANT' makes it" in capsys.readouterr().err
    for command in (["create", "acme"], ["list"]):
        assert main(["keys", *command, "--api-keys-file", str(tmp_path / "no" / "keys")]) == 1
        assert capsys.readouterr().err.endswith(f"keys: there is no folder {tmp_path / 'no'}\n")
    assert main(["keys", "create", "a b", "--api-keys-file", str(tmp_path / "none")]) == 1
    assert "no name of a tenant" in capsys.readouterr().err
    for wrong in ("90", "0d", "1w"):
        with pytest.raises(SystemExit):
            parse(["keys", "create", "acme", "--expires", wrong])
    for wrong in ("0", "-1", "many", "9" * 19):
        with pytest.raises(SystemExit):
            parse(["keys", "create", "acme", "--max-queue", wrong])
        assert f"'{wrong}' is no limit: a whole number, at least 1" in capsys.readouterr().err


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to("real/keys")
    for tenant in ("acme", "rival"):
        assert main(["keys", "create", tenant, "--api-keys-file", str(link)]) == 0
    assert link.is_symlink()
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["keys"]
    assert len((tmp_path / "real" / "keys").read_text().splitlines()) == 2
