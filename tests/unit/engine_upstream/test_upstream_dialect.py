"""What each engine says of itself and of a request, as it was recorded or as its code writes it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from opsin.core.stages import Stage
from opsin.engine.upstream.dialect import DIALECTS, UpstreamKind, dialect_of
from opsin.engine.upstream.metrics_page import total
from opsin.engine.upstream.probe import choose_model
from opsin.engine.upstream.reply import Reply
from opsin.engine.upstream.wire import ModelList
from opsin.media.types import ImageFormat

MODELS: dict[UpstreamKind, dict[str, Any]] = {
    UpstreamKind.VLLM: {
        "id": "demo", "object": "model", "created": 1796086860, "owned_by": "vllm", "root": "/models/demo",
        "parent": None, "max_model_len": 4096, "permission": [{"id": "modelperm-1", "allow_view": True}],
    },
    UpstreamKind.LLAMA_CPP: {
        "id": "demo", "aliases": ["demo"], "tags": [], "object": "model", "created": 1796086860,
        "owned_by": "llamacpp", "meta": {"n_vocab": 300, "n_ctx": 4096, "n_ctx_train": 4096},
    },
    UpstreamKind.SGLANG: {
        "id": "demo", "object": "model", "created": 1796086860, "owned_by": "sglang", "root": "demo", "parent": None,
        "max_model_len": 4096,
    },
    UpstreamKind.TENSORRT_LLM: {
        "id": "demo", "object": "model", "created": 1796086860, "owned_by": "tensorrt_llm",
    },
    UpstreamKind.OPSIN: {
        "id": "demo", "created": 1796086860, "revision": "1f", "root": "demo", "max_model_len": 4096,
        "object": "model", "owned_by": "opsin",
    },
    UpstreamKind.AUTO: {"id": "gpt-4o", "object": "model", "created": 1715367049, "owned_by": "system"},
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_an_engine_is_known_by_its_list_of_models_and_a_statement_wins(kind: UpstreamKind) -> None:
    listed = msgspec.convert({"object": "list", "data": [MODELS[kind]]}, type=ModelList).data
    owned_by = choose_model(listed, None).owned_by
    assert dialect_of(UpstreamKind.AUTO, owned_by).kind is kind
    assert dialect_of(UpstreamKind.OPENAI, owned_by).kind is UpstreamKind.OPENAI


def test_every_kind_has_a_row() -> None:
    assert set(DIALECTS) == set(UpstreamKind)


def test_llama_cpp_reads_what_stb_does() -> None:
    formats = DIALECTS[UpstreamKind.LLAMA_CPP].formats
    assert formats is not None
    assert not formats & {ImageFormat.WEBP, ImageFormat.AVIF, ImageFormat.HEIC, ImageFormat.TIFF}


def usage_event(prompt_tokens_details: object, **beside: object) -> dict[str, Any]:
    usage = {"prompt_tokens": 128, "total_tokens": 133, "completion_tokens": 5}
    return {"id": "c", "choices": [], "usage": {**usage, "prompt_tokens_details": prompt_tokens_details}, **beside}


TIMINGS = {
    "cache_n": 0, "prompt_n": 127, "prompt_ms": 250.0, "prompt_per_token_ms": 1.97, "predicted_n": 5,
    "predicted_ms": 40.0, "predicted_per_token_ms": 10.0, "predicted_per_second": 100.0,
}  # fmt: skip
METRICS = {
    "time_to_first_token_ms": 180.0, "generation_time_ms": 60.0, "queue_time_ms": 1.5, "mean_itl_ms": 15.0,
    "tokens_per_second": 20.8,
}  # fmt: skip
STAGES_OF_VLLM = {Stage.QUEUE: 0.0015, Stage.PREFILL: 0.18, Stage.DECODE: 0.06}


@pytest.mark.parametrize(
    ("kind", "event", "image_tokens", "placeholder_tokens", "stages_s"),
    [
        (
            UpstreamKind.VLLM,
            usage_event({"cached_tokens": 16, "multimodal_tokens": {"image": 94}}, metrics=METRICS),
            None,
            94,
            STAGES_OF_VLLM,
        ),
        (UpstreamKind.VLLM, usage_event(None), None, None, {}),
        (
            UpstreamKind.VLLM,
            usage_event(None, metrics={**METRICS, "queue_time_ms": None, "time_to_first_token_ms": "soon"}),
            None,
            None,
            {Stage.DECODE: 0.06},
        ),
        (UpstreamKind.VLLM, usage_event(None, metrics=[1]), None, None, {}),
        (
            UpstreamKind.LLAMA_CPP,
            usage_event({"cached_tokens": 0}, timings=TIMINGS),
            None,
            None,
            {Stage.PREFILL: 0.25, Stage.DECODE: 0.04},
        ),
        (UpstreamKind.SGLANG, usage_event({"cached_tokens": 3, "image_tokens": 80}), 80, None, {}),
        (UpstreamKind.TENSORRT_LLM, usage_event({"cached_tokens": 3}), None, None, {}),
        (UpstreamKind.AUTO, usage_event(None, metrics=METRICS, timings=TIMINGS), None, None, {}),
    ],
)
def test_usage_and_stages_as_each_engine_tells_them(
    kind: UpstreamKind,
    event: dict[str, Any],
    image_tokens: int | None,
    placeholder_tokens: int | None,
    stages_s: dict[Stage, float],
) -> None:
    reply = Reply(DIALECTS[kind])
    reply.take(json.dumps({"choices": [{"index": 0, "delta": {"content": "A"}, "finish_reason": "stop"}]}).encode())
    reply.take(json.dumps(event).encode())
    end = reply.finish()
    assert end.usage.prompt_tokens == 128
    assert (end.usage.image_tokens, end.usage.placeholder_tokens) == (image_tokens, placeholder_tokens)
    assert end.stages_s == pytest.approx(stages_s)


@pytest.mark.parametrize(
    ("kind", "page", "waiting"),
    [
        (
            UpstreamKind.VLLM,
            b"# TYPE vllm:num_requests_waiting gauge\n"
            b'vllm:num_requests_waiting{engine="0",model_name="a"} 2.0\n'
            b'vllm:num_requests_waiting{engine="1",model_name="a"} 1.0\n'
            b'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0\n',
            3,
        ),
        (UpstreamKind.LLAMA_CPP, b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 4\n", 4),
        (UpstreamKind.SGLANG, b'sglang:num_queue_reqs{model_name="a",tp_rank="0"} 5.0\n', 5),
        (UpstreamKind.VLLM, b"<html>not found</html>\xff", 0),
    ],
)
def test_how_many_requests_wait_is_read_by_the_engines_own_name(kind: UpstreamKind, page: bytes, waiting: int) -> None:
    gauge = DIALECTS[kind].waiting
    assert gauge is not None
    assert (total(page, gauge) or 0) == waiting
