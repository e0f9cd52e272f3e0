"""The typed messages between the engine's two processes, and their framing.

A frame is four bytes of big-endian length and one msgpack document. Every Submit is answered by exactly one Ended or
Failed; every Reserve and Purge by its reply with the same serial. Knows no transport and no torch.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from opsin.core.errors import Code, OpsinError
from opsin.core.stages import Stage
from opsin.engine.api import FinishReason, SamplingParams

HEADER_BYTES = 4


class Load(msgspec.Struct, tag=True, frozen=True):
    """First message: the LocalEngineConfig as JSON."""

    config_json: bytes


class Reserve(msgspec.Struct, tag=True, frozen=True):
    """Lease what exists of ``keys``."""

    serial: int
    request_id: str
    keys: tuple[str, ...]


class Release(msgspec.Struct, tag=True, frozen=True):
    """Give the leases of a request back."""

    request_id: str


class Tiles(msgspec.Struct, frozen=True):
    """uint8 RGB, C order, shape (num_tiles, height, width, 3).

    ``original`` is width and height of the picture that they were made of, which only some families' encoders ask for.
    """

    pixels: bytes
    num_tiles: int
    width: int
    height: int
    original: tuple[int, int] = (0, 0)


class PictureData(msgspec.Struct, frozen=True):
    """One picture of a request; ``tiles`` is None when its features were leased. Unless ``keep`` nothing of it is."""

    key: str
    image_tokens: int
    tiles: Tiles | None
    origin: str = ""
    keep: bool = True


class Submit(msgspec.Struct, tag=True, frozen=True):
    """Run a request. ``submitted_at`` is ``time.monotonic()``, one clock for all processes of a machine."""

    request_id: str
    scope: str
    prompt_ids: tuple[int, ...]
    pictures: tuple[PictureData, ...]
    sampling: SamplingParams
    submitted_at: float


class Cancel(msgspec.Struct, tag=True, frozen=True):
    """Stop a request; it still gets its Ended, with reason ``cancelled``. Unknown ids are not answered."""

    request_id: str


class Purge(msgspec.Struct, tag=True, frozen=True):
    """Erase what is kept of one picture of a scope, or of the whole scope."""

    serial: int
    scope: str
    origin: str | None


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """Leave."""


ToWorker = Load | Reserve | Release | Submit | Cancel | Purge | Shutdown


class WireError(msgspec.Struct, frozen=True):
    """An OpsinError, as data; the code stands for the class."""

    code: Code
    message: str
    retry_after_s: int | None = None


class Progress(msgspec.Struct, tag=True, frozen=True):
    """What loading is busy with, in words."""

    step: str


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The model is loaded."""

    load_time_s: float
    device: str
    dtype: str
    max_num_seqs: int


class LoadFailed(msgspec.Struct, tag=True, frozen=True):
    """The model cannot be loaded; the worker leaves."""

    error: WireError


class Reserved(msgspec.Struct, tag=True, frozen=True):
    """Answer to Reserve."""

    serial: int
    leased: tuple[str, ...]


class Token(msgspec.Struct, frozen=True):
    """One generated token that becomes text; an end-of-sequence token that ends a request is not sent."""

    request_id: str
    token_id: int


EndReason = FinishReason | Literal["cancelled"]


class Ended(msgspec.Struct, frozen=True):
    """A request left the engine by itself or by Cancel; ``completion_tokens`` counts a final end-of-sequence token.

    ``cached_tokens`` are prompt positions whose keys and values were there already. ``peak_memory_bytes`` is that of
    the device, or of the worker, while the request ran; None if it was not alone, or nobody tells.
    """

    request_id: str
    reason: EndReason
    prompt_tokens: int
    completion_tokens: int
    image_tokens: int
    cached_tokens: int
    stages_s: dict[Stage, float]
    encoded_pictures_s: tuple[float, ...]
    encoded_tiles: int
    peak_memory_bytes: int | None = None


class Failed(msgspec.Struct, frozen=True):
    """A request left the engine by an error."""

    request_id: str
    error: WireError


class CoreStats(msgspec.Struct, frozen=True):
    """Gauges of the worker; ``device_memory_bytes`` is None where the device has no memory of its own.

    ``cache_bytes`` are vision features, of a sample only while ``cache_turned_down``; ``kv_cache_bytes`` is what is
    allocated for running requests.
    """

    kv_tokens: int = 0
    kv_image_tokens: int = 0
    cache_bytes: int = 0
    prefix_cache_bytes: int = 0
    cache_turned_down: bool = False
    kv_cache_bytes: int = 0
    device_memory_bytes: int | None = None


class Purged(msgspec.Struct, tag=True, frozen=True):
    """Answer to Purge; ``erased`` entries were removed."""

    serial: int
    erased: int
    stats: CoreStats


class StepOutput(msgspec.Struct, tag=True, frozen=True):
    """Everything that one engine step produced, in the order in which it must be read: tokens, ended, failed."""

    tokens: tuple[Token, ...]
    ended: tuple[Ended, ...]
    failed: tuple[Failed, ...]
    stats: CoreStats


FromWorker = Progress | Ready | LoadFailed | Reserved | Purged | StepOutput

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def error_to_wire(error: OpsinError) -> WireError:
    """What crosses of an error."""
    return WireError(error.code, error.message, error.retry_after_s)


def error_from_wire(error: WireError) -> OpsinError:
    """The error to raise on this side."""
    return error.code.error(error.message, code=error.code, retry_after_s=error.retry_after_s)


def to_frame(message: ToWorker | FromWorker) -> bytes:
    """One message with its length."""
    body = _encoder.encode(message)
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def body_length(header: bytes) -> int:
    """How many bytes follow a frame's header."""
    return int.from_bytes(header, "big")


def decode_to_worker(body: bytes) -> ToWorker:
    """For the worker's side. Raises msgspec.ValidationError."""
    return _to_worker.decode(body)


def decode_from_worker(body: bytes) -> FromWorker:
    """For the parent's side. Raises msgspec.ValidationError."""
    return _from_worker.decode(body)
