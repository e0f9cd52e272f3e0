"""A Triton server whose every answer is scripted, over real gRPC: the other end for tests. Knows no opsin engine.

``serve`` runs it in the caller's loop. The next request gets the next of the queued scripts, else the default. Needs
the extra ``triton``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

import grpc
import grpc.aio
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from opsin.engine.triton.wire import TensorSpec, Values, decode, encode

_pb = cast("Any", service_pb2)  # generated, and without types
_config_pb = cast("Any", model_config_pb2)
_Base = cast("type[object]", service_pb2_grpc.GRPCInferenceServiceServicer)

TEXT = TensorSpec("text_input", "BYTES", (1,))
IMAGE = TensorSpec("image", "BYTES", (-1,))
TEXT_OUTPUT = TensorSpec("text_output", "BYTES", (-1,))

VLLM_INPUTS = (
    TEXT,
    TensorSpec("image", "BYTES", (-1,), optional=True),
    TensorSpec("stream", "BOOL", (1,), optional=True),
    TensorSpec("sampling_parameters", "BYTES", (1,), optional=True),
    TensorSpec("exclude_input_in_output", "BOOL", (1,), optional=True),
    TensorSpec("return_finish_reason", "BOOL", (1,), optional=True),
    TensorSpec("return_num_input_tokens", "BOOL", (1,), optional=True),
    TensorSpec("return_num_output_tokens", "BOOL", (1,), optional=True),
)
"""What the vLLM backend adds to a model's declaration, as far as opsin fills it."""

VLLM_OUTPUTS = (
    TEXT_OUTPUT,
    TensorSpec("finish_reason", "BYTES", (-1,)),
    TensorSpec("num_input_tokens", "UINT32", (1,)),
    TensorSpec("num_output_tokens", "UINT32", (-1,)),
)


class End(StrEnum):
    """How a stream ends, after the texts of its script."""

    FINAL = "final"  # an empty response that is marked as the last one
    WITH_LAST = "with last"  # the mark is on the last text
    CUT = "cut"  # status OK, and no mark
    ERROR = "error"  # a sentence in the stream, as servers do that know no status there
    STATUS = "status"
    HANG = "hang"


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonScript:
    """One answer. Counts and reasons are sent only where the model declares the output and the request asks for it."""

    texts: tuple[str, ...] = ("A red ", "circle.")
    finish_reason: str = "stop"
    num_input_tokens: int = 80
    end: End = End.FINAL
    status: str = "INTERNAL"
    message: str = ""


@dataclass(slots=True, eq=False)
class ReceivedInference:
    """One request as it came, and what became of it."""

    request_id: str
    metadata: Mapping[str, str]
    inputs: Mapping[str, Values]
    shapes: Mapping[str, Sequence[int]]
    finished: bool = False  # the answer was written to its scripted end
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)  # the client left before that

    def ended(self, _: object) -> None:
        """The call is over, for whatever reason."""
        if not self.finished:
            self.cancelled.set()


