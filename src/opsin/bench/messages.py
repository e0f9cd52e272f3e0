"""What the run and its worker processes say to each other, over a socket pair: length, then MessagePack."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec

from opsin.bench.record import Kind, Sight, WorkerHealth


class Job(msgspec.Struct, array_like=True, frozen=True):
    """One request. ``spans`` are pieces of the spool; ``due_ns``: after the level's begin, None in a closed loop."""

    id: int
    kind: Kind
    level: int
    spans: list[tuple[int, int]]
    due_ns: int | None = None


class Setup(msgspec.Struct, tag=True):
    """Once, at the start. ``zero_ns`` is the ``time.monotonic_ns()`` that every time is counted from."""

    worker: int
    url: str
    api_key: str | None
    zero_ns: int
    timeout_s: float
    start_tolerance_s: float
    demand_length: bool


class Level(msgspec.Struct, tag=True, kw_only=True):
    """One level's share of a worker. Times since zero.

    ``jobs`` arrive when they are due, or, with ``concurrency``, whenever one of so many is done. ``probes`` are due in
    turn every ``probe_gap_ns`` for as long as jobs run.
    """

    begin_ns: int
    jobs: list[Job]
    concurrency: int | None = None
    stop_ns: int | None = None  # a closed loop starts nothing later
    probes: list[Job] = []
    probe_gap_ns: int = 0


class Stop(msgspec.Struct, tag=True):
    """End the level now; what is in flight is cancelled."""


class Ready(msgspec.Struct, tag=True):
    """Set up."""


class Seen(msgspec.Struct, tag=True):
    """One request is over."""

    sight: Sight


class LevelDone(msgspec.Struct, tag=True):
    """All of a level's jobs of this worker are over."""

    health: WorkerHealth


ToWorker = Setup | Level | Stop
FromWorker = Ready | Seen | LevelDone

_LENGTH_BYTES = 4
_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder[ToWorker](ToWorker)
_from_worker = msgspec.msgpack.Decoder[FromWorker](FromWorker)
_Message = TypeVar("_Message")


def to_frame(message: ToWorker | FromWorker) -> bytes:
    """Bytes on the socket."""
    body = _encoder.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


async def receive_by_worker(reader: asyncio.StreamReader) -> ToWorker | None:
    """The next message of the run; None when it is gone."""
    return await _receive(reader, _to_worker.decode)


async def receive_from_worker(reader: asyncio.StreamReader) -> FromWorker | None:
    """The next message of a worker; None when it is gone."""
    return await _receive(reader, _from_worker.decode)


async def _receive(reader: asyncio.StreamReader, decode: Callable[[bytes], _Message]) -> _Message | None:
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        return decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, OSError):
        return None
