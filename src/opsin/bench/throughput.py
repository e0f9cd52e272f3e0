"""What a level got done per second, and whether the client kept to its plan. Pure.

Two windows are told. The *steady* one goes from the level's begin to its last arrival: while it lasts there is load, so
dividing by it is fair. The *whole* one goes on to the end of the last straggler, when the server is half idle.
Requests count in the window in which their content completed, output tokens in that in which their event came; failed
requests bring nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opsin.bench.metrics import is_ok, megapixels
from opsin.bench.record import LevelEnd, Record


class Throughput(msgspec.Struct):
    """Per second of one window, over all clients. A token rate is None when the server counts no such tokens."""

    window_s: float
    requests: float
    images: float
    megapixels: float
    body_megabytes: float
    input_tokens: float | None
    visual_tokens: float | None
    output_tokens: float | None


class Rates(msgspec.Struct):
    """``steady`` is None when all arrived at once."""

    steady: Throughput | None
    whole: Throughput
    in_flight: float  # mean over the steady window, else the whole
    scheduled_rate: float | None = None  # open loop: arrivals per second as drawn
    achieved_rate: float | None = None  # and as the client began them


def rates(records: Sequence[Record], level: LevelEnd) -> Rates:
    """Of one level's load."""
    begin = level.t_begin
    last_arrival = max((record.t_sched for record in records), default=begin)
    end = max((record.t_end for record in records), default=level.t_end)
    steady = _throughput(records, begin, last_arrival) if last_arrival > begin else None
    measured = Rates(
        steady=steady,
        whole=_throughput(records, begin, max(end, begin + 1)),
        in_flight=_in_flight(records, begin, last_arrival if steady else max(end, begin + 1)),
    )
    if level.rate is not None and steady is not None:
        sent = [record.t_begin for record in records if record.t_begin is not None]
        measured.scheduled_rate = len(records) / steady.window_s
        measured.achieved_rate = len(sent) / ((max(sent) - begin) / 1e9) if sent else 0.0
    return measured


def _throughput(records: Sequence[Record], begin: int, end: int) -> Throughput:
    seconds = (end - begin) / 1e9
    successes = [record for record in records if is_ok(record)]
    done = [record for record in successes if begin <= (record.t_L or record.t_end) <= end]

    def rate(counts: Sequence[float | None]) -> float | None:
        told = [count for count in counts if count is not None]
        return sum(told) / seconds if told else None

    return Throughput(
        window_s=seconds,
        requests=len(done) / seconds,
        images=sum(len(record.pictures) for record in done) / seconds,
        megapixels=sum(megapixels(record) for record in done) / seconds,
        body_megabytes=sum(record.body_bytes for record in done) / 1e6 / seconds,
        input_tokens=rate([record.n_in for record in done]),
        visual_tokens=rate([record.n_visual for record in done]),
        output_tokens=rate([_tokens_within(record, begin, end) for record in successes]),
    )


def _tokens_within(record: Record, begin: int, end: int) -> float | None:
    """Tokens of the events in a window; where events are not counted one by one, each has an equal part of n_out."""
    if record.n_out is None or not record.events:
        return record.n_out
    equal = record.n_out / len(record.events)
    counted = all(num_tokens is not None for _, num_tokens in record.events)
    return sum((num_tokens or 0) if counted else equal for at, num_tokens in record.events if begin <= at <= end)


def _in_flight(records: Sequence[Record], begin: int, end: int) -> float:
    """Requests under way at a random moment of a window: the sum of their times in it over its length."""
    spans = ((max(begin, record.t_send0), min(end, record.t_end)) for record in records if record.t_send0 is not None)
    return sum(max(0, stop - start) for start, stop in spans) / (end - begin)
