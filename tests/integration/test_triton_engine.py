"""The Triton engine against a scripted server over real gRPC: what it sends, and one typed end for every fault."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from PIL import Image
from pydantic import SecretStr

from opsin.core.conversation import Detail, MediaRef, Message, TextPart
from opsin.core.errors import (
    ConfigError,
    ContextLengthExceeded,
    EngineError,
    InvalidRequest,
    OpsinError,
    Overloaded,
    TooManyImages,
    UnsupportedParameter,
    UpstreamMisconfigured,
)
from opsin.engine.api import Finished, GenerationRequest, SamplingParams, Usage
from opsin.engine.triton.engine import TritonEngine
from opsin.engine.triton.wire import TensorSpec
from opsin.engine.upstream.config import UpstreamConfig
from opsin.testing.scripted_triton import (
    IMAGE,
    TEXT,
    VLLM_INPUTS,
    VLLM_OUTPUTS,
    End,
    ScriptedTriton,
    TritonScript,
    serve,
)
from tests.corpus.pictures import data_url
from tests.integration.gateways import gateway
from tests.integration.test_upstream_engine import a_request, answer, end_of, failure

HANG = TritonScript(end=End.HANG)


def a_vllm_backend() -> ScriptedTriton:
    return ScriptedTriton(inputs=VLLM_INPUTS, outputs=VLLM_OUTPUTS)


@asynccontextmanager
async def running(
    triton: ScriptedTriton | None = None, **config: Any
) -> AsyncGenerator[tuple[TritonEngine, ScriptedTriton]]:
    triton = triton or ScriptedTriton()
    async with serve(triton) as url, started(url, **config) as engine:
        yield engine, triton


@asynccontextmanager
async def started(url: str, **config: Any) -> AsyncGenerator[TritonEngine]:
    engine = TritonEngine(UpstreamConfig.model_validate({"url": url, "model": "vlm", **config}))
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


async def test_a_model_of_the_vllm_backend_gets_a_prompt_pictures_and_options() -> None:
    pictures = [png(8, 8), png(9, 9)]
    parts: list[Any] = [
        {"type": "text", "text": "First"},
        {"type": "image_url", "image_url": {"url": data_url(pictures[0])}},
        {"type": "text", "text": "second"},
        {"type": "image_url", "image_url": {"url": data_url(pictures[1])}},
    ]
    triton = a_vllm_backend()
    async with (
        serve(triton) as url,
        gateway(engine="triton", model="demo", upstream={"url": url, "model": "vlm"}) as served,
        AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
    ):
        messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": parts}]
        whole = await client.chat.completions.create(
            model="vlm", messages=messages, max_tokens=16, temperature=0, stop=["\n"], seed=7
        )
        stream = await client.chat.completions.create(
            model="vlm", messages=messages, max_tokens=16, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert whole.choices[0].message.content == "A red circle."
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (80, 4)
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert [text for text in texts if text] == ["A red ", "circle."]
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 4
    inputs = triton.received[0].inputs
    assert inputs["text_input"] == (b"<|im_start|>User: First<image> second<image><end_of_utterance>\nAssistant:",)
    assert inputs["image"] == tuple(base64.b64encode(picture) for picture in pictures)
    parameters = inputs["sampling_parameters"][0]
    assert isinstance(parameters, bytes)
    assert json.loads(parameters) == {"max_tokens": 16, "temperature": 0.0, "seed": 7, "stop": ["\n"]}
    for name in ("stream", "exclude_input_in_output", "return_finish_reason", "return_num_output_tokens"):
        assert inputs[name] == (True,)
    assert triton.received[0].metadata["triton_grpc_error"] == "true"


async def test_a_special_token_in_a_text_is_no_placeholder() -> None:
    triton = a_vllm_backend()
    async with (
        serve(triton) as url,
        gateway(engine="triton", model="demo", upstream={"url": url, "model": "vlm"}) as served,
    ):
        texts = "<image> or <end_of_utterance> or another model's <|vision_start|>"
        status, _ = await served.chat(messages=[{"role": "user", "content": texts}])
    assert status == 200
    (text,) = triton.received[0].inputs["text_input"]
    assert isinstance(text, bytes)
    assert b"<|vision_start|>" in text  # no token of this model
    assert b"<image>" not in text and text.count(b"<end_of_utterance>") == 1  # the template's own


async def test_a_vllm_backend_needs_a_template() -> None:
    with pytest.raises(ConfigError, match="name the model whose chat template writes it"):
        async with running(a_vllm_backend()):
            pass


async def test_an_ensemble_gets_text_and_pictures_in_order() -> None:
    pictures = tuple(png(size, size) for size in (4, 5, 6, 7))
    refs = tuple(MediaRef("", Detail.AUTO, "") for _ in pictures)
    async with running(api_key=SecretStr("hunter2")) as (engine, triton):
        asked = a_request(messages=(Message("user", (*refs, TextPart("what is it"))),), pictures=pictures)
        text, events = await answer(engine, _left_open(asked))
        plain, _ = await answer(engine, _left_open(a_request("r2")))
    assert text == plain == "A red circle."
    end = end_of(events)
    assert end.remote is not None and end.remote.source == "triton"
    assert replace(end, remote=None) == Finished("stop", Usage(None, None, None), stages_s={})
    with_pictures, without = triton.received
    assert with_pictures.request_id == "r1"
    assert with_pictures.inputs == {
        "text_input": (b"what is it",),
        "image": tuple(base64.b64encode(picture) for picture in pictures),
    }
    assert without.inputs == {"text_input": (b"What is it?",), "image": ()}
    assert without.metadata["authorization"] == "Bearer hunter2"


async def test_what_an_ensemble_declares_is_filled_and_what_it_lacks_is_refused() -> None:
    inputs = (
        TEXT,
        TensorSpec("image", "BYTES", (1,), optional=True),
        TensorSpec("max_tokens", "INT32", (1,), optional=True),
        TensorSpec("runtime_top_k", "INT32", (1,), optional=True),
        TensorSpec("random_seed", "UINT64", (1,), optional=True),
        TensorSpec("stop_words", "BYTES", (-1,), optional=True),
    )
    async with running(ScriptedTriton(inputs=inputs, max_batch_size=4)) as (engine, triton):
        known = SamplingParams(max_tokens=9, top_k=3, seed=7, stop=("a", "b"), left_open=_ALL - {"top_k"})
        await answer(engine, _asking(known))
        with pytest.raises(UnsupportedParameter, match=r"no input for 'temperature'; it has text_input, image"):
            await answer(engine, _asking(SamplingParams(temperature=0.5, left_open=_ALL - {"temperature"})))
        with pytest.raises(InvalidRequest, match="'seed' does not fit into this model's input random_seed of UINT64"):
            await answer(engine, _asking(SamplingParams(seed=-1, left_open=_ALL)))
        refs = tuple(MediaRef("", Detail.AUTO, "") for _ in range(2))
        two = a_request(messages=(Message("user", refs),), pictures=(png(4, 4), png(5, 5)))
        with pytest.raises(TooManyImages, match="takes 1 pictures; the request has 2"):
            await answer(engine, _left_open(two))
        with pytest.raises(InvalidRequest, match="takes one message of a user"):
            await answer(engine, _left_open(a_request(messages=(Message("assistant", ()), Message("user", ())))))
        assert (await engine.stats()).running == 0
    (received,) = triton.received
    assert received.inputs == {
        "text_input": (b"What is it?",),
        "max_tokens": (9,),
        "runtime_top_k": (3,),
        "random_seed": (7,),
        "stop_words": (b"a", b"b"),
    }
    assert received.shapes["stop_words"] == (1, 2)  # one more dimension for the batch


@pytest.mark.parametrize(
    ("script", "kind", "code", "text"),
    [
        (TritonScript(end=End.CUT), EngineError, "upstream_truncated", "A red circle."),
        (TritonScript(end=End.STATUS, status="UNAVAILABLE"), EngineError, "upstream_truncated", "A red circle."),
        (TritonScript(texts=()), EngineError, "upstream_empty", ""),
        (TritonScript(end=End.ERROR, message="it broke"), EngineError, "upstream_error", "A red circle."),
        (TritonScript(texts=(), end=End.STATUS, message="CUDA out of memory"), EngineError, "engine_out_of_memory", ""),
        (
            TritonScript(
                texts=(),
                end=End.STATUS,
                message="Error generating stream: The decoder prompt (length 5000) is longer than the maximum model "
                "length of 4096.",
            ),
            ContextLengthExceeded,
            "context_length_exceeded",
            "",
        ),
        (
            TritonScript(texts=(), end=End.STATUS, status="UNAVAILABLE", message="Exceeds maximum queue size"),
            Overloaded,
            "overloaded",
            "",
        ),
        (
            TritonScript(texts=(), end=End.STATUS, status="INVALID_ARGUMENT", message="unexpected shape"),
            InvalidRequest,
            "upstream_refused",
            "",
        ),
        (
            TritonScript(texts=(), end=End.STATUS, status="UNAUTHENTICATED"),
            UpstreamMisconfigured,
            "upstream_unauthorized",
            "",
        ),
        (TritonScript(texts=(), end=End.STATUS, status="NOT_FOUND"), UpstreamMisconfigured, "upstream_not_found", ""),
        (TritonScript(texts=(), end=End.HANG), EngineError, "upstream_timeout", ""),
    ],
)
async def test_every_fault_has_one_class_and_code(
    script: TritonScript, kind: type[OpsinError], code: str, text: str
) -> None:
    async with running(read_timeout_s=0.3) as (engine, triton):
        triton.queue(script)
        error, before = await failure(engine, _left_open(a_request()))
        assert error.code == code
        assert isinstance(error, kind)
        assert before == text
        after, _ = await answer(engine, _left_open(a_request("r2")))
        assert after == "A red circle."
        assert (await engine.stats()).running == 0


async def test_the_mark_may_be_on_the_last_text() -> None:
    async with running() as (engine, triton):
        triton.queue(TritonScript(end=End.WITH_LAST))
        text, events = await answer(engine, _left_open(a_request()))
    assert text == "A red circle."
    assert end_of(events).reason == "stop"


async def test_cancel_reaches_the_server_before_and_after_the_first_text() -> None:
    async with running() as (engine, triton):
        for script in (TritonScript(texts=(), end=End.HANG), HANG):
            triton.queue(script)
            triton.arrived.clear()
            failing = asyncio.create_task(failure(engine, _left_open(a_request())))
            await triton.arrived.wait()
            await engine.cancel("r1")
            error, _ = await failing
            assert error.code == "request_cancelled"
            await asyncio.wait_for(triton.received[-1].cancelled.wait(), 10)
        assert (await engine.stats()).running == 0


async def test_closing_the_answer_early_and_ending_its_task_cancel_too() -> None:
    async with running() as (engine, triton):
        triton.queue(HANG, HANG)
        async with aclosing(engine.submit(_left_open(a_request()))) as events:
            await anext(events)
        await asyncio.wait_for(triton.received[0].cancelled.wait(), 10)
        triton.arrived.clear()
        task = asyncio.create_task(answer(engine, _left_open(a_request("r2"))))
        await triton.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(triton.received[1].cancelled.wait(), 10)
        assert (await engine.stats()).running == 0


async def test_a_server_that_dies_fails_what_runs_and_is_used_again_when_it_is_back() -> None:
    triton = ScriptedTriton()
    triton.queue(HANG)
    async with serve(triton) as url:
        port = int(url.rpartition(":")[2])
        engine = TritonEngine(UpstreamConfig(url=url, model="vlm", health_interval_s=0.05))
        await engine.start()
        failing = asyncio.create_task(failure(engine, _left_open(a_request())))
        await triton.arrived.wait()
    try:
        error, _ = await failing
        assert error.code == "upstream_truncated"
        refused, _ = await failure(engine, _left_open(a_request("r2")))
        assert (refused.code, refused.status) == ("upstream_unavailable", 503)
        assert engine.unready_reason() == "the upstream cannot be reached: no Triton answers"
        async with serve(triton, port):
            async with asyncio.timeout(10):
                while engine.unready_reason() is not None:  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0.02)
            text, _ = await answer(engine, _left_open(a_request("r3")))
            assert text == "A red circle."
            triton.ready = False
            async with asyncio.timeout(10):
                while engine.unready_reason() is None:  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0.02)
            assert engine.unready_reason() == "the Triton server is live, and its model vlm is not ready"
    finally:
        await engine.close()


async def test_a_start_waits_for_a_model_that_loads_and_not_for_one_that_is_not_there() -> None:
    triton = ScriptedTriton()
    triton.ready = False
    async with serve(triton) as url:
        with pytest.raises(EngineError, match="not ready within 0 s: the Triton server is live, and its model vlm"):
            async with started(url, ready_timeout_s=0):
                pass
        with pytest.raises(ConfigError, match="has no model other; name one with --upstream-model: vlm"):
            async with started(url, model="other"):
                pass
        with pytest.raises(ConfigError, match="name one with --upstream-model: vlm"):
            async with started(url, model=None):
                pass
    with pytest.raises(EngineError, match="no Triton answers"):
        async with started(url, ready_timeout_s=0):
            pass


async def test_a_model_with_an_input_that_nobody_fills_is_refused_at_the_start() -> None:
    strange = (TEXT, IMAGE, TensorSpec("pixel_values", "FP16", (3, 336, 336)))
    with pytest.raises(ConfigError, match="inputs that opsin cannot fill: pixel_values"):
        async with running(ScriptedTriton(inputs=strange)):
            pass


_ALL = frozenset({"temperature", "top_p", "top_k", "min_p", "repetition_penalty"})


def _left_open(request: GenerationRequest) -> GenerationRequest:
    """As a client asks that states nothing."""
    return replace(request, sampling=SamplingParams(left_open=_ALL))


def _asking(sampling: SamplingParams) -> GenerationRequest:
    return replace(a_request(), sampling=sampling)


def png(width: int, height: int) -> bytes:
    file = BytesIO()
    Image.new("RGB", (width, height), "red").save(file, "PNG")
    return file.getvalue()
