"""The demo model through the real server: answers that are right, depend on order, and depend on tiles."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from opsin.demo.scenes import Scene, random_receipt
from opsin.demo.tasks import LANGUAGES, describe_change, held_out, several
from opsin.demo.wire import to_openai
from opsin.testing.server_process import ServerProcess
from tests.conftest import ONE_THREAD, client_of
from tests.e2e.asking import about, ask, complete, fresh_rng
from tests.e2e.scraping import scrape

ONE_PICTURE = ("shape", "colour", "count", "position", "number", "caption")


def test_at_least_ninety_percent_of_fifty_new_pictures_are_answered_right(client: OpenAI) -> None:
    rng = fresh_rng()
    wrong: list[str] = []
    for index in range(50):
        task, language = ONE_PICTURE[index % len(ONE_PICTURE)], LANGUAGES[index % 2]
        conversation = held_out(rng, task, language)
        if (answer := ask(client, conversation)) != conversation.turns[0].answer:
            wrong.append(f"{task}/{language}: {answer!r}, not {conversation.turns[0].answer!r}")
    assert len(wrong) <= 5, wrong


def test_swapping_two_pictures_swaps_the_answer(client: OpenAI) -> None:
    rng = fresh_rng()
    swapped = 0
    for _ in range(20):
        before, after = _changed_pair(rng)
        forth, back = (_changed(client, [before, after]), _changed(client, [after, before]))
        swapped += forth == describe_change(before, after, "en") and back == describe_change(after, before, "en")
    assert swapped >= 12


def _changed(client: OpenAI, scenes: list[Scene]) -> str:
    return complete(client, about(scenes, "What changed?")).choices[0].message.content.strip()


def _changed_pair(rng: random.Random) -> tuple[Scene, ...]:
    while True:
        scenes = several(rng, 2, split=True, turn_tasks=("changed",)).scenes
        if not describe_change(scenes[0], scenes[1], "en").endswith("nothing changed."):
            return scenes


async def test_a_receipt_is_read_only_when_it_is_cut_into_tiles(client: OpenAI, demo_url: str) -> None:
    rng = fresh_rng()
    whole, cut = 0, 0
    for _ in range(10):
        receipt = random_receipt(rng)
        before = await _encoded_tiles(demo_url)
        low = complete(client, about([receipt], "What is the total?", detail="low"))
        between = await _encoded_tiles(demo_url)
        high = complete(client, about([receipt], "What is the total?", detail="high"))
        after = await _encoded_tiles(demo_url)
        assert between - before == 1
        assert 1 < after - between <= 5  # five tiles, those that look alike or were seen before encoded once
        assert low.usage.prompt_tokens_details.image_tokens == 16
        assert high.usage.prompt_tokens_details.image_tokens == 80
        whole += receipt.total in low.choices[0].message.content
        cut += high.choices[0].message.content.strip() == receipt.total
    assert whole == 0
    assert cut >= 8


async def _encoded_tiles(url: str) -> float:
    return (await scrape(url))["opsin_encoded_tiles_total"]


def test_a_second_turn_knows_the_picture_of_the_first(client: OpenAI) -> None:
    rng = fresh_rng()
    right = 0
    for _ in range(10):
        conversation = held_out(rng, "second_turn", "en")
        right += ask(client, conversation) == conversation.turns[-1].answer
    assert right >= 8


@pytest.fixture
def slow_client() -> Iterator[OpenAI]:
    """At a server that takes 50 ms for a token, which is longer than a busy machine keeps a reader waiting."""
    slow = {**ONE_THREAD, "OPSIN_INJECT_STEP_DELAY_S": "0.05"}
    with ServerProcess(environment=slow) as server, client_of(server.until_ready()) as client:
        yield client


def test_a_stream_comes_token_by_token(slow_client: OpenAI) -> None:
    messages = about(list(several(fresh_rng(), 3, split=False).scenes), "Describe the images in order.")
    arrivals: list[float] = []
    roles: list[str | None] = []
    finished: Any = None
    stream = complete(slow_client, messages, stream=True)
    for chunk in stream:
        (choice,) = chunk.choices
        if choice.delta.content:
            arrivals.append(time.monotonic())
            roles.append(choice.delta.role)
        if choice.finish_reason:
            finished = chunk
    assert len(arrivals) >= 5
    assert roles[0] == "assistant"
    assert set(roles[1:]) == {None}
    assert finished is not None
    decode_s = finished.opsin["timeline"]["decode_ms"] / 1e3
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    # The chunks are spread over the decode stage and not sent in one piece at its end.
    assert sum(gaps) > 0.5 * decode_s
    assert statistics.median(gaps) < 4 * decode_s / len(gaps)


def test_usage_comes_only_when_asked_for(client: OpenAI) -> None:
    conversation = to_openai(held_out(fresh_rng(), "shape", "en"))
    plain = list(complete(client, conversation, stream=True, max_tokens=8))
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in plain)
    counted = list(complete(client, conversation, stream=True, stream_options={"include_usage": True}))
    assert counted[-1].choices == []
    assert counted[-1].usage.prompt_tokens_details.image_tokens in (16, 80)
