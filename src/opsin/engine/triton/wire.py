"""What goes over Triton's wire, as values of ours: tensors, what a model declares of itself, its responses.

Bytes of a tensor as in https://github.com/kserve/kserve/blob/master/docs/predict-api/v2/required_api.md: little-endian
and row by row, a string with its length in 4 bytes before it. Knows no gRPC.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from opsin.core.errors import OpsinError
from opsin.engine.upstream.failures import protocol_error

Scalar = bool | int | float
Values = Sequence[Scalar] | Sequence[bytes]

_FORMATS = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP32": "f",
    "FP64": "d",
}
"""The wire's names of the types that ``struct`` knows; BYTES are strings, FP16 and BF16 nobody sends us."""

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output as the model declares it. A dimension of -1 is free. Without the batch dimension."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = False

    @property
    def length(self) -> int | None:
        """How many values it takes; None: any number."""
        return None if not self.dims or min(self.dims) < 0 else _product(self.dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """What a model takes and gives."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    is_batched: bool = False  # every tensor has one more dimension in front

    def input(self, name: str) -> TensorSpec | None:
        """The input of that name."""
        return next((spec for spec in self.inputs if spec.name == name), None)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One dimension of values on their way to a model."""

    spec: TensorSpec
    values: Values

    def encoded(self) -> bytes:
        """The values as bytes. Raises struct.error for a number that its type cannot hold."""
        return encode(self.spec.datatype, self.values)


@dataclass(frozen=True, slots=True)
class Response:
    """One response of a decoupled model: its outputs by name. ``is_final``: nothing follows."""

    outputs: Mapping[str, Values]
    is_final: bool


class Stream(Protocol):
    """One request at the server. Whoever opened it ends it with ``cancel``, also after the last response."""

    def responses(self) -> AsyncGenerator[Response, None]:
        """Up to the final one. Raises OpsinError, also where the stream ends before that."""
        ...

    def cancel(self) -> None:
        """Wakes whoever waits for a response with an error. Idempotent."""
        ...

    @property
    def answered(self) -> bool:
        """Whether any response has arrived."""
        ...


class Service(Protocol):
    """A Triton server, as far as opsin asks it. All raise OpsinError."""

    async def unready_reason(self, model: str) -> str | None:
        """None when server and model are ready."""
        ...

    async def interface(self, model: str) -> Interface:
        """What a model declares."""
        ...

    async def models(self) -> Sequence[str]:
        """All names, ready or not."""
        ...

    def infer(self, request_id: str, interface: Interface, inputs: Sequence[Tensor]) -> Stream:
        """One request on a stream of its own."""
        ...

    async def close(self) -> None:
        """Closes the channel, and with it every stream."""
        ...


def encode(datatype: str, values: Values) -> bytes:
    """Values as bytes. Raises KeyError for a type that is not sent, struct.error for a number out of its range."""
    if datatype == "BYTES":
        return b"".join(piece for value in values for piece in _string(value))
    return struct.pack(f"<{len(values)}{_FORMATS[datatype]}", *values)


def decode(datatype: str, data: bytes) -> Values:
    """The values of a tensor, whatever its shape. Raises EngineError ``upstream_protocol``."""
    try:
        if datatype == "BYTES":
            return tuple(_strings(data))
        size = struct.calcsize(_FORMATS[datatype])
        return struct.unpack(f"<{len(data) // size}{_FORMATS[datatype]}", data)
    except (KeyError, struct.error):
        raise _broken(datatype) from None


def _string(value: object) -> tuple[bytes, bytes]:
    assert isinstance(value, bytes), "a tensor of strings holds bytes"
    return _LENGTH.pack(len(value)), value


def _strings(data: bytes) -> list[bytes]:
    strings: list[bytes] = []
    offset = 0
    while offset < len(data):
        (length,) = _LENGTH.unpack_from(data, offset)
        offset += _LENGTH.size + length
        if offset > len(data):
            raise _broken("BYTES")
        strings.append(data[offset - length : offset])
    return strings


def _broken(datatype: str) -> OpsinError:
    return protocol_error(f"a tensor of {datatype} that cannot be read")


def _product(dims: Sequence[int]) -> int:
    product = 1
    for dim in dims:
        product *= dim
    return product
