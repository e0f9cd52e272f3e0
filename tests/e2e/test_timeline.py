"""Timeline truth: half a second put into one stage shows up in that stage, and in no other."""

from __future__ import annotations

import statistics

import pytest

from opsin.core.stages import Stage
from opsin.demo.scenes import random_objects
from tests.conftest import client_of, serve
from tests.e2e.asking import about, complete, fresh_rng

pytestmark = pytest.mark.timing

INJECTED_MS = 500.0
TOLERANCE_MS = 60.0
REQUESTS = 5
STAGES = (Stage.MEDIA_LOAD, Stage.PREPROCESS, Stage.VISION_ENCODE, Stage.QUEUE, Stage.DECODE)


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
def baseline(demo_url: str) -> dict[str, float]:
    return _medians(demo_url)


@pytest.mark.parametrize("stage", STAGES)
def test_a_delay_shows_up_where_it_was_put(stage: Stage, baseline: dict[str, float]) -> None:
    with serve("--inject-delay", f"{stage}={INJECTED_MS / 1e3}") as url:
        slowed = _medians(url)
    grown = {name: slowed[name] - baseline[name] for name in baseline if name != "total_ms"}
    assert grown.pop(f"{stage}_ms") == pytest.approx(INJECTED_MS, abs=TOLERANCE_MS)
    assert {name: ms for name, ms in grown.items() if abs(ms) > TOLERANCE_MS} == {}
    assert baseline["unattributed_ms"] < 0.2 * baseline["total_ms"] + 5
