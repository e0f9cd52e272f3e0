"""What the server tells of itself when it is asked politely: before the clock starts, and between levels.

Nothing here is measured, so aiohttp serves. A server that answers none of this is measured all the same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeVar

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from opsin.bench import counters
from opsin.bench.config import BenchConfig
from opsin.bench.record import ServerFacts
from opsin.bench.wire import Chunk, error_of
from opsin.core.errors import ConfigError
from opsin.core.sse import EventTooLarge, SseParser

_QUICK_S = 10.0
_MODEL_S = 120.0
"""For a first answer of one token, which may wait for a model to warm up."""


_REFUSALS = (400, 422)
"""How a server says that it knows no running usage."""


_HINTS = {
    401: ": give the server's key with --api-key",
    403: ": give the server's key with --api-key",
    404: ": name the model with --model",
}


class _Entry(msgspec.Struct):
    id: str
    owned_by: str | None = None
    revision: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Entry]


class _Version(msgspec.Struct):
    version: str


_Kind = TypeVar("_Kind", _Models, _Version)


class Server:
    """One server under test, asked over HTTP."""

    def __init__(self, config: BenchConfig, session: aiohttp.ClientSession) -> None:
        self._config = config
        self._session = session
        self._base = config.url.rstrip("/").removesuffix("/v1")

    @classmethod
    @asynccontextmanager
    async def of(cls, config: BenchConfig) -> AsyncGenerator[Server]:
        """Heeds no proxy variable."""
        key = config.api_key
        headers = {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"}
        async with aiohttp.ClientSession(headers=headers, cookie_jar=aiohttp.DummyCookieJar()) as session:
            yield cls(config, session)

    async def facts(self) -> tuple[ServerFacts, list[str]]:
        """What is known, and what could not be learned. Raises ConfigError when no model is named anywhere."""
        notes = list[str]()
        listed = await self._get("/v1/models", notes)
        models = _decode(listed, _Models) if listed is not None else None
        entry = self._entry(models, notes)
        version = _decode(await self._get("/version", []), _Version)
        facts = ServerFacts(
            model=entry.id,
            owned_by=entry.owned_by,
            revision=entry.revision,
            max_model_len=entry.max_model_len,
            version=version.version if version else None,
        )
        facts.running_usage = await self._counts_as_it_goes(facts.model, notes)
        return facts, notes

    async def counters(self) -> dict[str, float]:
        """The cache counters of ``/metrics``, summed over labels; those that there are."""
        text = await self._get("/metrics", [])
        values = dict[str, float]()
        if text is None:
            return values
        try:
            for family in text_string_to_metric_families(text.decode(errors="replace")):
                for sample in family.samples:
                    if sample.name in counters.NAMES:
                        values[sample.name] = values.get(sample.name, 0.0) + sample.value
        except ValueError:
            return {}  # no exposition of Prometheus
        return values

    def _entry(self, models: _Models | None, notes: list[str]) -> _Entry:
        entries = models.data if models is not None else []
        wanted = self._config.model
        if wanted is None and not entries:
            raise ConfigError(f"{self._base}: {'; '.join(notes) or 'no model at /v1/models; name one with --model'}")
        if wanted is None:
            return entries[0]
        found = next((entry for entry in entries if entry.id == wanted), None)
        if found is None and entries:
            notes.append(f"/v1/models does not list {wanted}")
        return found or _Entry(wanted)

    async def _get(self, path: str, notes: list[str]) -> bytes | None:
        try:
            async with asyncio.timeout(_QUICK_S), self._session.get(self._base + path) as response:
                if response.status == 200:
                    return await response.read()
                notes.append(f"GET {path}: status {response.status}{_HINTS.get(response.status, '')}")
        except (aiohttp.ClientError, OSError) as error:
            notes.append(f"GET {path}: {_cause(error)}")
        return None

    async def _counts_as_it_goes(self, model: str, notes: list[str]) -> bool:
        """Asks for one token with vLLM's ``continuous_usage_stats``: strict servers refuse it, others ignore it."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 1,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        try:
            async with (
                asyncio.timeout(min(_MODEL_S, self._config.timeout_s)),
                self._session.post(f"{self._base}/v1/chat/completions", json=body) as response,
            ):
                answer = await response.read()
                if response.status == 200:
                    return _has_running_usage(answer)
                if response.status not in _REFUSALS:
                    notes.append(f"the first request was answered with {response.status}: {error_of(answer).message}")
                return False
        except (aiohttp.ClientError, OSError) as error:
            notes.append(f"the first request failed: {_cause(error)}")
            return False


def _cause(error: aiohttp.ClientError | OSError) -> str:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "there is no such host"
        case aiohttp.ClientConnectorError(os_error=OSError(errno=int() as number)):
            return os.strerror(number).lower()
        case TimeoutError():
            return "no answer in time"
        case _:
            return type(error).__name__


def _has_running_usage(stream: bytes) -> bool:
    try:
        chunks = [msgspec.json.decode(event, type=Chunk) for event in SseParser().feed(stream) if event != b"[DONE]"]
    except (msgspec.MsgspecError, EventTooLarge):
        return False
    return any(chunk.choices and chunk.usage is not None for chunk in chunks)


def _decode(text: bytes | None, kind: type[_Kind]) -> _Kind | None:
    try:
        return None if text is None else msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError:
        return None
