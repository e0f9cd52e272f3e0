"""Two real vLLMs behind one opsin: repeated pictures go where they are cached, as vLLM itself counts."""

from __future__ import annotations

import base64
import hashlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from openai import OpenAI

from opsin.engine.replicas.routing import ranked
from opsin.testing.server_process import ServerProcess
from tests.conftest import client_of
from tests.corpus.pictures import idat, ihdr, png
from tests.e2e.asking import complete
from tests.engines.conftest import START_TIMEOUT_S
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
        url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What colour is it?"}]
        complete(pair.client, [{"role": "user", "content": content}], max_tokens=4)
    assert _hits(pair, dict(expected)) == expected


def _pictures_of(home: str, pair: Pair) -> list[bytes]:
    """The first few grey ones that routing sends there."""
    greys = (png(ihdr(32, 32), idat([bytes([grey] * 96)] * 32)) for grey in range(256))
    ours = (one for one in greys if ranked(hashlib.sha256(one).digest(), pair.engines)[0] == home)
    return list(itertools.islice(ours, NUM_PICTURES // 2))


def _hits(pair: Pair, expected: dict[str, int]) -> dict[str, int]:
    deadline = time.monotonic() + COUNTED_WITHIN_S
    while True:
        hits = {name: int(engine.samples().get(HITS, 0)) for name, engine in pair.engines.items()}
        if hits == expected or time.monotonic() > deadline:
            return hits
        time.sleep(0.5)
