"""From vLLM's prompts and OpenAI's messages, as Python objects, to requests. Knows no model and no engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from opsin.core.conversation import Detail, MediaRef, RawPrompt
from opsin.core.errors import InvalidRequest, UnsupportedParameter
from opsin.gateway.chat import RawRequest
from opsin.llm.pictures import to_url
from opsin.llm.sampling import SamplingParams
from opsin.media.loader import MediaLoader
from opsin.protocol.request import ChatCompletionRequest, parse_request

PromptLike = str | Mapping[str, Any]
"""Raw text, or vLLM's dictionary: ``prompt`` or ``prompt_token_ids``, and ``multi_modal_data``."""

Messages = Sequence[Mapping[str, Any]]
"""One conversation."""

_KEYS = ("prompt", "prompt_token_ids", "multi_modal_data")


@dataclass(frozen=True, slots=True)
class PromptInput:
    """A prompt whose form is right; its pictures are still objects of the caller."""

    text: str | tuple[int, ...]
    pictures: tuple[object, ...]

    def to_request(self, sampling: SamplingParams, loader: MediaLoader) -> RawRequest:
        """Encodes the pictures. Raises MediaError."""
        refs = tuple(
            MediaRef(to_url(picture, loader, param), Detail.AUTO, param)
            for picture, param in ((one, f"multi_modal_data.image.{at}") for at, one in enumerate(self.pictures))
        )
        return RawRequest(RawPrompt(self.text, refs), sampling.to_fields())


def read_prompt(prompt: PromptLike) -> PromptInput:
    """Checks the form of a prompt. Raises InvalidRequest."""
    if isinstance(prompt, str):
        return PromptInput(prompt, ())
    if not isinstance(prompt, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] callers may have no type checker
        raise InvalidRequest(f"a prompt is a string or a dictionary, not {type(prompt).__name__}", param="prompts")
    for key in prompt:
        if key not in _KEYS:
            raise UnsupportedParameter(f"{key!r} is no key of a prompt; there are {', '.join(_KEYS)}", param="prompts")
    return PromptInput(_text(prompt), _pictures(prompt.get("multi_modal_data")))


def _text(prompt: Mapping[str, Any]) -> str | tuple[int, ...]:
    match prompt.get("prompt"), prompt.get("prompt_token_ids"):
        case str(text), None:
            return text
        case None, [*ids] if all(type(token_id) is int for token_id in ids):
            return tuple(ids)
        case _:
            raise InvalidRequest(
                "a prompt needs either 'prompt', a string, or 'prompt_token_ids', a list of integers", param="prompt"
            )


def _pictures(data: object) -> tuple[object, ...]:
    """One picture or a list of them."""
    if data is None:
        return ()
    if not isinstance(data, Mapping):
        raise InvalidRequest("'multi_modal_data' is a dictionary with the key 'image'", param="multi_modal_data")
    media = cast("Mapping[str, object]", data)
    for kind in media:
        if kind != "image":
            raise UnsupportedParameter(f"{kind!r} is not supported: 'image' is", param=f"multi_modal_data.{kind}")
    images = media.get("image")
    if images is None:
        return ()
    return tuple(cast("list[object]", images)) if isinstance(images, list | tuple) else (images,)


def chat_request(messages: Messages, sampling: SamplingParams, loader: MediaLoader) -> ChatCompletionRequest:
    """A conversation, validated as if it had come over HTTP. Raises InvalidRequest and MediaError."""
    body = {**sampling.to_wire(), "messages": [*_wire_messages(messages, loader)]}
    try:
        text = json.dumps(body)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the messages are no JSON: {error}", param="messages") from None
    return parse_request(text.encode())


def _wire_messages(messages: Messages, loader: MediaLoader) -> Iterator[object]:
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None  # pyright: ignore[reportUnnecessaryIsInstance] as above
        if isinstance(content, list | tuple):
            parts = enumerate(cast("list[object]", content))
            wire = [_wire_part(part, loader, f"messages.{index}.content.{place}") for place, part in parts]
            yield {**message, "content": wire}
        else:
            yield message


def _wire_part(part: object, loader: MediaLoader, param: str) -> object:
    """vLLM's ``image_pil`` as a part that HTTP knows; any other part as it is."""
    if not isinstance(part, Mapping):
        return part
    fields = cast("Mapping[str, object]", part)
    if fields.get("type") != "image_pil" or "image_pil" not in fields:
        return fields
    detail = {"detail": fields["detail"]} if "detail" in fields else {}
    url = to_url(fields["image_pil"], loader, f"{param}.image_pil")
    return {"type": "image_url", "image_url": {"url": url, **detail}}
