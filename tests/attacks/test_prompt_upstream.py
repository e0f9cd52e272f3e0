"""Public cases of section 2D towards an engine that tokenises text by itself: what arrives there spells no token."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from opsin.prompt.special_tokens import known_special_tokens
from opsin.testing.scripted_upstream import ScriptedUpstream, serve
from tests.corpus.bodies import content_body
from tests.corpus.pictures import data_url, encoded, scene
from tests.integration.gateways import Served, gateway

PICTURE = {"type": "image_url", "image_url": {"url": data_url(encoded(scene(), "png"))}}
KNOWN = known_special_tokens()
TYPED = (
    "<|vision_start|><|image_pad|><|vision_end|> <image> [IMG] <IMG_CONTEXT> <start_of_image> <|video_pad|> <__media__>"
)


@asynccontextmanager
async def in_front(**upstream: Any) -> AsyncGenerator[tuple[Served, ScriptedUpstream]]:
    """A gateway before a scripted engine."""
    engine = ScriptedUpstream()
    async with serve(engine) as url, gateway(engine="upstream", upstream={"url": url, **upstream}) as served:
        yield served, engine


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def strings(value: Any) -> Iterator[str]:
    """Every string of a body but its pictures."""
    match value:
        case str():
            yield from () if value.startswith("data:image/") else (value,)
        case list():
            for one in value:  # pyright: ignore[reportUnknownVariableType] any JSON
                yield from strings(one)
        case dict():
            for key, one in value.items():  # pyright: ignore[reportUnknownVariableType] any JSON
                yield from (*strings(key), *strings(one))
        case _:
            pass


def as_written(message: dict[str, Any]) -> str:
    """A message's texts as a template writes them that trims each."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "").strip() for part in content)


MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": TYPED, "name": TYPED},
    {"role": "user", "content": [text(TYPED), PICTURE, text("<ima"), text(" ge>"), text("<|im_"), text("end|>")]},
    {"role": "assistant", "content": f"</s>{TYPED}"},
    {"role": "user", "content": "<im<image>age> <|im<|im_end|>_end|>"},
]


async def test_case_73_no_token_of_any_listed_family_arrives() -> None:
    async with in_front() as (served, upstream):
        status, answer = await served.chat(messages=MESSAGES)
    assert status == 200
    body = json.loads(upstream.received[0].body)
    assert [found for string in strings(body) for found in KNOWN.starts(string)] == []
    assert [found for message in body["messages"] for found in KNOWN.starts(as_written(message))] == []
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert as_written(body["messages"][0]).replace("\u2060", "") == TYPED  # nothing else is changed
    (warning,) = answer["opsin"]["warnings"]
    assert (warning["code"], warning["param"]) == ("special_tokens_broken", "messages.0.content")


async def test_case_73_pictures_stay_where_they_were() -> None:
    content = [text("<image>"), PICTURE, text("<image>"), PICTURE, text("which <image>?")]
    async with in_front() as (served, upstream):
        await served.chat(messages=[{"role": "user", "content": content}])
    (message,) = json.loads(upstream.received[0].body)["messages"]
    assert [part["type"] for part in message["content"]] == ["text", "image_url", "text", "image_url", "text"]


async def test_case_71_a_marker_of_the_engine_does_not_arrive() -> None:
    async with in_front() as (served, upstream):
        await served.chat(messages=[{"role": "user", "content": [text("<__media__>"), PICTURE]}])
    assert b"<__media__>" not in upstream.received[0].body


async def test_texts_can_be_refused_by_the_place_of_the_token_alone() -> None:
    async with in_front(special_tokens_in_text="reject") as (served, upstream):
        status, answer = await served.chat(messages=[{"role": "user", "content": [PICTURE, text("see <|im_end|>")]}])
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (
            400,
            "special_tokens_in_text",
            "messages.0.content",
        )
        assert "part 1 spells a special token at character 4," in answer["error"]["message"]
        assert "im_end" not in answer["error"]["message"]
        assert not upstream.received
        assert (await served.chat(messages=[{"role": "user", "content": "see <b>this</b>"}]))[0] == 200


async def test_a_known_tokenizer_says_what_is_special(tmp_path: Path) -> None:
    added = [{"id": 0, "content": "<seg>", "special": True}, {"id": 1, "content": "<turn_end>", "special": True}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added, "model": {}}))
    async with in_front(tokenizer=str(tmp_path), allowed_special_tokens=["<seg>"]) as (served, upstream):
        await served.chat(messages=[{"role": "user", "content": "<seg> <turn_end> <|im_end|> <__media__>"}])
    (message,) = json.loads(upstream.received[0].body)["messages"]
    assert message["content"] == "<seg> <\u2060turn_end> <|im_end|> <\u2060__media__>"


async def test_case_64_a_megabyte_of_tokens_is_broken_up_and_the_answer_is_small() -> None:
    body = io.BytesIO(content_body("<image>" * 150_000))
    async with (
        in_front() as (served, upstream),
        served.http.post(f"{served.url}/v1/chat/completions", data=body) as response,
    ):
        answer = await response.json()
    assert json.loads(upstream.received[0].body)["messages"][0]["content"] == "<\u2060image>" * 150_000
    assert len(json.dumps(answer["opsin"])) < 1000
