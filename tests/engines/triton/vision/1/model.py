"""The encoder of the ensemble: one feature per picture, the number of its bytes. Run by Triton's Python backend."""

from __future__ import annotations

import base64
from importlib import import_module
from typing import Any

import numpy as np

triton: Any = import_module("triton_python_backend_utils")


class TritonPythonModel:
    """``image``: base64 strings [n] → ``features``: float32 [n, 1]."""

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        images = triton.get_input_tensor_by_name(request, "image").as_numpy()
        sizes = [[float(len(base64.b64decode(image)))] for image in images]
        features = np.array(sizes, dtype=np.float32).reshape(-1, 1)
        return triton.InferenceResponse([triton.Tensor("features", features)])
