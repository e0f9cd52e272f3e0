"""Who is asked when, without a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

import pytest

from opsin.bench.dispatch import play
from opsin.bench.messages import Job, Level
from opsin.bench.record import Kind
from tests.tries import tried

MS = 1_000_000


class Recorder:
    """Takes ``seconds`` for each request and keeps when it was asked."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.asked: list[tuple[int, int, int]] = []  # id, due, at
        self.skipped: list[int] = []
        self.at_once = self.most_at_once = 0
        self.cancelled = 0
        self.five_asked = asyncio.Event()
        self._seconds = seconds

    async def ask(self, job: Job, due: int) -> None:
        self.asked.append((job.id, due, time.monotonic_ns()))
        if len(self.asked) == 5:
            self.five_asked.set()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.at_once -= 1

    def skip(self, job: Job, due: int) -> None:
        self.skipped.append(job.id)


def jobs(count: int, due_ms: Sequence[int] | None = None) -> list[Job]:
    return [
        Job(id=n, kind=Kind.LOAD, level=0, spans=[], due_ns=due_ms[n] * MS if due_ms else None) for n in range(count)
    ]


async def played(recorder: Recorder, **fields: object) -> Recorder:
    level = Level(begin_ns=time.monotonic_ns(), **fields)  # pyright: ignore[reportArgumentType]
    await play(level, time.monotonic_ns, recorder)
    return recorder


async def test_a_closed_loop_keeps_so_many_in_flight() -> None:
    recorder = await played(Recorder(0.01), jobs=jobs(20), concurrency=3)
    assert recorder.most_at_once == 3
    assert [asked[0] for asked in recorder.asked] == list(range(20))


@tried
async def test_a_closed_loop_starts_nothing_after_its_time() -> None:
    stop = time.monotonic_ns() + 50 * MS
    recorder = await played(Recorder(0.02), jobs=jobs(1000), concurrency=1, stop_ns=stop)
    assert 1 <= len(recorder.asked) <= 4
    assert all(at < stop + 5 * MS for *_, at in recorder.asked)


@tried
async def test_an_open_loop_does_not_wait_for_answers() -> None:
    due_ms = [0, 5, 10, 15, 20]
    recorder = await played(Recorder(0.2), jobs=jobs(5, due_ms))
    assert recorder.most_at_once == 5
    assert [due for _, due, _ in recorder.asked] == [recorder.asked[0][1] + ms * MS for ms in due_ms]


@tried
async def test_delays_do_not_add_up() -> None:
    """200 arrivals, 1 ms apart: with relative sleeps each late one would move all that follow."""
    recorder = await played(Recorder(), jobs=jobs(200, list(range(200))))
    lateness = [at - due for _, due, at in recorder.asked]
    assert min(lateness) >= 0
    assert sorted(lateness)[100] < 50 * MS


@tried
async def test_probes_come_for_as_long_as_the_load_lasts() -> None:
    recorder = await played(Recorder(0.1), jobs=jobs(1), concurrency=1, probes=jobs(2), probe_gap_ns=20 * MS)
    assert 3 <= len(recorder.asked) + len(recorder.skipped) <= 8


@tried
async def test_probes_do_not_pile_up() -> None:
    recorder = await played(Recorder(0.2), jobs=jobs(1), concurrency=1, probes=jobs(9), probe_gap_ns=10 * MS)
    assert recorder.most_at_once == 1 + 4
    assert recorder.skipped
    assert recorder.cancelled in (3, 4)  # those in flight when the load was over


@pytest.mark.parametrize("concurrency", [None, 5])
async def test_cancelling_a_level_cancels_what_is_in_flight(concurrency: int | None) -> None:
    recorder = Recorder(30)
    playing = asyncio.create_task(played(recorder, jobs=jobs(5, [0] * 5), concurrency=concurrency))
    await asyncio.wait_for(recorder.five_asked.wait(), 5)
    playing.cancel()
    with suppress(asyncio.CancelledError):
        await playing
    assert (recorder.cancelled, recorder.at_once) == (5, 0)
