"""The file of results: one JSON object per line, from which every printed number is made again.

The first line is the :class:`Header`; then come, as they happen, a :class:`Record` per request and a :class:`LevelEnd`
per level; the last is the :class:`End`, which a run that was killed lacks. Times are whole nanoseconds of one monotonic
clock since the header's ``zero``; a time that never came is absent. Fields are only ever added within one version.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import IO, Literal

import msgspec

from opsin.core.errors import ConfigError

SCHEMA_VERSION = 1


class Outcome(StrEnum):
    """What became of a request: exactly one. Which one when several fit: :mod:`opsin.bench.classify`."""

    OK = "ok"
    # no connection
    DNS = "dns"
    TLS = "tls"
    CONNECT = "connect"
    # refused
    HTTP_400 = "http_400"
    HTTP_413 = "http_413"
    HTTP_415 = "http_415"
    HTTP_422 = "http_422"
    HTTP_4XX = "http_4xx"  # any other
    SHED = "shed"  # 429, or 503 with Retry-After: the server protects itself
    OOM = "oom"  # a failed status whose body says that memory ran out
    HTTP_5XX = "http_5xx"
    # failed after HTTP 200
    INBAND_ERROR = "inband_error"
    TRUNCATED = "truncated"  # output, but no finish reason and [DONE]; or the connection broke
    EMPTY = "empty"  # a clean end without output
    PROTOCOL = "protocol"  # no event stream, or an event that is no JSON of a chunk
    WRONG_LENGTH = "wrong_length"  # ignore_eos was asked for, and the answer ended before its length
    # the client's doing
    CLIENT_TIMEOUT = "client_timeout"
    CANCELLED = "cancelled"  # in flight when the run was interrupted
    NOT_STARTED = "not_started"  # the client came too late to send it; or a probe, when earlier ones hang


class Kind(StrEnum):
    """Why a request was sent. Only LOAD counts as load."""

    WARMUP = "warmup"  # pictures that never come again
    PRIME = "prime"  # pictures of a warm run, once each
    LOAD = "load"
    PROBE = "probe"  # a short text, to see how pictures hold up others


class Sight(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the client saw of one request.

    ``t_send0`` is the first byte of its head, ``t_send1`` the last of its body as the socket took it, ``t_hdr`` the
    response's head, ``t_role`` the first event of any kind, ``t_1`` the first that bears output and ``t_L`` the last,
    ``t_o`` the first that is no reasoning, ``t_usage`` the usage, ``t_done`` ``[DONE]`` or the end of the body, and
    ``t_end`` when the client was through with it, in whatever way. ``events`` is time and tokens of each event that
    bears output; tokens only if the server counts as it goes, else null.
    """

    id: int
    kind: Kind
    level: int  # -1: before the first
    worker: int
    outcome: Outcome
    t_sched: int
    t_end: int
    t_begin: int | None = None  # the client turned to it
    connect_ns: int | None = None  # None: on a connection that was open
    t_send0: int | None = None
    t_send1: int | None = None
    t_hdr: int | None = None
    t_role: int | None = None
    t_1: int | None = None
    t_o: int | None = None
    t_L: int | None = None  # its name in the literature
    t_usage: int | None = None
    t_done: int | None = None
    events: list[tuple[int, int | None]] = []
    http: int | None = None
    finish_reason: str | None = None
    n_in: int | None = None  # prompt tokens, those of pictures included
    n_out: int | None = None
    n_visual: int | None = None
    n_cached: int | None = None  # prompt tokens whose computation was reused
    timeline_ms: dict[str, float] | None = None  # opsin.timeline, as sent
    error_code: str | None = None
    error_excerpt: str | None = None
    loop_lag_ns: int = 0  # worst of the client's event loop meanwhile


class SentPicture(msgspec.Struct, array_like=True, frozen=True):
    """One picture of one request; ``sha`` is the start of the SHA-256 of its encoded bytes."""

    width: int
    height: int
    num_bytes: int
    sha: str


