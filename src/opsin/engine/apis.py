"""Proprietary APIs (OpenAI, Anthropic, Gemini) as an engine, through LiteLLM, which speaks each one's own wire.

Requests are written and answers read in OpenAI's form; LiteLLM turns both into the provider's. Pictures go as bytes,
never as URLs. A client's fields are passed on by name from a list: LiteLLM's arguments hold addresses and keys too.
Why this library: ``docs/adr/0013-apis-through-litellm.md``. Knows no price.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec
import pybase64
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from opsin.core.conversation import Detail, Fields, Message, TextPart
from opsin.core.errors import Code, ConfigError, ContextLengthExceeded, EngineError, OpsinError, UnsupportedParameter
from opsin.engine.api import (
    Capabilities,
    ChatPrompt,
    Delta,
    Finished,
    GenerationRequest,
    InputKind,
    Picture,
    SamplingParams,
)
from opsin.engine.remote import RemoteEngine, with_rest
from opsin.engine.upstream.failures import cancelled, http_error, inband_error, truncated
from opsin.engine.upstream.reply import Reply
from opsin.engine.upstream.wire import WireError
from opsin.media.data_url import head
from opsin.media.types import ImageFormat

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Route:
    """How the library reaches a provider: by which wire, and where if that is not the wire's own address."""

    wire: str
    base_url: str | None = None


_ROUTES = {
    "openai": _Route("openai"),
    "anthropic": _Route("anthropic"),
    # By Gemini's own wire the library calls every stream that breaks off finished: tests/integration/test_apis.py.
    "gemini": _Route("openai", "https://generativelanguage.googleapis.com/v1beta/openai"),
}

_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else its import asks a server for prices
    "LITELLM_MODE": "PRODUCTION",  # else its import reads a .env file
}
_OF_REQUEST = frozenset(
    {
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "reasoning_effort",
    }
)
_OF_MESSAGE = frozenset({"name", "tool_calls", "tool_call_id"})
_UNKNOWN_TO_ALL = {"min_p": 0.0, "repetition_penalty": 1.0, "min_tokens": 0, "ignore_eos": False}
"""Sampling that no provider has, by the values that ask for nothing."""

_FORMATS = frozenset({ImageFormat.JPEG, ImageFormat.PNG, ImageFormat.WEBP, ImageFormat.GIF})
"""What all three take."""

_READ_OF_CHUNK = ("id", "object", "created", "model", "system_fingerprint", "choices", "usage")
_BODY = re.compile(r"b?['\"]?(\{.*\})", re.DOTALL)
_CUT = "ended before a finish_reason"  # LiteLLM's sentence for a stream that broke off


