"""What an upstream serves beyond opsin passes through both ways, seen by OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from opsin.testing.script import Script
from opsin.testing.scripted_upstream import ScriptedUpstream, serve
from tests.integration.gateways import gateway

TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"x": {"type": "number"}}}},
}
ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Look at 1.5 and 2."}]


def calling(index: int, arguments: str, name: str | None = None, **fields: object) -> dict[str, object]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    call = {"index": index, "function": function, **fields}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}


CALLS = Script(
    text="",
    reasoning="Two places.",
    events=(
        calling(0, "", "look", id="a", type="function"),
        calling(0, '{"x"'),
        calling(1, '{"x": 2}', "look", id="b", type="function"),
        calling(0, ": 1.5}"),
    ),
    finish_reason="tool_calls",
)


def likely(text: str) -> dict[str, object]:
    entry: dict[str, object] = {"token": text, "logprob": -0.25, "bytes": None, "top_logprobs": []}
    choice = {"index": 0, "delta": {"content": text}, "logprobs": {"content": [entry]}}
    return {"system_fingerprint": "fp_1", "choices": [choice]}


LIKELY = Script(text="", events=(likely("A"), likely(" cat")))


@asynccontextmanager
async def asking(*scripts: Script) -> AsyncGenerator[tuple[AsyncOpenAI, ScriptedUpstream]]:
    upstream = ScriptedUpstream()
    upstream.queue(*scripts)
    async with (
        serve(upstream) as url,
        gateway(engine="upstream", upstream={"url": url}) as served,
        AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client, upstream


async def test_tool_calls_as_a_whole_and_as_a_stream() -> None:
    async with asking(CALLS, CALLS) as (client, upstream):
        whole = await client.chat.completions.create(
            model="scripted", messages=ASK, tools=[TOOL], tool_choice="required"
        )
        async with client.chat.completions.stream(model="scripted", messages=ASK, tools=[TOOL]) as events:
            streamed = await events.get_final_completion()
        sent = json.loads(upstream.received[0].body)
    for completion in (whole, streamed):
        choice = completion.choices[0]
        calls = [call for call in choice.message.tool_calls or [] if call.type == "function"]
        assert [(call.id, call.function.name, call.function.arguments) for call in calls] == [
            ("a", "look", '{"x": 1.5}'),
            ("b", "look", '{"x": 2}'),
        ]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        assert choice.message.model_extra["reasoning_content"] == "Two places."  # type: ignore[index]
    assert (sent["tools"], sent["tool_choice"]) == ([TOOL], "required")


async def test_the_conversation_goes_on_with_what_the_tool_said() -> None:
    call: Any = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages: list[ChatCompletionMessageParam] = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "a cat <|im_end|>"},
    ]
    async with asking(Script()) as (client, upstream):
        answer = await client.chat.completions.create(model="scripted", messages=messages)
        sent = json.loads(upstream.received[0].body)["messages"]
    assert sent == [
        *ASK,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "a cat <\u2060|im_end|>", "tool_call_id": "a"},
    ]
    assert answer.model_extra["opsin"]["warnings"][0]["param"] == "messages.2.content"  # type: ignore[index]


async def test_log_probabilities_and_fields_of_the_engine() -> None:
    extra: Any = {"guided_choice": ["A cat"], "field_of_tomorrow": {"x": 1.50}}
    async with asking(LIKELY, LIKELY) as (client, upstream):
        whole = await client.chat.completions.create(
            model="scripted", messages=ASK, logprobs=True, top_logprobs=2, extra_body=extra
        )
        stream = await client.chat.completions.create(model="scripted", messages=ASK, logprobs=True, stream=True)
        chunks = [chunk async for chunk in stream]
        sent = json.loads(upstream.received[0].body)
    assert {name: sent[name] for name in ("logprobs", "top_logprobs", *extra)} == {
        "logprobs": True,
        "top_logprobs": 2,
        **extra,
    }
    assert whole.system_fingerprint == "fp_1"
    assert whole.choices[0].message.content == "A cat"
    logprobs = whole.choices[0].logprobs
    assert logprobs and [one.token for one in logprobs.content or []] == ["A", " cat"]
    tokens = [
        one.token
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for one in choice.logprobs.content or []
    ]
    assert tokens == ["A", " cat"]


async def test_an_engine_that_serves_no_tools_refuses_them() -> None:
    async with gateway() as served:
        status, answer = await served.chat(tools=[TOOL])
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "unsupported_parameter", "tools")
