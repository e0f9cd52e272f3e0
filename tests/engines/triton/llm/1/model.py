"""The language model of the ensemble, decoupled: a token per picture, then the text. Run by Triton.

Asked ``slowly`` it goes on for NUM_SLOW tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np

triton: Any = import_module("triton_python_backend_utils")

NUM_SLOW = 200
PAUSE_S = 0.02


class TritonPythonModel:
    """``text_input`` [1] and ``features`` float32 [n, 1] → responses of ``token`` [1]."""

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            for token in _tokens(request):
                tensor = triton.Tensor("token", np.array([token.encode()], dtype=object))
                sender.send(triton.InferenceResponse([tensor]))
            sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _tokens(request: Any) -> Iterator[str]:
    features = triton.get_input_tensor_by_name(request, "features").as_numpy()
    (text,) = triton.get_input_tensor_by_name(request, "text_input").as_numpy()
    if text == b"slowly":
        for _ in range(NUM_SLOW):
            yield "slow"
            time.sleep(PAUSE_S)
    yield from (f"picture_of_{size:.0f}_bytes" for size in features[:, 0])
    yield text.decode()
