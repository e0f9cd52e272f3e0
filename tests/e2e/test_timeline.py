"""Timeline truth: time put into a stage shows up in that stage, and in no other."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from opsin.core.stages import Stage
from opsin.demo.scenes import random_objects
from opsin.testing.server_process import ServerProcess
from tests.conftest import ONE_THREAD, client_of
from tests.e2e.asking import about, complete, fresh_rng

pytestmark = pytest.mark.timing

INJECTED_MS = {
    Stage.MEDIA_LOAD: 300.0,
    Stage.PREPROCESS: 400.0,
    Stage.VISION_ENCODE: 500.0,
    Stage.QUEUE: 600.0,
    Stage.PREFILL: 700.0,
    Stage.DECODE: 800.0,
}
"""Each is more than the tolerance, and so are all differences: time in a wrong stage is seen, whichever it is."""
TOLERANCE_MS = 60.0
REQUESTS = 5


def _medians(url: str) -> dict[str, float]:
    """Median per stage over some requests of one new picture and two tokens each, after a warm-up.

    Of one tile each: of several some may be known from the pictures before, and what is known is not delayed.
    """
    rng = fresh_rng()
    timelines: list[dict[str, float]] = []
    with client_of(url) as client:
        for _ in range(REQUESTS + 1):
            messages = about([random_objects(rng)], "What shape is it?", detail="low")
            completion = complete(client, messages, max_tokens=2, extra_body={"ignore_eos": True})
            timelines.append(completion.opsin["timeline"])
    stages = [name for name in timelines[0] if name.endswith("_ms")]
    return {name: statistics.median(line[name] for line in timelines[1:]) for name in stages}


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    """A server without delays and one with all of them: loading side by side, then idle until it is asked."""
    delays = ",".join(f"{stage}={ms / 1e3}" for stage, ms in INJECTED_MS.items())
    with ExitStack() as running:
        servers = [
            running.enter_context(ServerProcess(*words, environment=ONE_THREAD))
            for words in ((), ("--inject-delay", delays))
        ]
        yield [server.until_ready() for server in servers]
    assert [server.wait() for server in servers] == [0, 0]


def test_delays_show_up_where_they_were_put(urls: list[str]) -> None:
    baseline, slowed = map(_medians, urls)
    grown = {name: slowed[name] - baseline[name] for name in baseline if name != "total_ms"}
    expected = {f"{stage}_ms": ms for stage, ms in INJECTED_MS.items()}
    assert grown == pytest.approx({name: expected.get(name, 0.0) for name in grown}, abs=TOLERANCE_MS)
    assert expected.keys() <= grown.keys()
    assert baseline["unattributed_ms"] < 0.2 * baseline["total_ms"] + 5
