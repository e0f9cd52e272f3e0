"""Prompts as text, with what the model's own template writes for a picture."""

from __future__ import annotations

import pytest

from opsin.core.conversation import Conversation, Detail, MediaRef, Message, TextPart
from opsin.core.errors import ConfigError, InvalidRequest
from opsin.prompt.template import ChatTemplate
from opsin.prompt.text import TextPrompt

PICTURE = MediaRef("", Detail.AUTO, "")
QWEN = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant"
)
STRINGS = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
ONLY_OF_USERS = QWEN.replace("part.type == 'image'", "part.type == 'image' and message.role == 'user'")


def test_each_picture_is_what_the_template_writes_for_one() -> None:
    asked = Conversation(
        (
            Message("system", (TextPart("Short."),)),
            Message("user", (TextPart("a"), PICTURE, TextPart("b"), PICTURE)),
        )
    )
    slot = "<|vision_start|><|image_pad|><|vision_end|>"
    assert TextPrompt(ChatTemplate(QWEN, {}), None).write(asked) == (
        f"<|im_start|>system\nShort.<|im_end|>\n<|im_start|>user\na{slot}b{slot}<|im_end|>\n<|im_start|>assistant"
    )


def test_what_the_engines_tokenizer_puts_before_a_text_is_not_written_twice() -> None:
    asked = Conversation((Message("user", (TextPart("<s>"),)),))
    prompt = TextPrompt(ChatTemplate("<s>" + QWEN, {}), None, "<s>")
    assert prompt.write(asked) == "<|im_start|>user\n<s><|im_end|>\n<|im_start|>assistant"


def test_a_template_of_strings_gets_the_image_token() -> None:
    asked = Conversation((Message("user", (PICTURE, TextPart("what"))),))
    assert TextPrompt(ChatTemplate(STRINGS, {}), "<image>").write(asked) == "user: <image>\nwhat\nassistant:"
    with pytest.raises(ConfigError, match="image_token_id"):
        TextPrompt(ChatTemplate(STRINGS, {}), None)


def test_a_picture_that_the_template_drops_is_an_error() -> None:
    asked = Conversation((Message("assistant", (PICTURE, TextPart("what"))),))
    with pytest.raises(InvalidRequest, match="places for 0 pictures, the request has 1"):
        TextPrompt(ChatTemplate(ONLY_OF_USERS, {}), None).write(asked)
