from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import IO

import pytest

from opsin.cache.disk import DiskTier
from opsin.cache.expiring import Expiring
from opsin.cache.seal import Seal
from opsin.cache.tier import Address, TierError, Value
from opsin.cache.tombstones import Tombstones
from opsin.core.erasure import PurgeOutcome
from opsin.core.errors import ConfigError

AT = Address("scope", "record", "field")
VALUE = Value(b"head", b"a picture")


def disk(folder: Path, capacity: int = 2**20) -> DiskTier:
    return DiskTier(folder, capacity, capacity, Seal(b"secret"), Tombstones(60))


async def test_a_restart_finds_it_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    first = disk(folder)
    await first.put(AT, VALUE, 60)
    with pytest.raises(ConfigError, match="in use"):
        disk(folder)
    await first.close()
    again = disk(folder)
    assert await again.get(AT) == VALUE
    assert again.size_bytes == first.size_bytes > 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()} == {0o600}
    await again.close()


async def test_what_somebody_else_wrote_there_is_no_picture(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    await tier.put(AT, VALUE, 60)
    (file,) = (path for path in (tmp_path / "values").rglob("*") if path.is_file())
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(TierError):
        await tier.get(AT)
    await tier.close()


async def test_a_full_disk_is_no_entry_and_leaves_nothing(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    (tmp_path / "half-written").rmdir()
    with pytest.raises(TierError):
        await tier.put(AT, VALUE, 60)
    assert tier.size_bytes == 0
    assert [path for path in (tmp_path / "values").rglob("*") if path.is_file()] == []
    await tier.close()


async def test_who_leaves_while_it_is_written_hides_nothing_from_a_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, begun, go_on = disk(tmp_path), threading.Event(), threading.Event()

    def slow(descriptor: int, mode: str) -> IO[bytes]:
        begun.set()
        assert go_on.wait(20)
        return open(descriptor, mode)

    monkeypatch.setattr(os, "fdopen", slow)
    writing = asyncio.create_task(tier.put(AT, VALUE, 60))
    assert await asyncio.to_thread(begun.wait, 20)
    writing.cancel()
    purging = asyncio.create_task(tier.purge(AT.scope, None))
    await asyncio.sleep(0.05)
    go_on.set()
    assert await purging is PurgeOutcome.ERASED
    assert await tier.get(AT) is None
    assert tier.size_bytes == 0
    await tier.close()


async def test_what_lies_there_that_is_not_ours_costs_nothing_and_is_left(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "values" / "scope", tmp_path / "theirs"
    ours.mkdir(parents=True)
    theirs.mkdir()
    (theirs / "field").write_text("x")
    (ours / "a").symlink_to(theirs)
    (ours / "b").mkdir()
    (ours / "b" / "field").symlink_to(tmp_path / "nothing")
    tier = disk(tmp_path)
    assert tier.size_bytes == 0
    assert await tier.put(AT, VALUE, 60)
    await tier.expire()
    assert await tier.get(AT) == VALUE
    assert (theirs / "field").read_text() == "x"
    await tier.close()


async def test_what_cannot_be_deleted_keeps_nothing_else(tmp_path: Path) -> None:
    now = [1000.0]
    tier = DiskTier(tmp_path, 2**20, 2**20, Seal(b"secret"), Tombstones(60), now=lambda: now[0])
    stuck, other = (Address("scope", record, "field") for record in ("a", "b"))
    for at in (stuck, other):
        assert await tier.put(at, VALUE, 60)
    folder = tmp_path / "values" / "scope" / "a"
    shutil.rmtree(folder)
    folder.write_text("rmtree takes folders only")
    with pytest.raises(TierError):
        await tier.purge("scope", None)
    assert not (tmp_path / "values" / "scope" / "b").exists()
    now[0] += 61
    with pytest.raises(TierError):
        await tier.expire()
    assert await tier.put(other, VALUE, 60)
    await tier.close()


def test_a_killed_writer_leaves_every_value_whole(tmp_path: Path) -> None:
    """It is killed while it writes values of 4 MB one after the other."""
    writing = textwrap.dedent("""
        import asyncio, sys
        from pathlib import Path
        from opsin.cache.disk import DiskTier
        from opsin.cache.seal import Seal
        from opsin.cache.tier import Address, Value
        from opsin.cache.tombstones import Tombstones

        async def write():
            tier = DiskTier(Path(sys.argv[1]), 2**28, 2**28, Seal(b"secret"), Tombstones(60))
            for number in range(10**6):
                await tier.put(Address("scope", f"r{number % 8}", "f"), Value(b"", bytes([number % 251]) * 2**22), 60)

        asyncio.run(write())
    """)
    writer = subprocess.Popen([sys.executable, "-c", writing, str(tmp_path)])
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "values" / "scope" / "r3" / "f").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    assert asyncio.run(_whole_records(tmp_path)) >= 4


async def _whole_records(folder: Path) -> int:
    tier = disk(folder, 2**28)
    assert list((folder / "half-written").iterdir()) == []
    records = [path.name for path in (folder / "values" / "scope").iterdir()]
    for record in records:
        value = await tier.get(Address("scope", record, "f"))
        assert value is not None
        assert value.data == value.data[:1] * 2**22
    await tier.close()
    return len(records)


async def test_what_has_ended_goes_although_nobody_asks_also_what_a_process_left(tmp_path: Path) -> None:
    first = disk(tmp_path)
    await first.put(AT, VALUE, 0.05)
    await first.close()
    tier = disk(tmp_path)
    expiring = Expiring(tier.expire, interval_s=0.01)
    expiring.start()
    async with asyncio.timeout(30):
        while tier.size_bytes:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
    assert [path for path in (tmp_path / "values").rglob("*") if path.is_file()] == []
    await expiring.close()
    await tier.close()
