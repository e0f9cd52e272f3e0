"""The post-processor of the ensemble: a token becomes text. Run by Triton's Python backend."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

triton: Any = import_module("triton_python_backend_utils")


class TritonPythonModel:
    """``token`` [1] → ``text_output`` [1]."""

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        (token,) = triton.get_input_tensor_by_name(request, "token").as_numpy()
        text = token.decode().replace("_", " ") + " "
        return triton.InferenceResponse([triton.Tensor("text_output", np.array([text.encode()], dtype=object))])
