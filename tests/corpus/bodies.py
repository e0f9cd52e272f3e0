"""Bad request bodies, each with the one right status and code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BadBody:
    """A named class of malformed request."""

    name: str
    body: bytes
    status: int
    code: str


def text_body(**fields: Any) -> bytes:
    """A good text request, with ``fields`` on top."""
    return json.dumps({"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4, **fields}).encode()


def content_body(content: Any, role: str = "user") -> bytes:
    """A request whose one message has this content."""
    return json.dumps({"messages": [{"role": role, "content": content}], "max_tokens": 4}).encode()


def image_body(url: Any, **image: Any) -> bytes:
    """A request with one picture."""
    part = {"type": "image_url", "image_url": {"url": url, **image}}
    return content_body([part, {"type": "text", "text": "What is it?"}])


_JSON = ("", "{", "not json", '{"messages": [}', "\x00", '{"messages": NaN', "[" * 200)
_NOT_A_REQUEST = ("null", "[]", '"text"', "17", "{}")
_RANGES: dict[str, tuple[Any, ...]] = {
    "temperature": (-0.1, 2.1, "0.5", True, [], 1e308),
    "top_p": (0, -1, 1.5, "1"),
    "top_k": (-2, 1.5, "3", 10**30),
    "min_p": (-0.5, 1.5),
    "max_tokens": (0, -1, 1.5, "8", 10**30),
    "max_completion_tokens": (0, -5, "8"),
    "min_tokens": (-1, "1", 10**30),
    "seed": (1.5, "x", 2**64),
    "presence_penalty": (-2.5, 3),
    "frequency_penalty": (-2.5, 3),
    "repetition_penalty": (0, -1, 1e-30),
    "stream": ("yes", 1, {}),
    "ignore_eos": ("no",),
    "stop": (5, [1], {"a": 1}, [""], "", ["a"] * 17),
    "stream_options": ("x", 3),
    "messages": (None, [], "hi", {}, [None], [3], [{}], [{"role": "user", "content": 5}], [{"content": "x"}]),
}
_REFUSED: dict[str, Any] = {
    "n": 2,
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "functions": [{"name": "f"}],
    "tool_choice": "required",
    "logprobs": True,
    "top_logprobs": 3,
    "logit_bias": {"5": 10},
    "response_format": {"type": "json_object"},
    "audio": {"voice": "alloy"},
    "modalities": ["text", "audio"],
    "cache_salt": "mine",
    "mm_processor_kwargs": {"do_image_splitting": False},
    "structured_outputs": {"regex": "a"},
    "best_of": 2,
    "use_beam_search": True,
    "echo": True,
    "add_generation_prompt": False,
    "chat_template": "{{ messages }}",
    "skip_special_tokens": False,
    "prompt_logprobs": 1,
    "reasoning_effort": "high",
    "priority": 5,
}
_PARTS: tuple[Any, ...] = (
    {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA=="}},
    {"type": "image_embeds", "image_embeds": "AA=="},
    {"type": "thinking", "thinking": "hm"},
    {"type": "image", "image": "x"},
    {"text": "no type"},
    {"type": None},
)
_URLS = (
    ("http", "http://example.com/a.png", "media_url_blocked"),
    ("https", "https://169.254.169.254/latest", "media_url_blocked"),
    ("file", "file:///etc/passwd", "media_url_blocked"),
    ("ftp", "ftp://example.com/a.png", "invalid_media_url"),
    ("path", "/etc/passwd", "invalid_media_url"),
    ("empty", "", "invalid_media_url"),
    ("words", "a picture of a cat", "invalid_media_url"),
    ("bare_base64", "iVBORw0KGgo=", "invalid_media_url"),
    ("javascript", "javascript:alert(1)", "invalid_media_url"),
)
_DATA_URLS = (
    "data:",
    "data:image/png",
    "data:image/png;base64",
    "data:image/png,abc",
    "data:image/png;base64,@@@@",
    "data:image/png;base64,abc-_123",
    "data:image/png;base64,AAAAA",
    "data:image/png;base64,%41%41",
    "data:image/png;charset=utf-8,hello",
    "data:image/png;base64,한글",
)


def bad_bodies() -> list[BadBody]:
    """All classes, each name once."""
    cases = [BadBody(f"json_{index}", text.encode(), 400, "invalid_json") for index, text in enumerate(_JSON)]
    cases.append(BadBody("json_utf8", b'{"messages": "\xff\xfe"}', 400, "invalid_json"))
    cases += [
        BadBody(f"not_a_request_{index}", text.encode(), 400, "invalid_request")
        for index, text in enumerate(_NOT_A_REQUEST)
    ]
    for field, values in _RANGES.items():
        cases += [
            BadBody(f"{field}_{index}", text_body(**{field: value}), 400, "invalid_request")
            for index, value in enumerate(values)
        ]
    cases += [
        BadBody(f"refused_{field}", text_body(**{field: value}), 400, "unsupported_parameter")
        for field, value in _REFUSED.items()
    ]
    cases += [
        BadBody(f"part_{index}", content_body([part]), 400, "unsupported_content_part")
        for index, part in enumerate(_PARTS)
    ]
    cases += [BadBody(f"url_{name}", image_body(url), 400, code) for name, url, code in _URLS]
    cases += [
        BadBody(f"data_url_{index}", image_body(url), 400, "invalid_data_url") for index, url in enumerate(_DATA_URLS)
    ]
    cases += _single_cases()
    return cases


def _single_cases() -> list[BadBody]:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    return [
        BadBody("role_unknown", content_body("x", role="robot"), 400, "invalid_request"),
        BadBody("role_tool", content_body("x", role="tool"), 400, "invalid_request"),
        BadBody("image_in_system", content_body([picture], role="system"), 400, "media_in_wrong_role"),
        BadBody("image_in_assistant", content_body([picture], role="assistant"), 400, "media_in_wrong_role"),
        BadBody("detail_unknown", image_body("data:image/png;base64,AAAA", detail="ultra"), 400, "invalid_request"),
        BadBody("detail_number", image_body("data:image/png;base64,AAAA", detail=3), 400, "invalid_request"),
        BadBody("url_number", image_body(5), 400, "invalid_request"),
        BadBody("url_null", image_body(None), 400, "invalid_request"),
        BadBody("url_missing", content_body([{"type": "image_url"}]), 400, "invalid_request"),
        BadBody("url_object_empty", content_body([{"type": "image_url", "image_url": {}}]), 400, "invalid_request"),
        BadBody("text_missing", content_body([{"type": "text"}]), 400, "invalid_request"),
        BadBody("text_number", content_body([{"type": "text", "text": 5}]), 400, "invalid_request"),
        BadBody("part_uuid", content_body([{**picture, "uuid": "mine"}]), 400, "unsupported_parameter"),
        BadBody("message_tool_calls", _message(tool_calls=[{"id": "x"}]), 400, "unsupported_parameter"),
        BadBody("usage_all_along", _stream(continuous_usage_stats=True), 400, "unsupported_parameter"),
        BadBody("stream_options_alone", text_body(stream_options={"include_usage": True}), 400, "invalid_request"),
        BadBody("min_over_max", text_body(min_tokens=9), 400, "invalid_request"),
        BadBody("model_unknown", text_body(model="gpt-9"), 404, "model_not_found"),
        BadBody("model_number", text_body(model=5), 400, "invalid_request"),
        BadBody("context_output", text_body(max_tokens=10**9), 400, "context_length_exceeded"),
        BadBody("context_min_output", text_body(max_tokens=None, min_tokens=10**9), 400, "invalid_request"),
        BadBody("context_text", content_body("a" * 2_000_000), 400, "context_length_exceeded"),
        BadBody("too_many_parts", content_body([{"type": "text", "text": ""}] * 1025), 400, "invalid_request"),
        BadBody("context_prompt", content_body("word " * 40_000), 400, "context_length_exceeded"),
        BadBody("too_many_messages", _many_messages(1025), 400, "invalid_request"),
        BadBody("body_too_large", b" " * (33 * 2**20), 413, "request_too_large"),
    ]


def _message(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "assistant", "content": "x", **fields}]}).encode()


def _stream(**options: Any) -> bytes:
    return text_body(stream=True, stream_options=options)


def _many_messages(count: int) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "x"}] * count}).encode()
