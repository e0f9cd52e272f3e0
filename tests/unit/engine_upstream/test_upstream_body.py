"""The body keeps the order of parts and the bytes of pictures, and sends no field that nobody set."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from opsin.cache.keys import prefix_salt
from opsin.core.conversation import Conversation, Detail, MediaRef, Message, TextPart
from opsin.core.errors import UnsupportedParameter
from opsin.engine.api import ChatPrompt, GenerationRequest, Picture, SamplingParams
from opsin.engine.upstream.body import Addressee, encode_body
from opsin.engine.upstream.dialect import DIALECTS, UpstreamKind
from opsin.media.types import ImageFormat, ImageHeader, MediaBytes
from opsin.vision.plan import Size


def ref(detail: Detail = Detail.AUTO) -> MediaRef:
    return MediaRef("https://internal.example/secret.png", detail, "messages.0.content.0")


def picture(data: bytes, image_format: ImageFormat = ImageFormat.PNG) -> Picture:
    header = ImageHeader(image_format, Size(2, 2), 1, 1)
    media = MediaBytes(data, hashlib.sha256(data).hexdigest(), header, "messages.0.content.0")
    return Picture(key="k", image_tokens=None, num_tiles=None, media=media)


def body_of(
    *messages: Message,
    pictures: tuple[Picture, ...] = (),
    kind: UpstreamKind = UpstreamKind.AUTO,
    leased: frozenset[str] = frozenset(),
    is_shared: bool = False,
    **sampling: Any,
) -> dict[str, Any]:
    request = GenerationRequest(
        id="r",
        scope="s",
        prompt=ChatPrompt(Conversation(messages)),
        pictures=pictures,
        sampling=SamplingParams(**sampling),
        submitted_at=0.0,
    )
    to = Addressee(model="m", dialect=DIALECTS[kind], is_shared=is_shared)
    return json.loads(b"".join(encode_body(request, to, leased)))


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


def test_a_picture_that_vllm_has_goes_by_its_name_alone_and_another_with_both() -> None:
    pictures = (replace(picture(b"one"), key="first"), replace(picture(b"two"), key="second"))
    message = Message("user", (ref(), ref(Detail.LOW)))
    body = body_of(message, pictures=pictures, kind=UpstreamKind.VLLM, leased=frozenset({"first"}))
    first, second = body["messages"][0]["content"]
    assert first == {"type": "image_url", "image_url": None, "uuid": "first"}
    assert second["uuid"] == "second"
    assert second["image_url"] == {"url": f"data:image/png;base64,{base64.b64encode(b'two').decode()}", "detail": "low"}
    for kind in set(UpstreamKind) - {UpstreamKind.VLLM}:
        parts = body_of(message, pictures=pictures, kind=kind, leased=frozenset({"first"}))["messages"][0]["content"]
        assert all(part.keys() == {"type", "image_url"} and part["image_url"] for part in parts), kind


def test_what_one_tenant_left_in_a_cache_is_no_others() -> None:
    """By a salt that does not tell the scope, else by leaving the cache alone once there are several tenants."""
    message = Message("user", (TextPart("a"),))
    for kind in (UpstreamKind.VLLM, UpstreamKind.SGLANG, UpstreamKind.TENSORRT_LLM):
        salt = body_of(message, kind=kind)["cache_salt"]
        assert re.fullmatch(r"[0-9a-f]{64}", salt)  # vLLM takes at most 128 characters, without @, / and backslash
        assert salt == prefix_salt("s") != prefix_salt("t")
    for is_shared in (False, True):
        body = body_of(message, kind=UpstreamKind.LLAMA_CPP, is_shared=is_shared)
        assert body.get("cache_prompt") is (False if is_shared else None)
    for kind in (UpstreamKind.AUTO, UpstreamKind.OPSIN, UpstreamKind.OPENAI):
        assert not body_of(message, kind=kind, is_shared=True).keys() & {"cache_salt", "cache_prompt"}


def test_options_go_by_the_engines_own_names_and_none_is_silently_ignored() -> None:
    message = Message("user", (TextPart("a"),))
    body = body_of(message, kind=UpstreamKind.LLAMA_CPP, repetition_penalty=1.1, top_k=5, max_tokens=3)
    assert (body["repeat_penalty"], body["top_k"], body["max_tokens"]) == (1.1, 5, 3)
    assert "repetition_penalty" not in body
    assert body_of(message, kind=UpstreamKind.OPENAI, max_tokens=3)["max_completion_tokens"] == 3
    for kind, name in ((UpstreamKind.LLAMA_CPP, "min_tokens"), (UpstreamKind.OPENAI, "top_k")):
        option: dict[str, Any] = {name: 2}
        with pytest.raises(UnsupportedParameter, match=f"'{name}' .* {kind}") as caught:
            body_of(message, kind=kind, **option)
        assert caught.value.param == name
