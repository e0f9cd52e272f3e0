"""Deadlines and heartbeats of answers that take their time."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from opsin.core.errors import DeadlineExceeded, InvalidRequest, Overloaded
from opsin.gateway.closing import Closing
from opsin.gateway.deadline import Deadline
from opsin.gateway.presence import Presence
from opsin.gateway.relay import Relay, Silence
from tests.tries import tried


class Source:
    """Numbers after pauses; knows whether it was closed."""

    def __init__(self, *pauses_s: float) -> None:
        self.pauses_s = pauses_s
        self.closed = False

    async def events(self) -> AsyncGenerator[int, None]:
        try:
            for number, pause_s in enumerate(self.pauses_s):
                await asyncio.sleep(pause_s)
                yield number
        finally:
            self.closed = True


def relay(source: Source, deadline: Deadline | None = None, interval_s: float = 10) -> Relay[int]:
    return Relay(source.events(), deadline or Deadline.after(60, Closing()), interval_s)


async def read(stream: Relay[int]) -> list[int | Silence]:
    return [event async for event in stream]


async def test_what_is_in_time_passes() -> None:
    source = Source(0, 0, 0)
    assert await read(relay(source)) == [0, 1, 2]
    assert source.closed


@tried
async def test_the_deadline_takes_the_place_of_the_next_event_and_closes_the_source() -> None:
    source = Source(0, 30)
    seen: list[int | Silence] = []
    with pytest.raises(DeadlineExceeded, match=r"longer than 0\.2 s"):
        async for event in relay(source, Deadline.after(0.2, Closing())):
            seen.append(event)
    assert seen == [0]
    assert source.closed


async def test_the_end_of_the_server_leaves_what_outlasts_an_answer_its_grace() -> None:
    closing = Closing()
    answer = Deadline.after(60, closing)
    reading = asyncio.create_task(answer.later(0.3).within(asyncio.sleep(30)))
    late = asyncio.create_task(answer.later(30).within(asyncio.sleep(0.1, "read")))
    await asyncio.sleep(0)
    closing.begin()
    with pytest.raises(Overloaded, match="shutting down"):
        await answer.within(asyncio.sleep(30))
    assert not reading.done()
    assert await late == "read"
    assert await answer.later(30).within(asyncio.sleep(0, "begun later")) == "begun later"
    with pytest.raises(Overloaded):
        await asyncio.wait_for(reading, 10)


async def test_the_end_of_the_server_never_prolongs_a_deadline() -> None:
    closing = Closing()
    waiting = asyncio.create_task(Deadline.after(0.1, closing).later(0.1).within(asyncio.sleep(30)))
    await asyncio.sleep(0)
    closing.begin()
    started = time.monotonic()
    with pytest.raises(Overloaded):
        await asyncio.wait_for(waiting, 10)
    assert time.monotonic() - started < 5


def test_a_client_may_ask_for_less_time_and_not_for_more() -> None:
    deadline = Deadline.after(10, Closing())
    assert [deadline.lowered(wish).limit_s for wish in (None, "2.5", "10", "600")] == [10, 2.5, 10, 10]
    for wish in ("0", "-1", "nan", "inf", "1e3", "soon", "", "1" * 20):
        with pytest.raises(InvalidRequest, match="x-request-timeout"):
            deadline.lowered(wish)


async def test_a_timeout_of_the_source_itself_is_not_the_deadline() -> None:
    async def failing() -> AsyncGenerator[int, None]:
        raise TimeoutError("its own")
        yield 0

    with pytest.raises(TimeoutError, match="its own"):
        await anext(Relay(failing(), Deadline.after(5, Closing()), 10))


async def test_a_closing_server_ends_the_waits_of_now_and_those_to_come() -> None:
    closing = Closing()
    deadline = Deadline.after(30, closing)
    source = Source(0, 30)
    events = relay(source, deadline)
    assert await anext(events) == 0
    following = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.01)
    closing.begin()
    for late in (following, anext(relay(Source(30), Deadline.after(30, closing)))):
        with pytest.raises(Overloaded) as caught:
            await late
        assert (caught.value.code, caught.value.retry_after_s) == ("shutting_down", 5)
    assert source.closed
    assert await deadline.later(1).within(asyncio.sleep(0.01, "its last words")) == "its last words"


@tried
async def test_silence_is_told_and_the_wait_goes_on() -> None:
    source = Source(0, 0.35, 0)
    events = await read(relay(source, interval_s=0.1))
    assert [event for event in events if not isinstance(event, Silence)] == [0, 1, 2]
    assert Silence() in events
    assert events.index(Silence()) == 1
    assert source.closed


async def test_closing_in_the_middle_of_a_wait_closes_the_source() -> None:
    source = Source(30)
    async with relay(source, interval_s=0.05) as stream:
        assert await anext(stream) == Silence()
    assert source.closed


async def test_cancelling_the_wait_leaves_the_source_to_be_closed() -> None:
    source = Source(30)
    async with relay(source) as stream:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(stream)
    assert source.closed


async def test_what_came_together_is_there_together_and_a_slow_reader_holds_the_source_up() -> None:
    made = 0

    async def endless() -> AsyncGenerator[int, None]:
        nonlocal made
        while True:
            yield made
            made += 1

    async with Relay(endless(), Deadline.after(60, Closing()), 10) as stream:
        assert await anext(stream) == 0
        assert stream.has_more
        for number in range(1, 500):
            assert await anext(stream) == number
            assert made <= number + 65
        await asyncio.sleep(0.01)
        assert made <= 500 + 65


async def test_an_answer_whose_last_event_was_read_ends_by_itself() -> None:
    given_back = False

    async def answer() -> AsyncGenerator[int, None]:
        nonlocal given_back
        yield 0
        await asyncio.sleep(0.05)  # as for the last bytes of a connection, which can then be used again
        given_back = True

    for is_whole in (False, True):
        async with Relay(answer(), Deadline.after(60, Closing()), 10) as stream:
            assert await anext(stream) == 0
            if is_whole:
                stream.let_end()
        assert given_back is is_whole


async def test_a_watched_block_leaves_nothing_to_the_garbage_collector() -> None:
    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nobody leaves")

    gc.disable()
    try:
        async with Presence(receive) as presence:
            presence.watch()
            await asyncio.sleep(0)
        gone = weakref.ref(presence)
        del presence
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert gone() is None
    finally:
        gc.enable()
