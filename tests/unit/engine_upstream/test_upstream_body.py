"""The body keeps the order of parts and the bytes of pictures, and sends no field that nobody set."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from opsin.core.conversation import Conversation, Detail, MediaRef, Message, TextPart
from opsin.engine.api import ChatPrompt, GenerationRequest, Picture, SamplingParams
from opsin.engine.upstream.body import encode_body
from opsin.media.types import ImageFormat, ImageHeader, MediaBytes
from opsin.vision.plan import Size


def ref(detail: Detail = Detail.AUTO) -> MediaRef:
    return MediaRef("https://internal.example/secret.png", detail, "messages.0.content.0")


def picture(data: bytes, image_format: ImageFormat = ImageFormat.PNG) -> Picture:
    header = ImageHeader(image_format, Size(2, 2), 1, 1)
    media = MediaBytes(data, hashlib.sha256(data).hexdigest(), header, "messages.0.content.0")
    return Picture(key="k", image_tokens=None, num_tiles=None, media=media)


def body_of(*messages: Message, pictures: tuple[Picture, ...] = (), **sampling: Any) -> dict[str, Any]:
    request = GenerationRequest(
        id="r",
        scope="s",
        prompt=ChatPrompt(Conversation(messages)),
        pictures=pictures,
        sampling=SamplingParams(**sampling),
        submitted_at=0.0,
    )
    return json.loads(encode_body(request, "m"))


def test_parts_keep_their_order_and_pictures_their_bytes() -> None:
    first, second, third = bytes(range(256)), b"", b"\xff" * 1000
    body = body_of(
        Message("user", (TextPart("a"), ref(), TextPart("b"), ref(Detail.LOW))),
        Message("assistant", (TextPart("c"),)),
        Message("user", (ref(Detail.HIGH), TextPart("d"))),
        pictures=(picture(first), picture(second, ImageFormat.JPEG), picture(third, ImageFormat.WEBP)),
    )

    def url(mime: str, data: bytes) -> str:
        return f"data:image/{mime};base64,{base64.b64encode(data).decode()}"

    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": url("png", first)}},
                {"type": "text", "text": "b"},
                {"type": "image_url", "image_url": {"url": url("jpeg", second), "detail": "low"}},
            ],
        },
        {"role": "assistant", "content": "c"},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": url("webp", third), "detail": "high"}},
                {"type": "text", "text": "d"},
            ],
        },
    ]


def test_no_url_of_a_picture_leaves_opsin() -> None:
    body = body_of(Message("user", (ref(),)), pictures=(picture(b"x"),))
    assert "internal.example" not in json.dumps(body)


@pytest.mark.parametrize("text", ['quote " backslash \\ newline \n', "하늘 \u2028 🙂", "<image>", "\x00\x1f"])
def test_text_is_escaped(text: str) -> None:
    parts = (TextPart(text), TextPart(text))
    content = body_of(Message("system", (TextPart(text),)), Message("user", parts))["messages"]
    assert content[0]["content"] == text
    assert content[1]["content"] == [{"type": "text", "text": text}] * 2


def test_neutral_sampling_sends_what_every_server_knows() -> None:
    body = body_of(Message("user", ()))
    assert body == {
        "messages": [{"role": "user", "content": ""}],
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 1.0,
        "top_p": 1.0,
    }


def test_set_sampling_is_sent() -> None:
    sampling: dict[str, Any] = {
        "temperature": 0.0,
        "top_p": 0.5,
        "max_tokens": 7,
        "seed": 0,
        "stop": ("\n", "end"),
        "presence_penalty": 0.1,
        "frequency_penalty": -0.2,
        "top_k": 5,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "ignore_eos": True,
    }
    body = body_of(Message("user", (TextPart("a"),)), **sampling)
    assert {name: body[name] for name in sampling} == {**sampling, "stop": ["\n", "end"]}
