"""The fault matrix: what each request is answered when something breaks, by where the request is at that moment.

``test_fault_matrix`` makes every cell happen on a real server, and docs/reliability.md shows the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Where a request is: its body is on its way, or it is in one of the six stages."""

    UPLOAD = "upload"
    MEDIA_LOAD = "media_load"
    PREPROCESS = "preprocess"
    QUEUE = "queue"
    VISION_ENCODE = "vision_encode"
    PREFILL = "prefill"
    DECODE = "decode"


class Fault(StrEnum):
    """What breaks."""

    CLIENT_GONE = "client gone"
    WORKER_KILLED = "render worker killed"
    ENGINE_KILLED = "engine killed"
    DEADLINE = "deadline"
    OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, slots=True)
class Right:
    """The fault does not touch the request."""

    def __str__(self) -> str:
        return "the right answer"


@dataclass(frozen=True, slots=True)
class Gone:
    """Nobody is left to answer; the log has one line."""

    status: int = 499

    def __str__(self) -> str:
        return f"{self.status} in the log"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A typed error: as a status, or as the last event of a stream that has begun."""

    status: int
    code: str

    def __str__(self) -> str:
        return f"{self.status} `{self.code}`"


@dataclass(frozen=True, slots=True)
class Impossible:
    """The fault cannot meet a request there."""

    why: str

    def __str__(self) -> str:
        return f"cannot happen: {self.why}"


Answer = Right | Gone | Refusal | Impossible

_DOWN = Refusal(503, "engine_unavailable")
_DIED = Refusal(503, "engine_died")
_LATE = Refusal(504, "deadline_exceeded")
_SHORT = Refusal(503, "engine_out_of_memory")

MATRIX: dict[Phase, dict[Fault, Answer]] = {
    Phase.UPLOAD: {
        Fault.CLIENT_GONE: Gone(),
        Fault.WORKER_KILLED: Right(),
        Fault.ENGINE_KILLED: _DOWN,
        Fault.DEADLINE: _LATE,
        Fault.OUT_OF_MEMORY: Impossible("bounded by `max_body_bytes` and `max_requests`"),
    },
    Phase.MEDIA_LOAD: {
        Fault.CLIENT_GONE: Gone(),
        Fault.WORKER_KILLED: Right(),
        Fault.ENGINE_KILLED: _DOWN,
        Fault.DEADLINE: _LATE,
        Fault.OUT_OF_MEMORY: Impossible("bounded by the body; nothing is decoded"),
    },
    Phase.PREPROCESS: {
        Fault.CLIENT_GONE: Gone(),
        Fault.WORKER_KILLED: Refusal(503, "render_worker_killed"),
        Fault.ENGINE_KILLED: _DOWN,
        Fault.DEADLINE: _LATE,
        Fault.OUT_OF_MEMORY: Refusal(422, "image_decode_memory"),
    },
    Phase.QUEUE: {
        Fault.CLIENT_GONE: Gone(),
        Fault.WORKER_KILLED: Right(),
        Fault.ENGINE_KILLED: _DIED,
        Fault.DEADLINE: _LATE,
        Fault.OUT_OF_MEMORY: Impossible("a request that waits holds no device memory"),
    },
    Phase.VISION_ENCODE: {
        Fault.CLIENT_GONE: Gone(),
        Fault.WORKER_KILLED: Right(),
        Fault.ENGINE_KILLED: _DIED,
        Fault.DEADLINE: _LATE,
        Fault.OUT_OF_MEMORY: _SHORT,
    },
    Phase.PREFILL: {
        Fault.CLIENT_GONE: Gone(),
        Fault.WORKER_KILLED: Right(),
        Fault.ENGINE_KILLED: _DIED,
        Fault.DEADLINE: _LATE,
        Fault.OUT_OF_MEMORY: _SHORT,
    },
    Phase.DECODE: {
        Fault.CLIENT_GONE: Gone(),
        Fault.WORKER_KILLED: Right(),
        Fault.ENGINE_KILLED: _DIED,
        Fault.DEADLINE: _LATE,
        Fault.OUT_OF_MEMORY: _SHORT,
    },
}


def table() -> str:
    """The matrix in Markdown."""
    header = ["a request in", *Fault]
    rows = [[f"`{phase}`", *(str(answers[fault]) for fault in Fault)] for phase, answers in MATRIX.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))
