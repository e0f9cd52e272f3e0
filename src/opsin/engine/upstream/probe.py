"""Asks an upstream for its models: is it there and ready, which model to send, how long a context. Knows no chat."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

import aiohttp
import msgspec

from opsin.core.errors import Code, ConfigError, EngineError, OpsinError
from opsin.engine.upstream.call import read_failure
from opsin.engine.upstream.config import UpstreamConfig
from opsin.engine.upstream.dialect import dialect_of
from opsin.engine.upstream.failures import protocol_error, transport_error
from opsin.engine.upstream.session import open_session
from opsin.engine.upstream.wire import ModelEntry, ModelList

logger = logging.getLogger(__name__)

KEY_FLAG = "--upstream-api-key"
"""As messages name it; a command may have another name for it."""

MAX_BYTES = 16 * 2**20
"""10,000 models are some 2 MB."""

_RETRY_S = 0.25
_TELL_S = 10.0
_MAX_NAMED = 5
_WORTH_WAITING = (Code.UPSTREAM_UNAVAILABLE, Code.UPSTREAM_TIMEOUT, Code.OVERLOADED)
"""What an engine that still loads answers: vLLM refuses the connection, llama-server and opsin say 503."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that requests will name."""

    name: str
    max_model_len: int | None
    root: str | None = None
    owned_by: str | None = None
    revision: str | None = None


async def fetch_models(config: UpstreamConfig) -> list[ModelEntry]:
    """``/v1/models`` of an upstream that can be asked. Raises OpsinError, also while it says that it is not ready.

    Over a connection of its own: a pool full of long answers is no sign of ill health. It and each of at most two
    answers have twice ``connect_timeout_s``.
    """
    timeout = aiohttp.ClientTimeout(total=2 * config.connect_timeout_s, sock_connect=config.connect_timeout_s)
    get = partial(aiohttp.ClientSession.get, timeout=timeout, allow_redirects=False)
    try:
        async with open_session(config) as session:
            async with get(session, f"{config.url}/models") as response:
                if response.status != 200:
                    raise await read_failure(response)
                models = msgspec.json.decode(await _read(response.content), type=ModelList).data
            if (route := _readiness_route(config, models)) is not None:
                async with get(session, config.url.removesuffix("/v1") + route) as response:
                    _check_ready(route, response.status)
            return models
    except (aiohttp.ClientError, OSError) as error:
        raise transport_error(error, answered=False) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise protocol_error("no list of models from /v1/models") from None


async def _read(content: aiohttp.StreamReader) -> bytes:
    """A list that is longer than MAX_BYTES is cut, and then none."""
    body = bytearray()
    while len(body) < MAX_BYTES and (read := await content.readany()):
        body += read
    return bytes(body)


def _readiness_route(config: UpstreamConfig, models: list[ModelEntry]) -> str | None:
    asked = (entry.owned_by for entry in models if config.model in (None, entry.id))
    return dialect_of(config.kind, next(asked, None)).ready


def _check_ready(route: str, status: int) -> None:
    """Only a failure of the server tells anything: a proxy before it may pass nothing on but ``/v1``."""
    if status >= 500:
        raise EngineError(f"the upstream is not ready: {status} from {route}", code=Code.UPSTREAM_UNAVAILABLE)


async def wait_for_models(config: UpstreamConfig, program: str | None = None) -> list[ModelEntry]:
    """Asks until the upstream answers. ``program`` is what opsin itself has started there.

    Raises EngineError after ``ready_timeout_s``, ConfigError if waiting is vain.
    """
    began = tell_at = time.monotonic()
    deadline = began + config.ready_timeout_s
    while True:
        try:
            return await fetch_models(config)
        except OpsinError as error:
            if error.code not in _WORTH_WAITING:
                raise ConfigError(f"GET /v1/models: {_explained(error, config)}") from None
            now = time.monotonic()
            if now >= deadline:
                which = f"{config.url}, model {config.model}," if config.model else config.url
                message = f"the upstream {which} was not ready within {config.ready_timeout_s:g} s: {error.message}"
                raise EngineError(message, code=Code.UPSTREAM_UNAVAILABLE) from None
            if now >= tell_at:
                whom = program or f"the upstream at {urlsplit(config.url).netloc}"
                why = "it is loading" if program else error.message
                logger.info(
                    "waiting for %s, %.0f s so far, %.0f s more at most: %s", whom, now - began, deadline - now, why
                )
                tell_at = now + _TELL_S
        await asyncio.sleep(_RETRY_S)


def _explained(error: OpsinError, config: UpstreamConfig) -> str:
    if error.code is not Code.UPSTREAM_UNAUTHORIZED:
        return error.message
    if config.api_key is None:
        return f"the upstream wants a key, and there is none for it; give one with {KEY_FLAG}"
    return f"{error.message}; is that of {KEY_FLAG} the right one?"


def choose_model(models: list[ModelEntry], wanted: str | None) -> ServedModel:
    """The wanted model, or the first. Raises ConfigError when there is none such."""
    for entry in models:
        if wanted is None or entry.id == wanted:
            told = entry.max_model_len or 0
            length = told if told > 0 else None  # no length is below 1
            return ServedModel(entry.id, length, entry.root, entry.owned_by, entry.revision)
    if wanted is None:
        raise ConfigError("the upstream serves no model")
    names = ", ".join(entry.id for entry in models[:_MAX_NAMED]) or "none"
    raise ConfigError(f"the upstream serves no model named {wanted}; it serves {len(models)}: {names}")
