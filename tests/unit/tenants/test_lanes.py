"""Slots at the engine: never more than there are, never one lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from opsin.core.errors import Code, Overloaded
from opsin.tenants.lanes import Cost, Lanes

TEXT, PICTURE = Cost(0, 10), Cost(1000, 10)


async def run(lanes: Lanes, tenant: str, cost: Cost, cap: int | None, running: list[str], order: list[str]) -> None:
    if not lanes.try_enter(tenant, cap):
        await lanes.enter(tenant, cost)
    running.append(tenant)
    order.append(tenant)
    try:
        await asyncio.sleep(0)
    finally:
        running.remove(tenant)
        lanes.leave(tenant)


@pytest.mark.parametrize("seed", range(20))
async def test_slots_are_never_too_many_and_never_lost_whoever_leaves(seed: int) -> None:
    """Clients that leave while they wait, in the moment of their turn, and afterwards."""
    chance = random.Random(seed)
    lanes, running, order = Lanes(3, timeout_s=60), list[str](), list[str]()
    tasks = list[asyncio.Task[None]]()
    for _ in range(60):
        tenant, cost = chance.choice("abc"), chance.choice((TEXT, PICTURE))
        cap = 1 if tenant == "a" else None
        tasks.append(asyncio.create_task(run(lanes, tenant, cost, cap, running, order)))
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        if chance.random() < 0.3:
            chance.choice(tasks).cancel()
        assert len(running) <= 3
        assert running.count("a") <= 1
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(one) for one in ended} <= {type(None), asyncio.CancelledError}
    assert lanes.waiting == 0
    assert all(lanes.try_enter("b", None) for _ in range(3)), "all slots are back"
    assert not lanes.try_enter("b", None)


async def test_nobody_waits_for_longer_than_the_limit() -> None:
    lanes = Lanes(1, timeout_s=0.01)
    assert lanes.try_enter("a", None)
    with pytest.raises(Overloaded, match=r"max_queue_s") as caught:
        await lanes.enter("b", TEXT)
    assert (caught.value.code, caught.value.status, lanes.waiting) == (Code.QUEUE_TIMEOUT, 503, 0)
    lanes.leave("a")
    assert lanes.try_enter("b", None)


async def test_pictures_of_one_wait_for_texts_of_another() -> None:
    lanes, running, order = Lanes(1, timeout_s=60), list[str](), list[str]()
    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(run(lanes, "pictures", PICTURE, None, running, order))
        for _ in range(10):
            group.create_task(run(lanes, "text", TEXT, None, running, order))
    assert order.index("text") <= 2
    assert [tenant for tenant in order[:12] if tenant == "text"] == ["text"] * 10


async def test_who_waits_for_its_own_limit_holds_up_nobody() -> None:
    lanes = Lanes(2, timeout_s=60)
    assert lanes.try_enter("a", 1)
    assert not lanes.try_enter("a", 1)
    waiting = asyncio.create_task(lanes.enter("a", TEXT))
    await asyncio.sleep(0)
    assert lanes.try_enter("b", None), "the free slot is not for the one that waits"
    lanes.leave("a")
    await waiting
