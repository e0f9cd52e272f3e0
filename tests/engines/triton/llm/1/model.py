"""The language model of the ensemble, decoupled: a token per picture, then the text. Run by Triton."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

triton: Any = import_module("triton_python_backend_utils")


class TritonPythonModel:
    """``text_input`` [1] and ``features`` float32 [n, 1] → n + 1 responses of ``token`` [1]."""

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            for token in _tokens(request):
                tensor = triton.Tensor("token", np.array([token.encode()], dtype=object))
                sender.send(triton.InferenceResponse([tensor]))
            sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _tokens(request: Any) -> list[str]:
    features = triton.get_input_tensor_by_name(request, "features").as_numpy()
    (text,) = triton.get_input_tensor_by_name(request, "text_input").as_numpy()
    return [*(f"picture_of_{size:.0f}_bytes" for size in features[:, 0]), text.decode()]
