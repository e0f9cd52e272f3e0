"""What one record says, each quantity by one formula. Times in milliseconds; None where a request has no such value."""

from __future__ import annotations

from itertools import pairwise

from opsin.bench.config import Slo
from opsin.bench.record import Outcome, Record

_NS_PER_MS = 1e6


def _between(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None else (end - start) / _NS_PER_MS


def is_ok(record: Record) -> bool:
    """A success; see :mod:`opsin.bench.classify`."""
    return record.outcome is Outcome.OK


def was_sent(record: Record) -> bool:
    """Whether the client asked, however that went."""
    return record.outcome is not Outcome.NOT_STARTED


def ttft(record: Record) -> float | None:
    """Time to first token: t_1 - t_send0. The upload is inside, connecting is not."""
    return _between(record.t_send0, record.t_1)


def ttft_sched(record: Record) -> float | None:
    """What a user waits who wants to send at t_sched: t_1 - t_sched, with whatever held the client up."""
    return _between(record.t_sched, record.t_1)


def ttft_after_upload(record: Record) -> float | None:
    """t_1 - t_send1: the wait once the server has the request, as far as its socket buffers tell."""
    return _between(record.t_send1, record.t_1)


def ttfo(record: Record) -> float | None:
    """Time to the first output that is no reasoning: t_o - t_send0."""
    return _between(record.t_send0, record.t_o)


def upload(record: Record) -> float | None:
    """t_send1 - t_send0."""
    return _between(record.t_send0, record.t_send1)


def connect(record: Record) -> float | None:
    """Opening a connection, for the requests that needed one."""
    return None if record.connect_ns is None else record.connect_ns / _NS_PER_MS


def schedule_delay(record: Record) -> float | None:
    """How late the client turned to the request: t_begin - t_sched."""
    return _between(record.t_sched, record.t_begin)


def e2e(record: Record) -> float | None:
    """The content is complete: t_L - t_send0."""
    return _between(record.t_send0, record.t_L)


def e2e_sched(record: Record) -> float | None:
    """t_L - t_sched."""
    return _between(record.t_sched, record.t_L)


def stream_close(record: Record) -> float | None:
    """The stream is over, usage and ``[DONE]`` included: t_done - t_send0."""
    return _between(record.t_send0, record.t_done)


def time_to_failure(record: Record) -> float | None:
    """From the first byte, or from the intent if none left: t_end - t_send0."""
    return _between(record.t_sched if record.t_send0 is None else record.t_send0, record.t_end)


def tpot(record: Record) -> float | None:
    """Time per output token: (t_L - t_1) / (n_out - n_first).

    n_first is what the server counted in the first event, else 1. No value under two tokens, or if all came at once.
    """
    span = _between(record.t_1, record.t_L)
    if span is None or record.n_out is None or record.n_out < 2:
        return None
    later = record.n_out - (record.events[0][1] or 1)
    return span / later if later > 0 else None


def gaps(record: Record) -> list[float]:
    """Gaps between events that bear output. Not between tokens: an event may bring several."""
    return [(late - early) / _NS_PER_MS for (early, _), (late, _) in pairwise(record.events)]


def longest_gap(record: Record) -> float | None:
    """The worst stall."""
    return max(gaps(record), default=None)


def tokens_per_event(record: Record) -> float | None:
    """n_out over events that bear output."""
    return record.n_out / len(record.events) if record.n_out is not None and record.events else None


def visual_per_image(record: Record) -> float | None:
    """Visual tokens over pictures."""
    return record.n_visual / len(record.pictures) if record.n_visual is not None and record.pictures else None


def megapixels(record: Record) -> float:
    """As sent; what the server makes of them it does not tell."""
    return sum(picture.width * picture.height for picture in record.pictures) / 1e6


def cache_outcome(record: Record) -> str | None:
    """Whether the server had to encode pictures for this request, if it tells.

    opsin's timeline lists ``vision_encode`` when anything was encoded, and ``prefill`` whenever the engine tells its
    stages; that of an upstream may hold the encoder. Else a prefix cache that held as many tokens as are visual made
    encoding needless.
    """
    if not record.pictures:
        return None
    timeline = record.timeline_ms or {}
    if "vision_encode_ms" in timeline:
        return "encoded"
    if "prefill_ms" in timeline and "upstream_ms" not in timeline:
        return "all cached"
    if record.n_cached is None or not record.n_visual:
        return None
    return "prefix cached" if record.n_cached >= record.n_visual else None


def keeps(record: Record, slo: Slo, *, open_loop: bool) -> bool | None:
    """Whether a success keeps a limit; None where the quantity does not apply. Open loop: since the intended start."""
    match slo.metric:
        case "ttft":
            value = ttft_sched(record) if open_loop else ttft(record)
        case "e2el":
            value = e2e_sched(record) if open_loop else e2e(record)
        case "tpot":
            value = tpot(record)
    return None if value is None else value <= slo.limit_ms
