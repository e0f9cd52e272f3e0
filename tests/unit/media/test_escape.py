"""Ways out of a worker, tried in real processes."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from opsin.media.config import MediaConfig
from opsin.media.escape import REFUSED, Way, attempt
from opsin.media.types import ImageFormat

filters_only = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="needs seccomp"
)

UNCONFINED = "from opsin.media.escape import Way, go; go(Way.{way})"


@filters_only
@pytest.mark.parametrize("way", Way)
async def test_no_way_out(way: Way) -> None:
    assert await attempt(way, MediaConfig()) == REFUSED


@filters_only
async def test_no_way_out_where_decoders_have_threads() -> None:
    config = MediaConfig(formats=(ImageFormat.AVIF,))
    assert await attempt(Way.PROGRAM, config) == REFUSED


@pytest.mark.parametrize("way", Way)
def test_without_confinement_each_way_is_open(way: Way) -> None:
    """Else its refusal would prove nothing."""
    ended = subprocess.run([sys.executable, "-c", UNCONFINED.format(way=way.name)], check=False)
    assert ended.returncode == 0


async def test_an_attempt_that_cannot_be_made_is_no_refusal() -> None:
    """Its limit is one that no process can be given."""
    config = MediaConfig(worker_memory_bytes=2**70)
    if sys.platform == "linux":
        assert "not known" in await attempt(Way.FILE, config)
