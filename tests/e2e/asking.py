"""Shorthand for questions about pictures."""

from __future__ import annotations

import random
from typing import Any

from openai import OpenAI

from opsin.demo.scenes import Scene, draw
from opsin.demo.tasks import Conversation
from opsin.demo.wire import png_url, to_openai


def ask(client: OpenAI, conversation: Conversation) -> str:
    """The demo model's greedy answer."""
    return complete(client, to_openai(conversation)).choices[0].message.content.strip()


def complete(client: OpenAI, messages: list[dict[str, Any]], **fields: Any) -> Any:
    """A whole completion, greedy unless said otherwise."""
    options: dict[str, Any] = {"model": "demo", "max_tokens": 96, "temperature": 0, **fields}
    return client.chat.completions.create(messages=messages, **options)  # type: ignore[call-overload]


def about(scenes: list[Scene], question: str, *, detail: str = "auto") -> list[dict[str, Any]]:
    """Labelled pictures, then the question."""
    parts: list[dict[str, Any]] = []
    for number, scene in enumerate(scenes, 1):
        if len(scenes) > 1:
            parts.append({"type": "text", "text": f"Image {number}:"})
        parts.append({"type": "image_url", "image_url": {"url": png_url(draw(scene)), "detail": detail}})
    return [{"role": "user", "content": [*parts, {"type": "text", "text": question}]}]


def fresh_rng() -> random.Random:
    """Drawn at test time: nobody has seen these pictures. The seed is in the name, for a rerun."""
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    return random.Random(seed)
