"""Prompts as text, for engines that take a finished prompt with pictures beside it and tokenise it themselves.

Each picture is what the model's own template writes for one, such as ``<image>`` or Qwen's
``<|vision_start|><|image_pad|><|vision_end|>``: what vLLM looks for in a prompt. That no text spells it is the work of
:mod:`opsin.prompt.guard`. Knows no engine.
"""

from __future__ import annotations

from opsin.core.conversation import Conversation, Message, TextPart
from opsin.core.errors import ConfigError, InvalidRequest
from opsin.prompt.template import PROBE, ChatTemplate, TemplateMessage, TemplatePart, in_parts, reads_parts


class TextPrompt:
    """Writes the prompts of one checkpoint."""

    def __init__(self, template: ChatTemplate, image_token: str | None, opening: str = "") -> None:
        """``image_token`` stands for a picture where the template takes content as one string.

        ``opening`` is what the engine's tokenizer puts before every text: a template that writes it too would have it
        there twice.

        Raises:
            ConfigError: the template takes it so and there is none, or it writes nothing for a picture.
        """
        self._template = template
        self._opening = opening
        placeholder = self._written_for_a_picture()
        self._wants_parts = placeholder is not None
        self._placeholder = placeholder or image_token
        if self._placeholder is None:
            raise ConfigError("chat template: takes a content as a string, and config.json names no image_token_id")

    def write(self, conversation: Conversation) -> str:
        """The prompt, a placeholder for every picture, in order.

        Raises:
            InvalidRequest: the template refuses the conversation, or drops a picture of it.
        """
        assert self._placeholder is not None, "__init__ has looked"
        text = self._template.render([self._message(message) for message in conversation.messages])
        num_places, num_pictures = text.count(self._placeholder), sum(1 for _ in conversation.media())
        if num_places != num_pictures:
            raise InvalidRequest(
                f"the chat template has places for {num_places} pictures, the request has {num_pictures}"
            )
        return text.removeprefix(self._opening)

    def _message(self, message: Message) -> TemplateMessage:
        if self._wants_parts:
            return in_parts(message, str)
        lines = (part.text if isinstance(part, TextPart) else self._placeholder or "" for part in message.parts)
        return {"role": message.role, "content": "\n".join(lines)}

    def _written_for_a_picture(self) -> str | None:
        """Of two pictures the second one, less white space; None for a template that does not read parts."""
        try:
            one, two = (self._template.render([_pictures_and_probe(number)]) for number in (1, 2))
        except InvalidRequest:
            return None
        if len(two) <= len(one) or not reads_parts(one):
            return None
        start = next((place for place, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
        return two[start : start + len(two) - len(one)].strip() or None


def _pictures_and_probe(num_pictures: int) -> TemplateMessage:
    pictures: list[TemplatePart] = [{"type": "image"} for _ in range(num_pictures)]
    return {"role": "user", "content": [*pictures, {"type": "text", "text": PROBE}]}
