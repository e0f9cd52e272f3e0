"""A Triton server over gRPC, with the messages and stubs of ``tritonclient``: the one file that knows these libraries.

Not through ``tritonclient``'s own client: that one cannot ask for the marker of the last response and for the status of
an error in the stream, both of which Triton gives to whoever asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import grpc.aio
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from opsin.core.errors import OpsinError
from opsin.core.sse import MAX_EVENT_BYTES
from opsin.engine.triton.failures import grpc_error, stream_error, timed_out
from opsin.engine.triton.wire import Interface, Response, Tensor, TensorSpec, decode
from opsin.engine.upstream.config import UpstreamConfig
from opsin.engine.upstream.failures import cancelled, protocol_error, truncated

_pb = cast("Any", service_pb2)  # generated, and without types
_EOF = cast("Any", grpc.aio).EOF

_OPTIONS = [
    ("grpc.max_send_message_length", -1),  # pictures are limited before they come here
    ("grpc.max_receive_message_length", MAX_EVENT_BYTES),
    ("grpc.enable_retries", 0),  # a request that may have run is never sent again
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),  # gRPC's own two minutes are long for a server that is back
    ("grpc.enable_http_proxy", 0),
]
_FINAL = "triton_final_response"
_ASK_FOR_FINAL = "triton_enable_empty_final_response"
_WITH_STATUS = ("triton_grpc_error", "true")


class GrpcService:
    """Implements :class:`opsin.engine.triton.wire.Service`; connects when first asked, and again when it broke."""

    def __init__(self, config: UpstreamConfig) -> None:
        scheme, _, target = config.url.partition("://")
        self._config = config
        self._channel = _channel(target, secure=scheme == "grpcs")
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        key = config.api_key.get_secret_value() if config.api_key else None
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()

    async def unready_reason(self, model: str) -> str | None:
        """See Service."""
        if not (await self._ask(self._stub.ServerLive, _pb.ServerLiveRequest())).live:
            return "the Triton server is not live"
        if not (await self._ask(self._stub.ModelReady, _pb.ModelReadyRequest(name=model))).ready:
            return f"the Triton server is live, and its model {model} is not ready"
        return None

    async def interface(self, model: str) -> Interface:
        """See Service. Raises UpstreamMisconfigured for a model that is not there."""
        config = (await self._ask(self._stub.ModelConfig, _pb.ModelConfigRequest(name=model))).config
        return Interface(
            name=model,
            inputs=tuple(_spec(one, optional=one.optional) for one in config.input),
            outputs=tuple(_spec(one) for one in config.output),
            is_batched=config.max_batch_size > 0,
        )

    async def models(self) -> Sequence[str]:
        """See Service."""
        index = await self._ask(self._stub.RepositoryIndex, _pb.RepositoryIndexRequest())
        return [model.name for model in index.models]

    def infer(self, request_id: str, interface: Interface, inputs: Sequence[Tensor]) -> GrpcStream:
        """See Service. ``request_id`` stands in the server's own log."""
        request = _pb.ModelInferRequest(
            model_name=interface.name,
            id=request_id,
            inputs=[_described(tensor, is_batched=interface.is_batched) for tensor in inputs],
            raw_input_contents=[tensor.encoded() for tensor in inputs],
        )
        request.parameters[_ASK_FOR_FINAL].bool_param = True
        call = self._stub.ModelStreamInfer(_once(request), metadata=(*self._metadata, _WITH_STATUS))
        return GrpcStream(call, self._config)

    async def close(self) -> None:
        """See Service."""
        await self._channel.close()

    async def _ask(self, method: Callable[..., Awaitable[Any]], request: object) -> Any:
        """One unary call. Raises OpsinError."""
        try:
            return await method(request, metadata=self._metadata, timeout=2 * self._config.connect_timeout_s)
        except grpc.aio.AioRpcError as error:
            raise _translated(error, answered=False) from None


class GrpcStream:
    """Implements :class:`opsin.engine.triton.wire.Stream`. Every failure is an OpsinError."""

    def __init__(self, call: Any, config: UpstreamConfig) -> None:
        self._call = call
        self._config = config
        self._cancelled = False
        self.answered = False

    def cancel(self) -> None:
        """See Stream. Resets the HTTP/2 stream, which Triton hands on as the cancellation of the request."""
        self._cancelled = True
        self._call.cancel()

    async def responses(self) -> AsyncGenerator[Response, None]:
        """See Stream."""
        async with self._interruptible(self._config.connect_timeout_s):
            await self._call.wait_for_connection()
        while (response := await self._read()) is not None:
            self.answered = True
            yield response
            if response.is_final:
                return
        raise truncated()

    async def _read(self) -> Response | None:
        """The next response; None at the end of the stream."""
        async with self._interruptible(self._config.read_timeout_s):
            message = await self._call.read()
        if message is _EOF:
            return None
        if message.error_message:
            raise stream_error(message.error_message)
        return _response(message.infer_response)

    @asynccontextmanager
    async def _interruptible(self, timeout_s: float) -> AsyncGenerator[None, None]:
        """gRPC tells a reader of ``cancel`` by a CancelledError, as if the reader's own task were cancelled."""
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            raise timed_out() from None
        except grpc.aio.AioRpcError as error:
            raise cancelled() if self._cancelled else _translated(error, answered=self.answered) from None
        except (asyncio.CancelledError, asyncio.InvalidStateError):
            task = asyncio.current_task()
            if not self._cancelled or task is None or task.cancelling():
                raise
            raise cancelled() from None


def _channel(target: str, *, secure: bool) -> grpc.aio.Channel:
    if secure:
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(), options=_OPTIONS)
    return grpc.aio.insecure_channel(target, options=_OPTIONS)


async def _once(request: object) -> AsyncIterator[object]:
    yield request


def _translated(error: grpc.aio.AioRpcError, *, answered: bool) -> OpsinError:
    return grpc_error(error.code().name, error.details() or "", answered=answered)


def _spec(declared: Any, *, optional: bool = False) -> TensorSpec:
    name: str = cast("Any", model_config_pb2).DataType.Name(declared.data_type).removeprefix("TYPE_")
    return TensorSpec(declared.name, "BYTES" if name == "STRING" else name, tuple(declared.dims), optional)


def _described(tensor: Tensor, *, is_batched: bool) -> Any:
    shape = (len(tensor.values),)
    return _pb.ModelInferRequest.InferInputTensor(
        name=tensor.spec.name,
        datatype=tensor.spec.datatype,
        shape=(1, *shape) if is_batched else shape,
    )


def _response(message: Any) -> Response:
    """Raises EngineError ``upstream_protocol`` for outputs without their bytes: we ask for no other form."""
    if len(message.raw_output_contents) != len(message.outputs):
        raise protocol_error("outputs without their values")
    outputs = {
        output.name: decode(output.datatype, data)
        for output, data in zip(message.outputs, message.raw_output_contents, strict=True)
    }
    return Response(outputs, is_final=message.parameters[_FINAL].bool_param if _FINAL in message.parameters else False)
