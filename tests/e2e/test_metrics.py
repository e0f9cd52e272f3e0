"""Metrics truth: after a known sequence every number is the one worked out by hand."""

from __future__ import annotations

import asyncio
import threading

import pytest
from openai import BadRequestError, OpenAI

from opsin.demo.scenes import random_objects
from tests.e2e.asking import about, complete, fresh_rng
from tests.e2e.scraping import scrape


async def test_two_new_pictures_one_repeated_one_refused(client: OpenAI, demo_url: str) -> None:
    rng = fresh_rng()
    first, second = random_objects(rng), random_objects(rng)
    before = await scrape(demo_url)
    complete(client, about([first], "What shape is it?"))
    complete(client, about([second], "What colour is it?"))
    complete(client, about([first], "How many are there?"))
    with pytest.raises(BadRequestError):
        complete(client, [_remote_picture()])
    values = await scrape(demo_url)
    grown = {name: value - before[name] for name, value in values.items() if name in before}
    # 2 rendered and encoded, the third found; 3 x 80 image tokens in prompts; the refused one nowhere.
    assert grown["vlm_image_preprocess_seconds_count"] == 2
    assert grown["vlm_encoder_inference_seconds_count"] == 2
    assert 2 < grown["opsin_encoded_tiles_total"] <= 10  # tiles that look alike are encoded once
    assert grown["vlm_total_image_tokens_total"] == 240
    assert grown["vlm_image_cache_hits_total"] == 1
    assert grown["vlm_image_cache_misses_total"] == 2
    assert grown["opsin_e2e_request_latency_seconds_count"] == 3
    assert values["vlm_active_image_count"] == 0
    assert values["vlm_kv_cache_image_tokens_ratio"] == 0
    assert values["opsin_model_load_seconds"] > 0
    assert not [name for name in values if "_created" in name]


async def test_gauges_move_while_a_request_runs(client: OpenAI, demo_url: str) -> None:
    scene = random_objects(fresh_rng())
    options = {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    thread = threading.Thread(target=complete, args=(client, about([scene], "What is it?")), kwargs=options)
    thread.start()
    try:
        values = await _until_running(demo_url)
    finally:
        thread.join()
    assert values["vlm_active_image_count"] == 1
    # 80 of the prompt's tokens are the picture's; the output grows while we look.
    assert 0 < values["vlm_kv_cache_image_tokens_ratio"] <= 80 / 100


async def _until_running(url: str) -> dict[str, float]:
    for _ in range(400):
        values = await scrape(url)
        if values["vlm_kv_cache_image_tokens_ratio"] > 0:
            return values
        await asyncio.sleep(0.01)
    raise AssertionError("the request was never seen running")


def _remote_picture() -> dict[str, object]:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}
