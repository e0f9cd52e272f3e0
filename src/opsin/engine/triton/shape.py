"""How one kind of model is asked and read: one small file for each, told apart by what a model declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pybase64

from opsin.core.conversation import Conversation
from opsin.core.errors import Code, EngineError
from opsin.engine.api import Delta, Finished, GenerationRequest, Picture, Usage
from opsin.engine.triton.wire import Response, Tensor, Values
from opsin.engine.upstream.failures import empty, protocol_error

_RUNNING = ("", "None")  # the second is Python's word, as the vLLM backend sends it
_ABORTED = ("abort", "error")


class PromptText(Protocol):
    """Writes conversations as the text that a model reads."""

    def write(self, conversation: Conversation) -> str:
        """With a placeholder for every picture. Raises InvalidRequest."""
        ...


class ModelShape(Protocol):
    """One kind of model."""

    @property
    def kind(self) -> str:
        """In words, for the log."""
        ...

    @property
    def ignores_orientation(self) -> bool:
        """Whether a picture is shown to the model as it is stored."""
        ...

    def inputs(self, request: GenerationRequest) -> Sequence[Tensor]:
        """Raises InvalidRequest for what the model cannot be asked."""
        ...


@dataclass(frozen=True, slots=True)
class OutputNames:
    """Outputs by what they mean; only ``text`` has to be there."""

    text: str = "text_output"
    finish_reason: str = "finish_reason"
    num_input_tokens: str = "num_input_tokens"
    num_output_tokens: str = "num_output_tokens"


class Reply:
    """Folds the responses of one request into deltas and the end."""

    def __init__(self, names: OutputNames, max_tokens: int | None) -> None:
        self._names = names
        self._max_tokens = max_tokens
        self._reason: str | None = None
        self._prompt_tokens: int | None = None
        self._completion_tokens: int | None = None
        self._has_output = False

    def take(self, response: Response) -> Delta | None:
        """What one response brings, if anything: the last one may be empty."""
        names, outputs = self._names, response.outputs
        num_tokens = _number(outputs.get(names.num_output_tokens))
        if num_tokens is not None:
            self._completion_tokens = (self._completion_tokens or 0) + num_tokens
        self._prompt_tokens = _number(outputs.get(names.num_input_tokens)) or self._prompt_tokens
        reason = _text(outputs.get(names.finish_reason, ()))
        if reason in _ABORTED:
            raise EngineError("the upstream gave the request up", code=Code.UPSTREAM_ERROR)
        self._reason = reason if reason not in _RUNNING else self._reason
        if names.text not in outputs:
            return None
        self._has_output = True
        text = _text(outputs[names.text])
        return Delta(text, num_tokens if num_tokens is not None else 1) if text else None

    def finish(self) -> Finished:
        """The end, once the final response has come. Raises EngineError when no response had a text, or it gave up."""
        if not self._has_output:
            raise empty()
        return Finished(
            self._reason or self._guessed_reason(),
            Usage(self._prompt_tokens, self._completion_tokens, image_tokens=None),
            stages_s={},
        )

    def _guessed_reason(self) -> str:
        """Of a model that ends its stream without a word why."""
        return "length" if self._max_tokens and self._completion_tokens == self._max_tokens else "stop"


def base64_of(pictures: Sequence[Picture]) -> list[bytes]:
    """Original bytes as the vLLM backend takes them: no ``data:`` before them."""
    return [_base64(picture) for picture in pictures]


def _base64(picture: Picture) -> bytes:
    assert picture.media is not None, "an engine that reads messages gets the bytes of pictures"
    return bytes(picture.media.base64 or pybase64.b64encode(picture.media.data))


def _text(values: Values) -> str:
    try:
        return b"".join(value for value in values if isinstance(value, bytes)).decode()
    except UnicodeDecodeError:
        raise protocol_error("a text that is no UTF-8") from None


def _number(values: Values | None) -> int | None:
    return int(values[0]) if values else None
