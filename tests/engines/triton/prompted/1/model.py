"""Stands for Triton's vLLM backend, which the wheel does not carry: its inputs and outputs, run by the Python backend.

Answers what it was given, word by word. A prompt of more than MAX_CHARS is refused as vLLM refuses a long one.
Asked ``slowly`` it goes on until nobody waits any more, or for MAX_SLOW tokens; asked ``how many`` it tells how many of
them it sent the last time.
"""

from __future__ import annotations

import base64
import json
import time
from importlib import import_module
from typing import Any

import numpy as np

triton: Any = import_module("triton_python_backend_utils")

MAX_CHARS = 4000
MAX_SLOW = 1000
PAUSE_S = 0.02


class TritonPythonModel:
    """Inputs and outputs as in this model's ``config.pbtxt``."""

    def initialize(self, args: object) -> None:
        self._num_slow = 0

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._answer(request, sender)
            except ValueError as error:
                failed = triton.InferenceResponse([], triton.TritonError(f"Error generating stream: {error}"))
                sender.send(failed, flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _answer(self, request: Any, sender: Any) -> None:
        prompt = _values(request, "text_input")[0].decode()
        if len(prompt) > MAX_CHARS:
            raise ValueError(
                f"The decoder prompt (length {len(prompt)}) is longer than the maximum model length of {MAX_CHARS}."
            )
        if "slowly" in prompt:
            self._go_on(sender)
            return
        images = [base64.b64decode(image) for image in _values(request, "image")]
        options = json.loads(_values(request, "sampling_parameters")[0])
        assert all(_values(request, name)[0] for name in ("stream", "exclude_input_in_output", "return_finish_reason"))
        words = [
            *([f"{self._num_slow} of them, "] if "how many" in prompt else []),
            f"{prompt.count('<image>')} places ",
            *(f"{image[:4]!r} " for image in images),
            f"{sorted(options)}",
        ]
        for number, word in enumerate(words, 1):
            sender.send(triton.InferenceResponse(_outputs(word, len(prompt), is_last=number == len(words))))
        sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _go_on(self, sender: Any) -> None:
        self._num_slow = 0
        while self._num_slow < MAX_SLOW and not sender.is_cancelled():
            self._num_slow += 1
            sender.send(triton.InferenceResponse(_outputs("slow ", 1, is_last=False)))
            time.sleep(PAUSE_S)
        sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _values(request: Any, name: str) -> Any:
    tensor = triton.get_input_tensor_by_name(request, name)
    return [] if tensor is None else tensor.as_numpy()


def _outputs(text: str, num_input_tokens: int, *, is_last: bool) -> list[Any]:
    return [
        triton.Tensor("text_output", np.array([text.encode()], dtype=object)),
        triton.Tensor("finish_reason", np.array([b"length" if is_last else b"None"], dtype=object)),
        triton.Tensor("num_input_tokens", np.asarray(num_input_tokens, dtype=np.uint32)),
        triton.Tensor("num_output_tokens", np.asarray([1], dtype=np.uint32)),
    ]
