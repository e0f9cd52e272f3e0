"""``POST /v1/chat/completions`` as it arrives: validated, then turned into ordered parts.

What is accepted, ignored and refused by name stands in :mod:`opsin.protocol.fields`; what an engine is sent besides, in
:mod:`opsin.protocol.relay`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast

import msgspec
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from opsin.core.conversation import (
    FILE_ID,
    UNBOUNDED,
    Conversation,
    Detail,
    MediaRef,
    Message,
    Part,
    PixelBounds,
    Role,
    TextPart,
)
from opsin.core.errors import Code, InvalidRequest, MediaError
from opsin.protocol.complaints import complaint
from opsin.protocol.fields import (
    PART_TYPES,
    FieldRule,
    Place,
    find_refused,
    is_relayed,
    refuse_unserved,
)
from opsin.protocol.relay import Relayed, relayed

MAX_MESSAGES = 1024
MAX_STOP = 16
MAX_PARTS = 1024
MAX_COUNT = 2**31 - 1


@dataclass(slots=True)
class _Relaying:
    """The context of validating for an engine that is sent what opsin does not read; ``found``: there is something."""

    found: bool = False

    def look(self, place: Place | None, fields: dict[str, object]) -> None:
        """Notes whether any of these fields goes on to the engine."""
        if place is Place.REQUEST or place is Place.MESSAGE:
            self.found = self.found or any(is_relayed(place, name) for name in fields)


class _Wire(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)
    place: ClassVar[Place | None] = None
    """Where the rules for its fields stand."""

    @model_validator(mode="before")
    @classmethod
    def _asked(cls, value: Any, info: ValidationInfo) -> Any:
        """What is asked for: a null asks for nothing, as at OpenAI."""
        if not isinstance(value, dict):
            return value
        fields = cast("dict[str, object]", value)
        relaying: _Relaying | None = info.context
        if relaying is not None:
            relaying.look(cls.place, fields)
        if cls.place is not None and (rule := find_refused(cls.place, fields, relayed=relaying is not None)):
            raise PydanticCustomError("refused_field", "this field is refused", {"rule": rule})
        return {name: given for name, given in fields.items() if given is not None}


DetailName = Literal["auto", "low", "high", "original"]
W = TypeVar("W", bound=_Wire)


def _named_once(part: W, url: str | None, file_id: str | None) -> W:
    if (url is None) == (file_id is None):
        raise PydanticCustomError("named_once", "")
    return part


class ImageUrl(_Wire):
    """The ``image_url`` object of a picture part."""

    place = Place.IMAGE_URL
    url: str | None = None
    file_id: str | None = None
    detail: DetailName = "auto"

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        return _named_once(self, self.url, self.file_id)


def _is_string(value: Any) -> str:
    return "<string>" if isinstance(value, str) else "<other>"


def _part_type(value: Any) -> str:
    """Only strings are put into words: for a list of 4 MB that took 0.3 s, in which nothing else of the process ran."""
    kind = cast("dict[str, object]", value).get("type") if isinstance(value, dict) else None
    return f"<{kind}>" if isinstance(kind, str) else "<none>"


class TextContent(_Wire):
    """``{"type": "text", "text": …}``."""

    place = Place.PART
    type: Literal["text"]
    text: str


class ImageContent(_Wire):
    """``{"type": "image_url", "image_url": {"url": …, "detail": …}}``; a bare string is taken as the URL."""

    place = Place.PART
    type: Literal["image_url"]
    image_url: Annotated[
        Annotated[str, Tag("<string>")] | Annotated[ImageUrl, Tag("<other>")], Discriminator(_is_string)
    ]


class InputImageContent(_Wire):
    """``{"type": "input_image", "image_url": …}`` or ``"file_id"``, as OpenAI's responses have it."""

    place = Place.PART
    type: Literal["input_image"]
    image_url: str | None = None
    file_id: str | None = None
    detail: DetailName = "auto"

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        return _named_once(self, self.image_url, self.file_id)


class UploadedFile(_Wire):
    """The ``file`` object of a part."""

    place = Place.FILE
    file_id: str


class FileContent(_Wire):
    """``{"type": "file", "file": {"file_id": …}}``."""

    place = Place.PART
    type: Literal["file"]
    file: UploadedFile


ContentPart = Annotated[
    Annotated[TextContent, Tag("<text>")]
    | Annotated[ImageContent, Tag("<image_url>")]
    | Annotated[InputImageContent, Tag("<input_image>")]
    | Annotated[FileContent, Tag("<file>")],
    Discriminator(_part_type),
]
"""Unions are told apart by a tag in angle brackets, which :func:`_field_path` leaves out of a client's error."""


