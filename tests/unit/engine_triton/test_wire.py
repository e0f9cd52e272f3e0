"""Tensors as bytes and back."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsin.core.errors import EngineError
from opsin.engine.triton.wire import TensorSpec, decode, encode

tritons_own: Any = import_module("tritonclient.utils")  # without types


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_strings_are_written_and_read_as_tritons_own_client_does(strings: list[bytes]) -> None:
    data = encode("BYTES", strings)
    if strings:
        assert data == tritons_own.serialize_byte_tensor(np.array(strings, dtype=object)).item()
        assert [*tritons_own.deserialize_bytes_tensor(data)] == strings
    assert decode("BYTES", data) == tuple(strings)


@pytest.mark.parametrize(
    ("datatype", "values"), [("BOOL", (True, False)), ("UINT32", (1, 2**32 - 1)), ("FP32", (0.5,))]
)
def test_numbers(datatype: str, values: tuple[float, ...]) -> None:
    assert decode(datatype, encode(datatype, values)) == values


@given(st.binary(max_size=30), st.sampled_from(["BYTES", "UINT32", "FP16", "BF16"]))
def test_what_a_server_sends_is_read_or_refused_by_type(data: bytes, datatype: str) -> None:
    try:
        decode(datatype, data)
    except EngineError as error:
        assert error.code == "upstream_protocol"


def test_a_free_dimension_takes_any_number() -> None:
    assert TensorSpec("image", "BYTES", (-1,)).length is None
    assert TensorSpec("image", "BYTES", (2, 3)).length == 6
