"""Proprietary APIs through LiteLLM, against servers that stream as providers do. Skipped without the extra ``apis``."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import SecretStr

from opsin.core.conversation import Detail, MediaRef, Message, TextPart
from opsin.core.errors import ConfigError, EngineError, InvalidRequest, Overloaded, UnsupportedParameter
from opsin.engine.api import ChatPrompt, GenerationRequest, SamplingParams
from opsin.engine.apis import ApiConfig, ApiEngine, arguments, check_key, check_model
from opsin.testing.scripted_apis import Mode, ScriptedApis, serve
from tests.corpus.pictures import data_url
from tests.integration.gateways import gateway
from tests.integration.test_triton_engine import png
from tests.integration.test_upstream_engine import a_request, answer, end_of, failure

KEY = "sk-hunter2"
MODELS = ("openai/gpt-4o", "anthropic/claude-opus-4-5", "gemini/gemini-2.5-pro")
PICTURE = png(8, 8)

needs_litellm = pytest.mark.skipif(find_spec("litellm") is None, reason="pip install 'opsin[apis]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own


@asynccontextmanager
async def running(model: str, **config: Any) -> AsyncGenerator[tuple[ApiEngine, ScriptedApis]]:
    apis = ScriptedApis()
    async with serve(apis) as url:
        base = url if model.startswith("anthropic") else f"{url}/v1"
        engine = ApiEngine(model, ApiConfig(key=SecretStr(KEY), base_url=base, **config))
        await engine.start()
        try:
            yield engine, apis
        finally:
            await engine.close()


def asking(*pictures: bytes, **fields: bytes) -> GenerationRequest:
    refs = tuple(MediaRef("", Detail.AUTO, "") for _ in pictures)
    request = a_request(messages=(Message("user", (*refs, TextPart("What is it?"))),), pictures=pictures)
    assert isinstance(request.prompt, ChatPrompt)
    prompt = ChatPrompt(replace(request.prompt.conversation, fields=tuple(fields.items())))
    left_open = frozenset({"temperature", "top_p", "top_k", "min_p", "repetition_penalty"})
    return replace(request, prompt=prompt, sampling=SamplingParams(max_tokens=16, left_open=left_open))


@needs_litellm
@pytest.mark.parametrize("model", MODELS)
async def test_every_provider_gets_its_own_shape_and_answers_in_ours(model: str) -> None:
    async with running(model) as (engine, apis):
        text, events = await answer(engine, asking(PICTURE, PICTURE))
        plain, _ = await answer(engine, asking())
        assert text == plain == "A red circle."
        usage = end_of(events).usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (80, 4)
        assert end_of(events).reason == "stop"
        assert engine.capabilities().model_name == model
    call = apis.received[0]
    encoded = base64.b64encode(PICTURE).decode()
    content = call.body["messages"][0]["content"]
    if model.startswith("anthropic"):
        assert call.headers["x-api-key"] == KEY
        source = {"type": "base64", "media_type": "image/png", "data": encoded}
        assert [part["source"] for part in content[:2]] == [source, source]
    else:
        assert call.headers["authorization"] == f"Bearer {KEY}"
        assert call.body["model"] == model.partition("/")[2]
        assert [part["image_url"]["url"] for part in content[:2]] == [f"data:image/png;base64,{encoded}"] * 2


@needs_litellm
@pytest.mark.parametrize("model", MODELS)
async def test_every_fault_of_a_provider_has_one_class_and_code(
    model: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with running(model, read_timeout_s=5) as (engine, apis):
        for mode, code in ((Mode.CUT, "upstream_truncated"), (Mode.ERROR, "upstream_error")):
            apis.mode = mode
            error, before = await failure(engine, asking())
            assert (error.code, before) == (code, "A red circle.")
            assert isinstance(error, EngineError)
        apis.mode = Mode.WHOLE
        for status, code in ((401, "upstream_unauthorized"), (429, "overloaded"), (400, "upstream_refused")):
            apis.status = status
            apis.message = f"nope at 10.1.2.3, {KEY}" if status == 401 else "nope"
            num_before = len(apis.received)
            error, _ = await failure(engine, asking())
            assert error.code == code
            assert KEY not in error.message
            assert len(apis.received) == num_before + 1  # never sent twice
            if isinstance(error, Overloaded):
                assert error.retry_after_s == 7
            if isinstance(error, InvalidRequest):
                assert error.message == "nope"
        apis.status = 500
        error, _ = await failure(engine, asking())
        assert (error.status, error.code) == (503, "upstream_unavailable")
        apis.status = 200
        text, _ = await answer(engine, asking(PICTURE))
        assert text == "A red circle."
        assert (await engine.stats()).running == 0
    said = "".join(capfd.readouterr()) + caplog.text
    assert KEY not in said
    assert "What is it?" not in said


@needs_litellm
@pytest.mark.parametrize("model", MODELS)
async def test_cancel_reaches_the_provider(model: str) -> None:
    async with running(model) as (engine, apis):
        for mode in (Mode.SILENT, Mode.HANG):
            apis.mode = mode
            apis.arrived.clear()
            failing = asyncio.create_task(failure(engine, asking()))
            await apis.arrived.wait()
            await asyncio.sleep(0.2)
            await engine.cancel("r1")
            error, _ = await failing
            assert error.code == "request_cancelled"
            await asyncio.wait_for(apis.received[-1].left.wait(), 10)
        async with aclosing(engine.submit(asking())) as events:
            await anext(events)
        await asyncio.wait_for(apis.received[-1].left.wait(), 10)
        assert (await engine.stats()).running == 0


@needs_litellm
async def test_why_gemini_is_not_asked_by_its_own_wire() -> None:
    """The library calls a stream finished that broke off. When this fails it has learned, and the route can change."""
    apis = ScriptedApis()
    apis.mode = Mode.CUT
    litellm: Any = import_module("litellm")
    async with serve(apis) as url:
        stream = await litellm.acompletion(
            model="gemini/gemini-2.5-pro",
            messages=[{"role": "user", "content": "What is it?"}],
            api_key=KEY,
            api_base=url,
            stream=True,
        )
        reasons = [chunk.choices[0].finish_reason async for chunk in stream if chunk.choices]
    assert apis.received[0].path.endswith(":streamGenerateContent")
    assert reasons[-1] == "stop"


@needs_litellm
async def test_silence_is_a_timeout_and_nobody_there_is_told_apart() -> None:
    async with running(MODELS[1], read_timeout_s=0.5) as (engine, apis):
        apis.mode = Mode.HANG
        error, _ = await failure(engine, asking())
        assert error.code == "upstream_timeout"
    engine = ApiEngine(MODELS[1], ApiConfig(key=SecretStr(KEY), base_url="http://127.0.0.1:1"))
    await engine.start()
    error, _ = await failure(engine, asking())
    assert error.code == "upstream_unavailable"


@needs_litellm
async def test_the_gateway_in_front_of_an_api() -> None:
    apis = ScriptedApis()
    async with (
        serve(apis) as url,
        gateway(engine="api", model=MODELS[1], api={"key": KEY, "base_url": url}) as served,
        AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
    ):
        parts: list[Any] = [
            {"type": "image_url", "image_url": {"url": data_url(PICTURE)}},
            {"type": "text", "text": "What is it?"},
        ]
        whole = await client.chat.completions.create(model=MODELS[1], messages=[{"role": "user", "content": parts}])
        refused, _ = await served.chat(api_base="http://evil.example")
    assert whole.choices[0].message.content == "A red circle."
    assert whole.usage is not None and whole.usage.prompt_tokens == 80
    assert refused == 400
    assert len(apis.received) == 1


@pytest.mark.parametrize("name", ["api_base", "base_url", "api_key", "extra_headers", "mock_response", "fallbacks"])
def test_a_client_cannot_name_what_the_library_takes_beside_the_request(name: str) -> None:
    with pytest.raises(UnsupportedParameter, match=f"'{name}' is not passed on to APIs"):
        arguments(asking(**{name: b'"http://evil.example"'}))


def test_tools_and_options_are_passed_on_and_unknown_sampling_is_refused() -> None:
    asked = arguments(asking(tools=b'[{"type":"function"}]', tool_choice=b'"auto"'))
    assert asked["tools"] == [{"type": "function"}]
    assert asked["tool_choice"] == "auto"
    assert asked["max_tokens"] == 16
    assert "temperature" not in asked
    with pytest.raises(UnsupportedParameter, match="'ignore_eos' is not understood by any API"):
        arguments(replace(asking(), sampling=SamplingParams(ignore_eos=True)))


def test_the_start_needs_a_provider_and_a_key() -> None:
    for model in ("demo", "mistral/large", "openai/"):
        with pytest.raises(ConfigError, match="PROVIDER/NAME, of openai, anthropic, gemini"):
            check_model(model)
    with pytest.raises(ConfigError, match="OPSIN_API__KEY"):
        check_key(ApiConfig())
    assert KEY not in repr(ApiConfig(key=SecretStr(KEY)))