class ApiConfig(BaseModel):
    """Settings of one proprietary API; the model stands in ``model``, as ``anthropic/claude-opus-4-5``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: SecretStr | None = Field(default=None, description="the provider's key, sent to the provider alone")
    base_url: str | None = Field(default=None, description="in place of the provider's own address, such as a proxy's")
    read_timeout_s: float = Field(
        default=600.0, gt=0, description="longest silence between two pieces of an answer; no limit on an answer"
    )


def check_installed() -> None:
    """Looks without importing. Raises ConfigError."""
    if find_spec("litellm") is None:
        raise ConfigError("engine api needs litellm: pip install 'opsin[apis]'")


def check_model(model: str) -> None:
    """Raises ConfigError unless it names a provider that is known here."""
    provider, _, name = model.partition("/")
    if provider not in _ROUTES or not name:
        raise ConfigError(f"engine api: the model is PROVIDER/NAME, of {', '.join(_ROUTES)}; got {model}")


def check_key(config: ApiConfig) -> None:
    """Raises ConfigError when there is none."""
    if config.key is None:
        raise ConfigError("engine api needs the provider's key: OPSIN_API__KEY, or key under [api] in opsin.toml")


class ApiEngine(RemoteEngine["_Call"]):
    """Implements :class:`opsin.engine.api.Engine`. Nothing is asked before the first request, as asking costs money."""

    def __init__(self, model: str, config: ApiConfig) -> None:
        """Raises ConfigError for a model of no known provider."""
        super().__init__()
        check_model(model)
        self._model = model
        self._config = config
        self._library: Any = None
        self._max_input_tokens: int | None = None

    async def start(self) -> None:
        """Loads the library, which takes seconds. Raises ConfigError: library or key are missing."""
        check_installed()
        check_key(self._config)
        self._library = await asyncio.to_thread(_load)
        self._max_input_tokens = _max_input_tokens(self._library, self._model)
        self._unready = None

    def capabilities(self) -> Capabilities:
        """``max_model_len`` is what the library's table says of the model's input."""
        return Capabilities(
            input=InputKind.MESSAGES,
            max_model_len=self._max_input_tokens,
            model_name=self._model,
            max_num_seqs=None,
            stages=frozenset(),
            reports_cache=False,
            reports_kv=False,
            relays=True,
            picture_formats=_FORMATS,
        )

    def _ask(self, request: GenerationRequest) -> _Call:
        """Raises UnsupportedParameter for a field that no provider takes."""
        if self._library is None:
            raise EngineError(self._unready or "the engine is closed")
        return _Call(self._library, self._config, self._model, arguments(request))

    async def _disconnect(self) -> None:
        self._library = None


def arguments(request: GenerationRequest) -> dict[str, object]:
    """What LiteLLM is asked, without model, address and key, none of which a client can name.

    Raises:
        UnsupportedParameter: a field or an option that no provider takes, or that is not known to be harmless.
    """
    assert isinstance(request.prompt, ChatPrompt), "an API applies its own template: it reads messages"
    pictures = iter(request.pictures)
    conversation = request.prompt.conversation
    return {
        "messages": [_message(message, pictures) for message in conversation.messages],
        **_passed_on(conversation.fields, _OF_REQUEST, ""),
        **_options(request.sampling),
    }


def _message(message: Message, pictures: Iterator[Picture]) -> dict[str, object]:
    fields = _passed_on(message.fields, _OF_MESSAGE, "messages.")
    parts = [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else _image(next(pictures), part.detail)
        for part in message.parts
    ]
    match message.parts:
        case ():
            return {"role": message.role, "content": "", **fields}
        case (TextPart(text),):
            return {"role": message.role, "content": text, **fields}
        case _:
            return {"role": message.role, "content": parts, **fields}


def _image(picture: Picture, detail: Detail) -> dict[str, object]:
    assert picture.media is not None, "an engine that reads messages gets the bytes of pictures"
    data = bytes(picture.media.base64 or pybase64.b64encode(picture.media.data)).decode()
    stated = {} if detail is Detail.AUTO else {"detail": detail.value}
    return {"type": "image_url", "image_url": {"url": head(picture.media.header.format.mime) + data, **stated}}


def _passed_on(fields: Fields, names: frozenset[str], where: str) -> dict[str, object]:
    strange = [name for name, _ in fields if name not in names]
    if strange:
        raise UnsupportedParameter(
            f"'{strange[0]}' is not passed on to APIs; these are: {', '.join(sorted(names))}", param=where + strange[0]
        )
    return {name: msgspec.json.decode(value) for name, value in fields}


def _options(sampling: SamplingParams) -> dict[str, object]:
    for name, neutral in _UNKNOWN_TO_ALL.items():
        if name not in sampling.left_open and getattr(sampling, name) != neutral:
            raise UnsupportedParameter(f"'{name}' is not understood by any API", param=name)
    stated: dict[str, object] = {
        name: getattr(sampling, name) for name in ("temperature", "top_p") if name not in sampling.left_open
    }
    if sampling.max_tokens is not None:
        stated["max_tokens"] = sampling.max_tokens
    if sampling.seed is not None:
        stated["seed"] = sampling.seed
    if sampling.stop:
        stated["stop"] = list(sampling.stop)
    for name in ("top_k", "presence_penalty", "frequency_penalty"):
        if value := getattr(sampling, name):
            stated[name] = value
    return stated


class _Call:
    """Implements :class:`opsin.engine.remote.Answer`: one request through the library."""

    def __init__(self, library: Any, config: ApiConfig, model: str, asked: Mapping[str, object]) -> None:
        self._library = library
        self._config = config
        self._provider, _, self._name = model.partition("/")
        self._asked = asked
        self._reply = Reply()
        self._stream: Any = None
        self._wait: asyncio.Timeout | None = None
        self._cancelled = False
        self.answered = False

    def cancel(self) -> None:
        """See Answer. What was made until then is paid for."""
        self._cancelled = True
        if self._wait is not None:
            self._wait.reschedule(0.0)  # in the past of any loop's clock: expires at once

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """See Answer. Raises as listed in :mod:`opsin.engine.upstream.failures`."""
        chunks = await self._open()
        while (data := await self._read(chunks)) is not None:
            delta = self._reply.take(data)
            if delta is not None:
                yield delta

    def finish(self, took_s: float) -> Finished:
        """See Answer."""
        return with_rest(self._reply.finish(), self._provider, took_s)

    async def _open(self) -> AsyncIterator[Any]:
        """Sends, and waits for the head. Nothing is sent twice: no retries, no fallbacks."""
        route, key = _ROUTES[self._provider], self._config.key
        async with self._interruptible():
            self._stream = await self._library.acompletion(
                **self._asked,
                model=f"{route.wire}/{self._name}",
                api_key=key.get_secret_value() if key else None,
                api_base=self._config.base_url or route.base_url,
                timeout=self._config.read_timeout_s,
                stream=True,
                stream_options={"include_usage": True},
                max_retries=0,
                num_retries=0,
            )
            return aiter(self._stream)

    async def _read(self, chunks: AsyncIterator[Any]) -> bytes | None:
        """The next chunk as JSON in OpenAI's form; None at the end. Raises OpsinError, also if no reason came."""
        async with self._interruptible():
            chunk = await anext(chunks, None)
        if chunk is None:
            return None
        self.answered = True
        told = chunk.model_dump(exclude_none=True)
        event = {name: told[name] for name in _READ_OF_CHUNK if name in told}
        event.get("usage", {}).pop("cost", None)  # by the library's own price list, which may be old
        return msgspec.json.encode(event)

    async def close(self) -> None:
        """See Answer."""
        if self._stream is not None:
            await self._stream.aclose()

    @asynccontextmanager
    async def _interruptible(self) -> AsyncGenerator[None, None]:
        """The border to the library: whatever it raises becomes an error of ours."""
        if self._cancelled:
            raise cancelled()
        try:
            async with asyncio.timeout(self._config.read_timeout_s) as self._wait:
                yield
        except TimeoutError:
            raise cancelled() if self._cancelled else _timed_out() from None
        except OpsinError:
            raise
        except Exception as error:
            logger.debug("LiteLLM raised %s", type(error).__name__)  # its text may hold a prompt
            raise _translated(error, answered=self.answered) from None
        finally:
            self._wait = None


