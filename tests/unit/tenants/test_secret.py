from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opsin.core.errors import ConfigError
from opsin.tenants.secret import read_or_make_secret


def test_it_is_made_once_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(read_or_make_secret, [path] * 16))
    assert len(secrets) == 1, "of servers that start at once, one makes it"
    assert {len(secret) for secret in secrets} == {32}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    assert read_or_make_secret(tmp_path / "another") not in secrets


@pytest.mark.parametrize("text", ["", "00" * 31, "zz" * 32, "00" * 33])
def test_a_file_with_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secret"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="64 hex digits"):
        read_or_make_secret(path)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    read_or_make_secret(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_or_make_secret(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_or_make_secret(tmp_path / "folder" / "secret")


def test_what_a_killed_server_left_half_made_goes_with_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    draft = tmp_path / ".secret-0011aabb"
    draft.write_text("half")
    made = read_or_make_secret(path)
    assert read_or_make_secret(path) == made
    assert list(tmp_path.iterdir()) == [path]
