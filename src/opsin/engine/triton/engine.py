"""An engine that is a model of a Triton Inference Server: the Engine contract over its gRPC stream.

One stream for each request, so that closing it cancels just that request. What Triton's statistics tell are sums over
all requests, so no stage of a single one is known, and the whole wait is shown as the upstream's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from importlib.util import find_spec

from opsin.core.errors import Code, ConfigError, EngineError, OpsinError
from opsin.engine.api import Capabilities, Delta, Finished, GenerationRequest, InputKind
from opsin.engine.remote import RemoteEngine, with_rest
from opsin.engine.triton.ensemble import ensemble
from opsin.engine.triton.shape import ModelShape, OutputNames, PromptText, Reply
from opsin.engine.triton.vllm_backend import is_vllm, vllm_backend
from opsin.engine.triton.wire import Interface, Service, Stream
from opsin.engine.upstream.config import UpstreamConfig
from opsin.telemetry.logs import fields

logger = logging.getLogger(__name__)

_RETRY_S = 0.25
_WORTH_WAITING = (Code.UPSTREAM_UNAVAILABLE, Code.UPSTREAM_TIMEOUT)


def check_installed() -> None:
    """Looks without importing. Raises ConfigError."""
    if find_spec("tritonclient") is None or find_spec("grpc") is None:
        raise ConfigError("engine triton needs tritonclient: pip install 'opsin[triton]'")


def connect(config: UpstreamConfig) -> Service:
    """Imported only here, as an install for other engines lacks the libraries. Raises ConfigError."""
    check_installed()
    from opsin.engine.triton.service import GrpcService

    return GrpcService(config)


class TritonEngine(RemoteEngine["InferAnswer"]):
    """Implements :class:`opsin.engine.api.Engine`. ``prompt`` writes prompts, where the model's template is known."""

    def __init__(
        self,
        config: UpstreamConfig,
        prompt: PromptText | None = None,
        max_model_len: int | None = None,
        connect: Callable[[UpstreamConfig], Service] = connect,
    ) -> None:
        super().__init__()
        self._config = config
        self._prompt = prompt
        self._max_model_len = max_model_len
        self._connect = connect
        self._service: Service | None = None
        self._interface: Interface | None = None
        self._shape: ModelShape | None = None

    async def start(self) -> None:
        """Waits until server and model are ready. Raises ConfigError (address, model) or EngineError (not in time)."""
        self._service = self._connect(self._config)
        await self._until_ready(self._service)
        self._interface = await self._service.interface(self._name)
        self._shape = shape_of(self._interface, self._prompt, self._max_model_len)
        logger.info("%s", fields(triton=self._interface.name, shape=self._shape.kind))
        self._watch_every(self._config.health_interval_s)

    def capabilities(self) -> Capabilities:
        """Triton tells nobody how long a model's context is."""
        return Capabilities(
            input=InputKind.MESSAGES,
            max_model_len=None,
            model_name=self._interface.name if self._interface else None,
            max_num_seqs=None,
            stages=frozenset(),
            reports_cache=False,
            reports_kv=False,
            ignores_orientation=self._shape.ignores_orientation if self._shape else False,
        )

    def _ask(self, request: GenerationRequest) -> InferAnswer:
        if self._service is None or self._interface is None or self._shape is None:
            raise EngineError("the Triton engine is not started or is closed")
        stream = self._service.infer(request.id, self._interface, self._shape.inputs(request))
        return InferAnswer(stream, Reply(OutputNames(), request.sampling.max_tokens))

    async def _look(self) -> str | None:
        assert self._service is not None, "start watches, close stops that first"
        try:
            return await self._service.unready_reason(self._name)
        except OpsinError as error:
            return error.message

    async def _disconnect(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            await service.close()

    @property
    def _name(self) -> str:
        assert self._config.model is not None, "_until_ready has looked"
        return self._config.model

    async def _until_ready(self, service: Service) -> None:
        deadline = time.monotonic() + self._config.ready_timeout_s
        while (reason := await self._reason(service)) is not None:
            if time.monotonic() >= deadline:
                message = f"the upstream was not ready within {self._config.ready_timeout_s:g} s: {reason}"
                raise EngineError(message, code=Code.UPSTREAM_UNAVAILABLE)
            await asyncio.sleep(_RETRY_S)

    async def _reason(self, service: Service) -> str | None:
        """Why the server cannot be asked yet. Raises ConfigError where waiting is vain."""
        name = self._config.model
        try:
            reason = await service.unready_reason(name) if name else "no model is named"
            if reason is not None and name not in (names := await service.models()):
                what = f"has no model {name}" if name else "serves several models"
                there = ", ".join(names) or "none is there"
                raise ConfigError(f"Triton {what}; name one with --upstream-model: {there}")
            return reason
        except ConfigError:
            raise
        except OpsinError as error:
            if error.code not in _WORTH_WAITING:
                raise ConfigError(f"Triton at {self._config.url}: {error.message}") from None
            return error.message


class InferAnswer:
    """Implements :class:`opsin.engine.remote.Answer`."""

    def __init__(self, stream: Stream, reply: Reply) -> None:
        self._stream = stream
        self._reply = reply

    @property
    def answered(self) -> bool:
        """See Answer."""
        return self._stream.answered

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """See Answer. Raises as listed in :mod:`opsin.engine.triton.failures`."""
        async with aclosing(self._stream.responses()) as responses:
            async for response in responses:
                delta = self._reply.take(response)
                if delta is not None:
                    yield delta

    def finish(self, took_s: float) -> Finished:
        """See Answer."""
        return with_rest(self._reply.finish(), "triton", took_s)

    def cancel(self) -> None:
        """Ends the stream, which Triton hands on to the model as a cancellation."""
        self._stream.cancel()

    async def close(self) -> None:
        """See Answer."""
        self._stream.cancel()


def shape_of(interface: Interface, prompt: PromptText | None, max_model_len: int | None) -> ModelShape:
    """The one that a model's declaration asks for. Raises ConfigError."""
    if is_vllm(interface):
        return vllm_backend(interface, prompt, max_model_len)
    return ensemble(interface, prompt)
