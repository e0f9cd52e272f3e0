"""Models of Triton's vLLM backend: a finished prompt, pictures as base64 strings, options as one JSON string.

Its inputs are in ``auto_complete_config`` of https://github.com/triton-inference-server/vllm_backend, ``src/model.py``;
what it makes of them in ``src/utils/request.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from opsin.core.errors import ConfigError
from opsin.engine.api import ChatPrompt, GenerationRequest, SamplingParams
from opsin.engine.triton.shape import PromptText, base64_of
from opsin.engine.triton.wire import Interface, Tensor, Values

T = TypeVar("T")

_TEXT, _IMAGE, _PARAMETERS, _STREAM = "text_input", "image", "sampling_parameters", "stream"
_ALWAYS_TRUE = (_STREAM, "exclude_input_in_output", "return_finish_reason")
_COUNTS = ("return_num_input_tokens", "return_num_output_tokens")


class _Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's SamplingParams, which knows no ``max_tokens`` from a model's length: its default is 16."""

    max_tokens: int
    temperature: float | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET
    min_p: float | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    stop: tuple[str, ...] | UnsetType = UNSET
    min_tokens: int | UnsetType = UNSET
    ignore_eos: bool | UnsetType = UNSET
    presence_penalty: float | UnsetType = UNSET
    frequency_penalty: float | UnsetType = UNSET
    repetition_penalty: float | UnsetType = UNSET


def is_vllm(interface: Interface) -> bool:
    """Whether a model declares what the backend adds to every model of its own."""
    return {_TEXT, _STREAM, _PARAMETERS} <= {spec.name for spec in interface.inputs}


@dataclass(frozen=True, slots=True)
class VllmBackend:
    """Implements :class:`opsin.engine.triton.shape.ModelShape`."""

    interface: Interface
    prompt: PromptText
    max_model_len: int
    kind: str = "vLLM backend"
    ignores_orientation: bool = True  # PIL's ``open`` and ``convert``, and nothing between

    def inputs(self, request: GenerationRequest) -> Sequence[Tensor]:
        """Older backends lack some inputs, so only what is declared is sent."""
        return tuple(self._inputs(request))

    def _inputs(self, request: GenerationRequest) -> Iterator[Tensor]:
        assert isinstance(request.prompt, ChatPrompt), "prompts are written here"
        values: dict[str, Values] = {
            _TEXT: (self.prompt.write(request.prompt.conversation).encode(),),
            _PARAMETERS: (msgspec.json.encode(_parameters(request.sampling, self.max_model_len)),),
            **dict.fromkeys((*_ALWAYS_TRUE, *_COUNTS), (True,)),
        }
        if request.pictures:
            values[_IMAGE] = base64_of(request.pictures)
        return (Tensor(spec, values[spec.name]) for spec in self.interface.inputs if spec.name in values)


def vllm_backend(interface: Interface, prompt: PromptText | None, max_model_len: int | None) -> VllmBackend:
    """``max_model_len`` bounds answers whose length the client leaves open; vLLM ends them there in any case.

    Raises:
        ConfigError: the prompt cannot be written, or no length is known.
    """
    if prompt is None:
        raise ConfigError(
            f"{interface.name} is a model of Triton's vLLM backend, which takes a finished prompt: "
            "name the model whose chat template writes it (--model FOLDER or hub id)"
        )
    if max_model_len is None:
        raise ConfigError(f"{interface.name}: state its context length (--max-model-len), as its model says none")
    return VllmBackend(interface, prompt, max_model_len)


def _parameters(sampling: SamplingParams, max_model_len: int) -> _Parameters:
    return _Parameters(
        max_tokens=sampling.max_tokens or max_model_len,
        temperature=UNSET if "temperature" in sampling.left_open else sampling.temperature,
        top_p=UNSET if "top_p" in sampling.left_open else sampling.top_p,
        top_k=_unless(sampling.top_k, 0),
        min_p=_unless(sampling.min_p, 0.0),
        seed=_unless(sampling.seed, None),
        stop=_unless(sampling.stop, ()),
        min_tokens=_unless(sampling.min_tokens, 0),
        ignore_eos=_unless(sampling.ignore_eos, False),
        presence_penalty=_unless(sampling.presence_penalty, 0.0),
        frequency_penalty=_unless(sampling.frequency_penalty, 0.0),
        repetition_penalty=_unless(sampling.repetition_penalty, 1.0),
    )


def _unless(value: T | None, neutral: T | None) -> T | UnsetType:
    return UNSET if value is None or value == neutral else value
