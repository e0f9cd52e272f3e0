from __future__ import annotations

import asyncio
from typing import Any

import pytest

from opsin.core.errors import MediaError
from opsin.media.fetch_config import FetchConfig
from opsin.media.fetch_deadline import RATE_GRACE_S, FetchDeadline, Phase

LONG = {"dns_timeout_s": 60.0, "connect_timeout_s": 60.0, "first_byte_timeout_s": 60.0, "total_timeout_s": 60.0}


def deadline(**fields: Any) -> FetchDeadline:
    return FetchDeadline(FetchConfig.model_validate(LONG | fields))


@pytest.mark.parametrize(
    ("phase", "limit", "told"),
    [
        (Phase.RESOLVING, "dns_timeout_s", "finding the host takes longer than 0.05 s"),
        (Phase.CONNECTING, "connect_timeout_s", "connecting takes longer than 0.05 s"),
        (Phase.WAITING, "first_byte_timeout_s", "waiting for an answer takes longer than 0.05 s"),
        (Phase.READING, "total_timeout_s", "the whole fetch takes longer than 0.05 s"),
        (Phase.CONNECTING, "total_timeout_s", "the whole fetch takes longer than 0.05 s"),
    ],
)
async def test_each_phase_has_its_limit_below_the_whole(phase: Phase, limit: str, told: str) -> None:
    with pytest.raises(MediaError, match=told) as caught:
        async with deadline(**{limit: 0.05}) as clock:
            clock.enter(phase)
            await asyncio.sleep(30)
    assert (caught.value.status, caught.value.code) == (400, "media_url_timeout")


async def test_phases_do_not_lengthen_the_whole() -> None:
    with pytest.raises(MediaError, match="the whole fetch"):
        async with deadline(total_timeout_s=0.1) as clock:
            while True:
                clock.enter(Phase.CONNECTING)
                await asyncio.sleep(0.001)


async def test_a_slow_body_is_given_up_after_its_grace() -> None:
    began = asyncio.get_running_loop().time()
    with pytest.raises(MediaError, match="more slowly than 1000 bytes per second"):
        async with deadline(min_bytes_per_s=1000) as clock:
            clock.enter(Phase.READING)
            clock.received(0)
            await asyncio.sleep(0.2)
            clock.received(100)
            await asyncio.sleep(30)
    assert asyncio.get_running_loop().time() - began >= RATE_GRACE_S + 0.1


async def test_a_timeout_inside_is_not_ours() -> None:
    with pytest.raises(TimeoutError, match="theirs"):
        async with deadline():
            raise TimeoutError("theirs")


async def test_cancelling_stays_cancelling() -> None:
    async def work() -> None:
        async with deadline():
            await asyncio.sleep(30)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