class ChatMessage(_Wire):
    """One message of the request."""

    place = Place.MESSAGE
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        Annotated[
            Annotated[str, Tag("<string>")]
            | Annotated[list[ContentPart], Field(max_length=MAX_PARTS, fail_fast=True), Tag("<other>")],
            Discriminator(_is_string),
        ]
        | None
    ) = None

    @field_validator("role", mode="before")
    @classmethod
    def _served(cls, role: Any, info: ValidationInfo) -> Any:
        """Of a tool only where an engine serves tools."""
        if info.context is None and role not in ("system", "developer", "user", "assistant"):
            raise PydanticCustomError("literal_error", "", {"expected": "'system', 'developer', 'user' or 'assistant'"})
        return role


class StreamOptions(_Wire):
    """``stream_options``."""

    place = Place.STREAM_OPTIONS
    include_usage: bool = False


class ProcessorSize(_Wire):
    """``mm_processor_kwargs.size``."""

    place = Place.SIZE
    shortest_edge: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    longest_edge: int | None = Field(default=None, ge=1, le=MAX_COUNT)


class ProcessorFields(_Wire):
    """``mm_processor_kwargs``."""

    place = Place.PROCESSOR
    min_pixels: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    max_pixels: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    size: ProcessorSize | None = None

    @property
    def bounds(self) -> PixelBounds:
        """For a family."""
        size = self.size or ProcessorSize()
        return PixelBounds(
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels,
            shortest_edge=size.shortest_edge,
            longest_edge=size.longest_edge,
        )


class SamplingFields(_Wire):
    """How the answer is chosen; names and ranges are OpenAI's, and vLLM's for the extensions.

    A field that is absent takes the model's own default from ``generation_config.json``.
    """

    max_tokens: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    min_tokens: int = Field(default=0, ge=0, le=MAX_COUNT)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=MAX_COUNT)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=10)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    stop: str | list[str] | None = None
    ignore_eos: bool = False

    @property
    def output_tokens(self) -> int | None:
        """``max_completion_tokens``, or its older name."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ChatCompletionRequest(SamplingFields):
    """The accepted fields of a request."""

    place = Place.REQUEST
    model: str | None = None
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    stream: bool = False
    stream_options: StreamOptions | None = None
    mm_processor_kwargs: ProcessorFields | None = None
    _relayed: Relayed | None = PrivateAttr(default=None)

    @property
    def relayed(self) -> Relayed | None:
        """What the engine is sent besides, if anything."""
        return self._relayed

    def relaying(self, fields: Relayed) -> ChatCompletionRequest:
        """This request, with ``fields`` besides."""
        self._relayed = fields
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage


class _Named(msgspec.Struct):
    model: str | None = None


def model_of(body: bytes | bytearray) -> str | None:
    """The model that a body names; None where it names none, or is no request. Validates nothing else."""
    try:
        return msgspec.json.decode(body, type=_Named).model
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def parse_request(body: bytes | bytearray, *, relay: bool = False) -> ChatCompletionRequest:
    """Returns the validated request. ``relay``: for an engine that is sent more than opsin reads.

    Raises:
        InvalidRequest: not JSON, or a field is wrong; ``param`` names the field, the message never quotes its value.
        UnsupportedParameter: a field asks for what opsin does not do.
    """
    relaying = _Relaying() if relay else None
    try:
        request = ChatCompletionRequest.model_validate_json(body, context=relaying)
    except ValidationError as error:
        raise _invalid(error) from None
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("'stream_options' needs 'stream': true", param="stream_options")
    _check_across_fields(request)
    return request.relaying(relayed(body)) if relaying is not None and relaying.found else request


def check_sampling(fields: dict[str, object]) -> SamplingFields:
    """Sampling fields from this process, under the limits of a request.

    Raises:
        InvalidRequest: a field is wrong; the message quotes the value, which is the caller's own.
        UnsupportedParameter: a field asks for what opsin does not do.
    """
    refuse_unserved(fields)
    try:
        sampling = SamplingFields.model_validate(fields)
    except ValidationError as error:
        wrong = _invalid(error)
        raise InvalidRequest(f"{wrong.message}; got {error.errors()[0]['input']!r}", param=wrong.param) from None
    _check_across_fields(sampling)
    return sampling


def _check_across_fields(request: SamplingFields) -> None:
    stop = request.stop_strings
    if len(stop) > MAX_STOP:
        raise InvalidRequest(f"'stop' takes at most {MAX_STOP} strings, got {len(stop)}", param="stop")
    if "" in stop:
        raise InvalidRequest("'stop' must not contain an empty string", param="stop")
    if request.output_tokens is not None and request.min_tokens > request.output_tokens:
        raise InvalidRequest(
            f"'min_tokens' ({request.min_tokens}) is larger than 'max_tokens' ({request.output_tokens})",
            param="min_tokens",
        )


def _invalid(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_input=False)[0]
    param = _field_path(first["loc"])
    match first["type"]:
        case "json_invalid":
            return InvalidRequest("the body is not valid JSON", code=Code.INVALID_JSON)
        case "refused_field":
            return _refused_field(first, param)
        case "union_tag_invalid" | "union_tag_not_found":
            return _unsupported_part(first, param)
        case mistake:
            subject = f"'{param}'" if param else "the request"
            return InvalidRequest(f"{subject} {complaint(mistake, first.get('ctx', {}))}", param=param or None)


def _refused_field(error: ErrorDetails, param: str) -> InvalidRequest:
    rule = error.get("ctx", {})["rule"]
    assert isinstance(rule, FieldRule)
    return rule.refusal(f"{param}.{rule.name}" if param else rule.name)


def _unsupported_part(error: ErrorDetails, param: str) -> InvalidRequest:
    """Quotes the type only when it is one that other servers know."""
    rule = PART_TYPES.get(str(error.get("ctx", {}).get("tag", ""))[1:-1])
    message = f"a part of type '{rule.name}' is not supported: {rule.note}" if rule else _PART_NEEDS_TYPE
    return InvalidRequest(f"'{param}': {message}", code=Code.UNSUPPORTED_CONTENT_PART, param=param)


_PART_NEEDS_TYPE = "a content part must have type 'text', 'image_url', 'input_image' or 'file'"


def _field_path(location: Sequence[int | str]) -> str:
    """Pydantic's location without the tags of unions, which mean nothing to a client."""
    return ".".join(str(step) for step in location if not str(step).startswith("<"))