def _translated(error: Exception, *, answered: bool) -> OpsinError:
    """LiteLLM's exceptions are OpenAI's by status; those within a stream wrap another."""
    status, message = _status(error), _message_of(error)
    if _CUT in str(error):
        return truncated()
    if type(error).__name__ == "ContextWindowExceededError":
        return ContextLengthExceeded("the provider says that the prompt does not fit its model")
    if answered:
        return inband_error(WireError(message=message, code=status))
    if status == 408:
        return _timed_out()
    if status is None or type(error).__name__ == "APIConnectionError":
        return EngineError("the provider cannot be reached", code=Code.UPSTREAM_UNAVAILABLE)
    return http_error(status, _retry_after(error), message.encode())


def _timed_out() -> EngineError:
    return EngineError("the provider did not answer in time", code=Code.UPSTREAM_TIMEOUT)


def _status(error: Exception) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _message_of(error: Exception) -> str:
    """The provider's own words: its JSON where the library quotes it, else what stands behind the library's prefix."""
    text = str(error)
    found = _BODY.search(text)
    return found[1] if found else text.rpartition("Exception - ")[2]


def _retry_after(error: Exception) -> str | None:
    for headers in (getattr(error, "litellm_response_headers", None), getattr(_response(error), "headers", None)):
        value = headers.get("retry-after") if headers else None
        if value:
            return str(value)
    return None


def _response(error: Exception) -> object:
    return getattr(error, "response", None)


def _load() -> Any:
    """The library, told to send nothing on its own and to keep prompts out of its log."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    library: Any = import_module("litellm")
    library.telemetry = False
    library.suppress_debug_info = True
    library.turn_off_message_logging = True
    library.drop_params = False  # what a provider lacks is refused by name
    return library


def _max_input_tokens(library: Any, model: str) -> int | None:
    try:
        return library.get_model_info(model).get("max_input_tokens")
    except Exception:  # the library raises a plain one for a model that its table lacks
        logger.info("LiteLLM's table does not know %s, so the length of its context is unknown", model)
        return None
