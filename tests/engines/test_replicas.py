"""Two real vLLMs behind one opsin: repeated pictures go where they are cached, as vLLM itself counts.

At the end one is killed, and the other one answers alone.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from openai import OpenAI

from opsin.engine.replicas.routing import ranked
from opsin.testing.server_process import ServerProcess
from tests.conftest import client_of
from tests.corpus.pictures import data_url, idat, ihdr, png
from tests.e2e.asking import complete
from tests.engines.conftest import START_TIMEOUT_S, begun_stream
from tests.engines.processes import EngineProcess
from tests.engines.programs import vllm

HITS = "vllm:mm_cache_hits_total"
NUM_PICTURES, NUM_REQUESTS = 6, 30
COUNTED_WITHIN_S = 30.0
"""vLLM adds to its counters with the output of a later step."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two engines by the name that opsin has for each, and the client of the opsin in front of them."""

    engines: dict[str, EngineProcess]
    client: OpenAI


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as stack:
        engines = dict[str, EngineProcess]()
        for number in range(2):
            folder = tmp_path_factory.mktemp(f"vllm-{number}")
            engine = stack.enter_context(EngineProcess(vllm(), folder / "engine.log"))
            engine.start(START_TIMEOUT_S)
            engines[f"{engine.url}/v1"] = engine
        server = stack.enter_context(ServerProcess("--upstream", *(engine.url for engine in engines.values())))
        yield Pair(engines, stack.enter_context(client_of(server.until_ready())))


def test_repeated_pictures_are_cached_where_routing_sends_them(pair: Pair) -> None:
    homes = {picture: home for home in pair.engines for picture in _pictures_of(home, pair)}
    pictures = list(homes)
    expected, seen = Counter[str](), set[bytes]()
    for picture in random.Random(7).choices(pictures, k=NUM_REQUESTS):
        expected[homes[picture]] += picture in seen
        seen.add(picture)
        complete(pair.client, _about(picture), max_tokens=4)
    assert _hits(pair.engines, dict(expected)) == expected


def test_one_killed_ends_its_stream_and_the_other_answers_in_its_place(pair: Pair) -> None:
    lost, left = pair.engines
    survivor = {left: pair.engines[left]}
    before = _hits_now(survivor)[left]
    pictures = _pictures_of(lost, pair)
    stream = begun_stream(pair.client, _about(pictures[0]))
    pair.engines[lost].kill()
    with pytest.raises(openai.APIError) as in_band:
        list(stream)
    assert in_band.value.code == "upstream_truncated"
    for picture in pictures * 2:
        complete(pair.client, _about(picture), max_tokens=4)
    expected = {left: before + len(pictures)}  # each of them is new to it once
    assert _hits(survivor, expected) == expected


def _about(picture: bytes) -> list[dict[str, Any]]:
    content = [
        {"type": "image_url", "image_url": {"url": data_url(picture)}},
        {"type": "text", "text": "What colour is it?"},
    ]
    return [{"role": "user", "content": content}]


def _pictures_of(home: str, pair: Pair) -> list[bytes]:
    """The first few grey ones that routing sends there."""
    greys = (png(ihdr(32, 32), idat([bytes([grey] * 96)] * 32)) for grey in range(256))
    ours = (one for one in greys if ranked(hashlib.sha256(one).digest(), pair.engines)[0] == home)
    return list(itertools.islice(ours, NUM_PICTURES // 2))


def _hits(engines: dict[str, EngineProcess], expected: dict[str, int]) -> dict[str, int]:
    deadline = time.monotonic() + COUNTED_WITHIN_S
    while (hits := _hits_now(engines)) != expected and time.monotonic() < deadline:
        time.sleep(0.5)
    return hits


def _hits_now(engines: dict[str, EngineProcess]) -> dict[str, int]:
    return {name: int(engine.samples().get(HITS, 0)) for name, engine in engines.items()}