class Record(Sight, kw_only=True, omit_defaults=True, tag="request", tag_field="type"):
    """One request: what was asked, and what the client saw."""

    pictures: list[SentPicture] = []
    body_bytes: int
    requested_out: int

    @property
    def src_n(self) -> Literal["server", "none"]:
        """Where the count of output tokens is from; never from what was requested."""
        return "none" if self.n_out is None else "server"


class ServerProcess(msgspec.Struct):
    """One process of the server: resident bytes and used CPU seconds at each tick; None while it was not there."""

    pid: int
    name: str
    rss_bytes: list[int | None]
    cpu_s: list[float | None]


class ServerSamples(msgspec.Struct):
    """The server's processes from outside, sampled together."""

    ticks_ns: list[int]
    processes: list[ServerProcess]


class WorkerHealth(msgspec.Struct):
    """How one client process did during one level. ``lags_us``: lateness of its event loop, every 10 ms."""

    worker: int
    wall_s: float
    cpu_s: float
    lags_us: list[int]


class LevelEnd(msgspec.Struct, kw_only=True, tag="level", tag_field="type"):
    """One level, once it is over. ``concurrency`` or ``rate`` is set."""

    level: int
    planned: int
    concurrency: int | None = None
    rate: float | None = None
    t_begin: int
    t_end: int
    workers: list[WorkerHealth]
    server: ServerSamples | None = None
    counters: dict[str, float] = {}  # growth of the server's own counters over the level


class ServerFacts(msgspec.Struct, omit_defaults=True):
    """What the server tells of itself."""

    model: str
    owned_by: str | None = None
    revision: str | None = None
    max_model_len: int | None = None
    version: str | None = None
    running_usage: bool = False  # it counts tokens event by event when asked to


class Provenance(msgspec.Struct):
    """Where and with what the client ran."""

    opsin: str
    python: str
    platform: str
    cpu: str
    cores: int
    load_average: float | None
    started_at: str  # UTC, ISO 8601: for people; durations never use it
    command: list[str]


class Header(msgspec.Struct, kw_only=True, tag="header", tag_field="type"):
    """The first line. ``config`` is the BenchConfig without its key."""

    schema: int = SCHEMA_VERSION
    zero: int  # time.monotonic_ns() that all times count from
    config: dict[str, object]
    server: ServerFacts
    provenance: Provenance
    dataset: str  # SHA-256 over all pictures of the run in order
    notes: list[str] = []


class End(msgspec.Struct, kw_only=True, tag="end", tag_field="type"):
    """The last line: why the run ended."""

    reason: Literal["complete", "interrupted", "failed"]
    message: str = ""


Line = Header | Record | LevelEnd | End


class Writer:
    """Writes lines as they happen, so that a run that is killed leaves what it measured."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder()

    def write(self, line: Line) -> None:
        """One line, handed to the system at once."""
        self._file.write(self._encoder.encode(line) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class Results(msgspec.Struct):
    """A whole file."""

    header: Header
    records: list[Record]
    levels: list[LevelEnd]
    end: End


_CUT_SHORT = End(reason="failed", message="the file has no end: the run was killed")


def read(path: Path) -> Results:
    """Raises ConfigError when it is no file of results, or of another version."""
    try:
        with path.open("rb") as file:
            return collect(_decode(file, path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def collect(lines: Iterator[Line]) -> Results:
    """Lines in the order of a file. Raises ConfigError when the first is no header of this version."""
    header = next(lines, None)
    if not isinstance(header, Header) or header.schema != SCHEMA_VERSION:
        found = f"version {header.schema}" if isinstance(header, Header) else "no header"
        raise ConfigError(f"expected results of opsin bench, version {SCHEMA_VERSION}, found {found}")
    results = Results(header, [], [], _CUT_SHORT)
    for line in lines:
        match line:
            case Record():
                results.records.append(line)
            case LevelEnd():
                results.levels.append(line)
            case End():
                results.end = line
            case Header():
                raise ConfigError("two headers in one file of results")
    return results


def _decode(file: IO[bytes], path: Path) -> Iterator[Line]:
    decoder = msgspec.json.Decoder[Line](Line)
    for number, text in enumerate(file, 1):
        if not text.endswith(b"\n"):
            return  # the line that was being written when the run was killed
        try:
            yield decoder.decode(text)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{path} line {number}: {error}") from None
