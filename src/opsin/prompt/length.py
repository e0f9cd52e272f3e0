"""How many tokens a conversation's text takes at an engine that applies its own template; its pictures apart.

To the token where the model's tokenizer and template are at hand, else an estimate. Knows no picture and no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from opsin.core.conversation import Conversation, TextPart
from opsin.core.errors import ConfigError, InvalidRequest
from opsin.prompt.template import PROBE, ChatTemplate, TemplateMessage, TemplatePart, in_parts, reads_parts
from opsin.prompt.tokenizer import Tokenizer

_BYTES_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 8
_TOKENS_PER_PROMPT = 32
"""A system message that templates write unasked is among them."""


@dataclass(frozen=True, slots=True)
class TextLength:
    """Tokens of all that is no picture's, the template's own text among them."""

    tokens: int
    is_exact: bool


class TextMeasure(Protocol):
    """Measures conversations for one model."""

    def length(self, conversation: Conversation) -> TextLength:
        """Never raises: what a template refuses is estimated, and refused by the engine if it has to be."""
        ...


class EstimatedLength:
    """A token for 4 bytes of UTF-8, 8 for each message, 32 for the prompt.

    English prose takes 4 to 5 bytes for a token, Korean and Chinese 4 to 6, source code about 3, digits down to 1.
    """

    def length(self, conversation: Conversation) -> TextLength:
        """See TextMeasure."""
        num_bytes = sum(
            len(part.text.encode(errors="replace"))
            for message in conversation.messages
            for part in message.parts
            if isinstance(part, TextPart)
        )
        tokens = -(-num_bytes // _BYTES_PER_TOKEN) + _TOKENS_PER_MESSAGE * len(conversation.messages)
        return TextLength(tokens + _TOKENS_PER_PROMPT, is_exact=False)


class TemplateLength:
    """The conversation rendered and tokenised as the engine does it, less what the template writes for a picture.

    That is counted with the picture: its placeholder, and markers where they stand in the template.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        """Raises ConfigError for a template that does not take content as a list of parts."""
        self._tokenizer = tokenizer
        self._template = template
        self._estimate = EstimatedLength()
        self._tokens_per_picture = self._measured()

    def length(self, conversation: Conversation) -> TextLength:
        """See TextMeasure."""
        try:
            tokens = self._tokens([in_parts(message, str) for message in conversation.messages])
        except InvalidRequest:
            return self._estimate.length(conversation)
        num_pictures = sum(1 for _ in conversation.media())
        return TextLength(tokens - num_pictures * self._tokens_per_picture, is_exact=not _has_fields(conversation))

    def _tokens(self, messages: Sequence[TemplateMessage]) -> int:
        return len(self._tokenizer.encode(self._template.render(messages)))

    def _measured(self) -> int:
        """Of two pictures the second one: what stands before the first may be written otherwise before a text."""
        try:
            one, two = (self._tokens([_pictures_and_probe(number)]) for number in (1, 2))
            rendered = self._template.render([_pictures_and_probe(1)])
        except InvalidRequest as error:
            raise ConfigError(f"chat template: {error.message}") from error
        if two <= one or not reads_parts(rendered):
            raise ConfigError("chat template: does not take content as a list of parts")
        return two - one


def _has_fields(conversation: Conversation) -> bool:
    """Whether an engine is sent more than is rendered here: tools and the like, of which its template may write."""
    return bool(conversation.fields) or any(message.fields for message in conversation.messages)


def _pictures_and_probe(num_pictures: int) -> TemplateMessage:
    pictures: list[TemplatePart] = [{"type": "image"} for _ in range(num_pictures)]
    return {"role": "user", "content": [*pictures, {"type": "text", "text": PROBE}]}
