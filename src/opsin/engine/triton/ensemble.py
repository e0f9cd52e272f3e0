"""Ensembles, and any other model that takes a text and pictures: encoder → language model → post-processor.

Nobody prescribes their inputs, so what a model declares is matched by name and type. What it declares beside that has
to be optional. Names of options as in the ensembles of TensorRT-LLM's ``triton_backend``, and opsin's own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from opsin.core.conversation import Conversation, TextPart
from opsin.core.errors import ConfigError, InvalidRequest, TooManyImages, UnsupportedParameter
from opsin.engine.api import ChatPrompt, GenerationRequest, SamplingParams
from opsin.engine.triton.shape import PromptText, base64_of
from opsin.engine.triton.wire import Interface, Tensor, TensorSpec, Values

_TEXT = ("text_input", "prompt", "text")
_IMAGES = ("image", "images", "image_input")
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "max_tokens": ("max_tokens", "request_output_len"),
    "temperature": ("temperature",),
    "top_p": ("top_p", "runtime_top_p"),
    "top_k": ("top_k", "runtime_top_k"),
    "min_p": ("min_p",),
    "seed": ("seed", "random_seed"),
    "stop": ("stop", "stop_words"),
    "min_tokens": ("min_tokens", "min_length"),
    "presence_penalty": ("presence_penalty",),
    "frequency_penalty": ("frequency_penalty",),
    "repetition_penalty": ("repetition_penalty",),
}
"""Field of a request → the inputs that may take it."""

_ALWAYS_TRUE = ("stream", "exclude_input_in_output", "exclude_input_from_output", "return_finish_reason")


class LoneTurn:
    """Writes the prompt of a model that has its own way with a question: one turn of a user, as it came."""

    def write(self, conversation: Conversation) -> str:
        """Raises InvalidRequest for more than that."""
        if [message.role for message in conversation.messages] != ["user"]:
            raise InvalidRequest(
                "this Triton model takes one message of a user: opsin knows no chat template to write more of them "
                "(the operator names its model with --model)",
                param="messages",
            )
        return "\n".join(part.text for part in conversation.messages[0].parts if isinstance(part, TextPart))


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Implements :class:`opsin.engine.triton.shape.ModelShape`. ``image`` None: the model takes no pictures."""

    interface: Interface
    prompt: PromptText
    text: TensorSpec
    image: TensorSpec | None
    kind: str = "ensemble"
    ignores_orientation: bool = False  # nobody knows

    def inputs(self, request: GenerationRequest) -> Sequence[Tensor]:
        """In any order; Triton goes by names. An option without an input is refused, not dropped."""
        return tuple(self._inputs(request))

    def _inputs(self, request: GenerationRequest) -> Iterator[Tensor]:
        assert isinstance(request.prompt, ChatPrompt), "prompts are written here"
        yield Tensor(self.text, (self.prompt.write(request.prompt.conversation).encode(),))
        yield from self._pictures(request)
        for name in _ALWAYS_TRUE:
            if spec := self.interface.input(name):
                yield Tensor(spec, (True,))
        for field, values in _stated(request.sampling):
            yield self._option(field, values)

    def _pictures(self, request: GenerationRequest) -> Iterator[Tensor]:
        spec, num_pictures = self.image, len(request.pictures)
        if spec is None:
            if num_pictures:
                raise UnsupportedParameter("this Triton model takes no pictures", param="messages")
            return
        if num_pictures == 0 and spec.optional:
            return
        if spec.length not in (None, num_pictures):
            raise TooManyImages(f"this Triton model takes {spec.length} pictures; the request has {num_pictures}")
        yield Tensor(spec, base64_of(request.pictures))

    def _option(self, field: str, values: Values) -> Tensor:
        for name in _OPTIONS[field]:
            if (spec := self.interface.input(name)) is not None:
                tensor = Tensor(spec, _as_type(spec, values))
                _check(tensor, field)
                return tensor
        declared = ", ".join(spec.name for spec in self.interface.inputs)
        raise UnsupportedParameter(f"this Triton model has no input for '{field}'; it has {declared}", param=field)


def ensemble(interface: Interface, prompt: PromptText | None) -> Ensemble:
    """Raises ConfigError for a model that is no such one, or that needs an input that nobody here can fill."""
    text = _found(interface, _TEXT)
    if text is None:
        raise ConfigError(f"Triton's model {interface.name} has no input for text: {' or '.join(_TEXT)} of TYPE_STRING")
    image = _found(interface, _IMAGES)
    filled = {text.name, *_ALWAYS_TRUE, *((image.name,) if image else ())}
    unfilled = [spec.name for spec in interface.inputs if not spec.optional and spec.name not in filled]
    if unfilled:
        raise ConfigError(
            f"Triton's model {interface.name} has inputs that opsin cannot fill: {', '.join(unfilled)}; "
            "make them optional, or have a step of the ensemble fill them"
        )
    return Ensemble(interface, prompt or LoneTurn(), text, image)


def _found(interface: Interface, names: Sequence[str]) -> TensorSpec | None:
    for name in names:
        spec = interface.input(name)
        if spec is not None and spec.datatype == "BYTES":
            return spec
    return None


def _stated(sampling: SamplingParams) -> Iterator[tuple[str, Values]]:
    """What the client asks for, by field."""
    if sampling.max_tokens is not None:
        yield "max_tokens", (sampling.max_tokens,)
    for field in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
        if field not in sampling.left_open:
            yield field, (getattr(sampling, field),)
    if sampling.seed is not None:
        yield "seed", (sampling.seed,)
    if sampling.stop:
        yield "stop", tuple(text.encode() for text in sampling.stop)
    for field in ("min_tokens", "presence_penalty", "frequency_penalty"):
        if value := getattr(sampling, field):
            yield field, (value,)


def _as_type(spec: TensorSpec, values: Values) -> Values:
    """A number as the declared type writes it; ``struct`` takes no float for an integer."""
    if spec.datatype.startswith(("INT", "UINT")):
        return tuple(value if isinstance(value, bytes) else int(value) for value in values)  # type: ignore[return-value]
    return values


def _check(tensor: Tensor, field: str) -> None:
    try:
        tensor.encoded()
    except (struct.error, KeyError):
        where = f"this model's input {tensor.spec.name} of {tensor.spec.datatype}"
        raise InvalidRequest(f"'{field}' does not fit into {where}", param=field) from None
