"""Records as a server's good and bad answers leave them, every field open to change."""

from __future__ import annotations

from typing import Any

from opsin.bench.record import (
    End,
    Header,
    Kind,
    LevelEnd,
    Outcome,
    Provenance,
    Record,
    Results,
    SentPicture,
    ServerFacts,
    WorkerHealth,
)

MS = 1_000_000
PICTURE = SentPicture(512, 512, 100_000, "0123456789abcdef")


def a_record(**fields: Any) -> Record:
    """Sent at 1000 ms, first token after 100 ms, 5 tokens 10 ms apart, closed 50 ms later."""
    start = fields.pop("start", 1000 * MS)
    first = start + 100 * MS
    events = [(first + number * 10 * MS, None) for number in range(5)]
    values: dict[str, Any] = {
        "id": 0,
        "kind": Kind.LOAD,
        "level": 0,
        "worker": 0,
        "outcome": Outcome.OK,
        "t_sched": start,
        "t_begin": start,
        "t_send0": start,
        "t_send1": start + 2 * MS,
        "t_hdr": start + 20 * MS,
        "t_role": start + 20 * MS,
        "t_1": first,
        "t_o": first,
        "t_L": first + 40 * MS,
        "t_usage": first + 90 * MS,
        "t_done": first + 90 * MS,
        "t_end": first + 90 * MS,
        "events": events,
        "http": 200,
        "finish_reason": "stop",
        "n_in": 100,
        "n_out": 5,
        "n_visual": 64,
        "pictures": [PICTURE],
        "body_bytes": 133_500,
        "requested_out": 5,
    }
    return Record(**{**values, **fields})


def a_failure(outcome: Outcome, **fields: Any) -> Record:
    """Refused after 5 ms."""
    start = fields.get("start", 1000 * MS)
    nothing: dict[str, Any] = dict.fromkeys(
        ("t_1", "t_o", "t_L", "t_usage", "finish_reason", "n_in", "n_out", "n_visual")
    )
    return a_record(**{**nothing, "outcome": outcome, "events": [], "t_end": start + 5 * MS, **fields})


def a_level(**fields: Any) -> LevelEnd:
    """Concurrency 2, on a client in good health."""
    values: dict[str, Any] = {
        "level": 0,
        "planned": 2,
        "concurrency": 2,
        "t_begin": 1000 * MS,
        "t_end": 3000 * MS,
        "workers": [WorkerHealth(worker=0, wall_s=2.0, cpu_s=0.1, lags_us=[0] * 100)],
    }
    return LevelEnd(**{**values, **fields})


def a_header(**config: Any) -> Header:
    """Of a closed loop on an idle machine."""
    return Header(
        zero=0,
        config={"url": "http://127.0.0.1:8000", "max_concurrency": [2], **config},
        server=ServerFacts(model="demo", version="1.0"),
        provenance=Provenance(
            opsin="0.1.0",
            python="3.11.7",
            platform="Linux",
            cpu="a CPU",
            cores=2,
            load_average=0.0,
            started_at="2026-01-01T00:00:00+00:00",
            command=["opsin", "bench"],
        ),
        dataset="00" * 32,
    )


def the_results(records: list[Record], *levels: LevelEnd, end: End | None = None, **config: Any) -> Results:
    """A file's content."""
    return Results(a_header(**config), records, list(levels) or [a_level()], end or End(reason="complete"))
