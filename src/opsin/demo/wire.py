"""Conversations of the demo world as OpenAI chat messages, pictures as data URLs."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from opsin.demo.scenes import draw
from opsin.demo.tasks import Conversation
from opsin.media import data_url


def png_url(picture: Image.Image) -> str:
    """A picture as a PNG data URL."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return data_url.write("image/png", buffer.getvalue())


def to_openai(conversation: Conversation) -> list[dict[str, Any]]:
    """Chat messages for any OpenAI client; ``detail`` says whether the pictures are cut into tiles."""
    pictures = iter(conversation.scenes)
    detail = "high" if conversation.split else "low"

    def part(own: dict[str, Any]) -> dict[str, Any]:
        if own["type"] == "text":
            return own
        return {"type": "image_url", "image_url": {"url": png_url(draw(next(pictures))), "detail": detail}}

    messages: list[dict[str, Any]] = []
    for message in conversation.messages():
        content: Any = message["content"]
        messages.append({"role": message["role"], "content": [part(own) for own in content]})
    return messages
