from __future__ import annotations

import json

from opsin.core.errors import ContextLengthExceeded
from opsin.protocol.response import ChatCompletionChunk, ChunkChoice, ChunkDelta, encode, error_body


def test_a_chunk_has_openais_shape_and_no_empty_extras() -> None:
    chunk = ChatCompletionChunk(id="x", created=1, model="m", choices=[ChunkChoice(ChunkDelta(content="hi"))])
    assert json.loads(encode(chunk)) == {
        "id": "x",
        "created": 1,
        "model": "m",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None, "logprobs": None}],
    }


def test_an_error_has_openais_shape() -> None:
    assert json.loads(error_body(ContextLengthExceeded("too long", param="messages"))) == {
        "error": {
            "message": "too long",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }
