"""The benchmark against the real server: what the server tells of itself and what the client counts agree."""

from __future__ import annotations

import asyncio
from typing import Any

from opsin.bench.config import checked
from opsin.bench.record import Line, Outcome, Results, collect
from opsin.bench.run import run
from opsin.bench.summary import summarise
from opsin.bench.watcher import Nobody

IMAGE_TOKENS = 16
"""Of the demo model with detail low."""


async def measure(url: str, **values: Any) -> Results:
    lines = list[Line]()
    load = {"num_prompts": 6, "max_concurrency": [2], "resolution": "256x256", "detail": "low", "output_len": 4}
    await run(checked({"url": url, **load, **values}), lines.append, Nobody(), interrupt=asyncio.Event())
    return collect(iter(lines))


async def test_cold_pictures_are_all_encoded(demo_url: str) -> None:
    results = await measure(demo_url, seed=101, images="1-2")
    (level,) = summarise(results).levels
    assert (level.sent, level.ok) == (6, 6)
    records = [record for record in results.records if record.level == 0]
    assert all(record.n_visual == IMAGE_TOKENS * len(record.pictures) for record in records)
    assert all(record.n_out == len(record.events) or record.finish_reason == "stop" for record in records)
    (cache,) = level.caches
    assert (cache.hits, cache.lookups) == (0, sum(len(record.pictures) for record in records))
    assert [one.outcome for one in level.cache_outcomes] == ["encoded"]
    assert {"media_load", "preprocess", "vision_encode", "prefill", "decode", "total"} <= {
        stage.stage for stage in level.stages
    }
    assert level.server is not None
    assert "opsin.engine.local.worker" in {process.name for process in level.server.processes}


async def test_warm_pictures_are_all_hits_and_cost_the_same_tokens(demo_url: str) -> None:
    results = await measure(demo_url, seed=102, cache="warm:2")
    (level,) = summarise(results).levels
    (cache,) = level.caches
    assert (cache.hits, cache.hit_rate) == (6, 1.0)
    assert [(one.outcome, one.ttft_ms.n) for one in level.cache_outcomes] == [("all cached", 6)]
    assert level.visual_tokens_per_image is not None
    assert level.visual_tokens_per_image.mean == IMAGE_TOKENS


async def test_the_servers_time_is_inside_the_clients(demo_url: str) -> None:
    results = await measure(demo_url, seed=103)
    for record in (record for record in results.records if record.level == 0):
        assert record.outcome is Outcome.OK
        assert record.timeline_ms is not None
        assert record.t_send0 is not None
        assert record.t_done is not None
        assert record.timeline_ms["total_ms"] <= (record.t_done - record.t_send0) / 1e6


async def test_a_demanded_length_is_kept(demo_url: str) -> None:
    results = await measure(demo_url, seed=104, ignore_eos=True, output_len=7)
    assert {(record.outcome, record.n_out, record.finish_reason) for record in results.records} == {
        (Outcome.OK, 7, "length")
    }