_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def to_conversation(request: ChatCompletionRequest) -> Conversation:
    """Ordered parts of all messages.

    Raises:
        MediaError: a picture outside a user message.
    """
    further = request.relayed or Relayed((), ((),) * len(request.messages))
    messages: list[Message] = []
    for index, (message, fields) in enumerate(zip(request.messages, further.messages, strict=True)):
        parts = _parts(message, f"messages.{index}.content")
        if message.role != "user" and any(isinstance(part, MediaRef) for part in parts):
            raise MediaError(
                f"a picture may only stand in a user message, not in one of role '{message.role}'",
                code=Code.MEDIA_IN_WRONG_ROLE,
                param=f"messages.{index}.content",
            )
        messages.append(Message(_ROLES[message.role], parts, fields))
    kwargs = request.mm_processor_kwargs
    return Conversation(tuple(messages), UNBOUNDED if kwargs is None else kwargs.bounds, further.request)


def _parts(message: ChatMessage, param: str) -> tuple[Part, ...]:
    match message.content:
        case None:
            return ()
        case str(text):
            return (TextPart(text),)
        case parts:
            return tuple(_part(part, f"{param}.{index}") for index, part in enumerate(parts))


def _part(part: TextContent | ImageContent | InputImageContent | FileContent, param: str) -> Part:
    match part:
        case TextContent():
            return TextPart(part.text)
        case FileContent():
            return MediaRef(FILE_ID + part.file.file_id, Detail.AUTO, f"{param}.file.file_id")
        case InputImageContent():
            return _picture(part.image_url, part.file_id, part.detail, f"{param}.image_url", f"{param}.file_id")
        case ImageContent(image_url=str(url)):
            return MediaRef(url, Detail.AUTO, f"{param}.image_url")
        case ImageContent(image_url=ImageUrl() as one):
            param = f"{param}.image_url"
            return _picture(one.url, one.file_id, one.detail, param, f"{param}.file_id")
        case _:
            raise AssertionError("a part is one of these")


def _picture(url: str | None, file_id: str | None, detail: DetailName, url_param: str, file_param: str) -> MediaRef:
    if url is not None:
        return MediaRef(url, Detail(detail), url_param)
    assert file_id is not None, "validated"
    return MediaRef(FILE_ID + file_id, Detail(detail), file_param)