class ScriptedTriton:
    """The state of one scripted server with one model. ``ready`` False: it still loads."""

    def __init__(
        self,
        *,
        model: str = "vlm",
        inputs: Sequence[TensorSpec] = (TEXT, IMAGE),
        outputs: Sequence[TensorSpec] = (TEXT_OUTPUT,),
        max_batch_size: int = 0,
    ) -> None:
        self.received: list[ReceivedInference] = []
        self.arrived = asyncio.Event()  # set by every request; clear it to wait for another
        self.ready = True
        self._model = model
        self._inputs = inputs
        self._outputs = outputs
        self._max_batch_size = max_batch_size
        self._queue: deque[TritonScript] = deque()

    def queue(self, *scripts: TritonScript) -> None:
        """Scripts for the next requests, one each."""
        self._queue.extend(scripts)

    def knows(self, model: str) -> bool:
        """Whether that is its model."""
        return model == self._model

    def config(self) -> Any:
        """The model's declaration, as ``ModelConfig`` answers it."""
        return _config_pb.ModelConfig(
            name=self._model,
            max_batch_size=self._max_batch_size,
            input=[_config_pb.ModelInput(**_declared(spec), optional=spec.optional) for spec in self._inputs],
            output=[_config_pb.ModelOutput(**_declared(spec)) for spec in self._outputs],
        )

    def index(self) -> list[str]:
        """The names of all models."""
        return [self._model]

    async def answer(self, received: ReceivedInference, context: Any) -> AsyncIterator[Any]:
        """Plays the next script."""
        script = self._queue.popleft() if self._queue else TritonScript()
        self.received.append(received)
        self.arrived.set()
        for number, text in enumerate(script.texts):
            is_last = number == len(script.texts) - 1
            outputs = self._said(script, text, received, is_last=is_last)
            yield _streamed(outputs, is_final=is_last and script.end is End.WITH_LAST)
        match script.end:
            case End.FINAL:
                yield _streamed({}, is_final=True)
            case End.ERROR:
                yield _pb.ModelStreamInferResponse(error_message=script.message)
            case End.STATUS:
                await context.abort(grpc.StatusCode[script.status], script.message)
            case End.HANG:
                await asyncio.Event().wait()
            case End.CUT | End.WITH_LAST:
                pass

    def _said(
        self, script: TritonScript, text: str, received: ReceivedInference, *, is_last: bool
    ) -> Mapping[TensorSpec, Values]:
        values: dict[str, Values] = {"text_output": (text.encode(),)}
        if "return_finish_reason" in received.inputs:
            values["finish_reason"] = (script.finish_reason.encode() if is_last else b"None",)
        if "return_num_input_tokens" in received.inputs:
            values["num_input_tokens"] = (script.num_input_tokens,)
        if "return_num_output_tokens" in received.inputs:
            values["num_output_tokens"] = (2,)
        return {spec: values[spec.name] for spec in self._outputs if spec.name in values}


class _Servicer(_Base):
    """Triton's service, as far as opsin asks it. Names are gRPC's."""

    def __init__(self, triton: ScriptedTriton) -> None:
        self._triton = triton

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return _pb.ServerLiveResponse(live=True)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        return _pb.ModelReadyResponse(ready=self._triton.ready and self._triton.knows(request.name))

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        models = [_pb.RepositoryIndexResponse.ModelIndex(name=name) for name in self._triton.index()]
        return _pb.RepositoryIndexResponse(models=models)

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        return _pb.ModelConfigResponse(config=self._triton.config())

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            received = _received(request, context)
            context.add_done_callback(received.ended)
            async for response in self._triton.answer(received, context):
                yield response
            received.finished = True


@asynccontextmanager
async def serve(triton: ScriptedTriton, port: int = 0) -> AsyncGenerator[str]:
    """Runs it on loopback; yields its address. At the end streams are broken off, as when a server is killed."""
    server = grpc.aio.server()
    cast("Any", service_pb2_grpc).add_GRPCInferenceServiceServicer_to_server(_Servicer(triton), server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{bound}"
    finally:
        await server.stop(None)


def _declared(spec: TensorSpec) -> dict[str, Any]:
    name = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": _config_pb.DataType.Value(f"TYPE_{name}"), "dims": spec.dims}


def _received(request: Any, context: Any) -> ReceivedInference:
    pairs = list(zip(request.inputs, request.raw_input_contents, strict=True))
    return ReceivedInference(
        request_id=request.id,
        metadata={key: str(value) for key, value in context.invocation_metadata()},
        inputs={tensor.name: decode(tensor.datatype, data) for tensor, data in pairs},
        shapes={tensor.name: tuple(tensor.shape) for tensor, _ in pairs},
    )


def _streamed(outputs: Mapping[TensorSpec, Values], *, is_final: bool) -> Any:
    response = _pb.ModelInferResponse(
        outputs=[
            _pb.ModelInferResponse.InferOutputTensor(name=spec.name, datatype=spec.datatype, shape=[len(values)])
            for spec, values in outputs.items()
        ],
        raw_output_contents=[encode(spec.datatype, values) for spec, values in outputs.items()],
    )
    response.parameters["triton_final_response"].bool_param = is_final
    return _pb.ModelStreamInferResponse(infer_response=response)
