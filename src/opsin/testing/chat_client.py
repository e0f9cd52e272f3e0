"""A client that takes nothing for granted: every request has to end in exactly one whole answer.

For tests and benchmarks. Official SDKs hide what this one shows: retries, comments, streams that break off.
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp


class Unanswered(Exception):
    """The stream broke off, or went on after its end."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. ``code`` and ``message`` are those of an error, which ``in_band`` ended a stream that had begun."""

    status: int
    request_id: str
    text: str = ""
    code: str | None = None
    message: str = ""
    in_band: bool = False
    deltas: tuple[str, ...] = ()
    comments: int = 0


async def post(
    http: aiohttp.ClientSession,
    url: str,
    body: bytes | AsyncIterable[bytes],
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Sends a chat request and reads its answer to the end.

    Raises:
        Unanswered: the answer has no end, or more than one.
        aiohttp.ClientError: no answer at all.
    """
    data = io.BytesIO(body) if isinstance(body, bytes) else body
    async with http.post(f"{url}/v1/chat/completions", data=data, headers=headers) as response:
        request_id = response.headers["x-request-id"]
        if response.content_type == "text/event-stream":
            return _from_events(response.status, request_id, (await response.read()).decode())
        return _from_object(response.status, request_id, json.loads(await response.read()))


def _from_object(status: int, request_id: str, answer: dict[str, Any]) -> Reply:
    if "error" in answer:
        return Reply(status, request_id, code=answer["error"]["code"], message=answer["error"]["message"])
    return Reply(status, request_id, answer["choices"][0]["message"]["content"])


def _from_events(status: int, request_id: str, text: str) -> Reply:
    events = [event for event in text.split("\n\n") if event]
    data = [event.removeprefix("data: ") for event in events if event.startswith("data: ")]
    chunks = [json.loads(one) for one in data if one != "[DONE]"]
    errors = [chunk["error"] for chunk in chunks if "error" in chunk]
    deltas = tuple(_delta(chunk) for chunk in chunks if chunk.get("choices"))
    comments = sum(event.startswith(":") for event in events)
    if data.count("[DONE]") + len(errors) != 1 or not (data[-1] == "[DONE]" or "error" in chunks[-1]):
        raise Unanswered(f"{request_id}: {data[-1] if data else 'nothing'}")
    if errors:
        return Reply(
            status, request_id, "".join(deltas), errors[0]["code"], errors[0]["message"], True, deltas, comments
        )
    return Reply(status, request_id, "".join(deltas), deltas=deltas, comments=comments)


def _delta(chunk: dict[str, Any]) -> str:
    return chunk["choices"][0]["delta"].get("content") or ""
