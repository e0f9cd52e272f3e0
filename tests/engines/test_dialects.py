"""What opsin says to one engine alone, at the engine itself."""

from __future__ import annotations

import re
import time
import urllib.request
from typing import Any

import openai
import pytest
from openai import OpenAI

from opsin.demo.examples import EXAMPLES
from opsin.demo.scenes import draw
from opsin.testing.server_process import ServerProcess
from tests.conftest import client_of
from tests.corpus.pictures import data_url, encoded
from tests.e2e.asking import complete
from tests.engines.conftest import A_CIRCLE, SOON_S, Served

VISUAL, PLACEHOLDERS = 80, 94
"""Tokens of a square picture of the demo model, without its markers and with them."""
STAGES = ("queue", "prefill", "decode")
NO_LOOK = {"OPSIN_UPSTREAM__HEALTH_INTERVAL_S": "3600"}
"""Opsin does not see that the engine was away, so that it still believes that its pictures are there."""


def only(served: Served, name: str) -> None:
    if name not in served.counters.running:
        pytest.skip(f"only with {name}")


def counted(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as response:
        found = re.search(rf"^{re.escape(name)} (\S+)$", response.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def shape_of(client: OpenAI) -> Any:
    answer = complete(client, A_CIRCLE)
    assert answer.choices[0].message.content.strip() == "circle"
    return answer


def test_vllm_is_asked_by_name_for_what_it_has_and_gets_what_it_lost(served: Served) -> None:
    only(served, "vllm")
    with ServerProcess("demo", "--upstream", served.engine.url, "--upstream-exclusive", environment=NO_LOOK) as server:
        url = server.until_ready()
        with client_of(url) as client:
            shape_of(client)
            before = served.counted("vllm:mm_cache_hits_total")
            answer = shape_of(client)
            assert served.counted("vllm:mm_cache_hits_total") == before + 1
            assert answer.usage.prompt_tokens_details.image_tokens == VISUAL
            assert answer.usage.prompt_tokens_details.multimodal_tokens == {"image": PLACEHOLDERS}
            assert answer.opsin["stage_sources"].keys() == {"queue", "prefill", "decode"}
            served.engine.kill()
            served.start_engine()
            shape_of(client)
        hits, misses = (counted(url, f"vlm_image_cache_{what}_total") for what in ("hits", "misses"))
        assert (hits, misses) == (1, 2)
        assert counted(url, "opsin_token_plan_mismatch_total") == 0


def test_llama_cpp_answers_what_it_cannot_read(served: Served) -> None:
    only(served, "llamacpp")
    picture = encoded(draw(EXAMPLES["red_circle"]), "webp", lossless=True)
    content = [
        {"type": "image_url", "image_url": {"url": data_url(picture, "image/webp")}},
        {"type": "text", "text": "What shape is it?"},
    ]
    answer = complete(served.client, [{"role": "user", "content": content}])
    assert answer.choices[0].message.content.strip() == "circle"
    assert [warning["code"] for warning in answer.opsin["warnings"]] == ["image_converted"]
    assert answer.opsin["stage_sources"] == {"prefill": "llama.cpp", "decode": "llama.cpp"}


def test_what_vllm_tells_of_its_stages_over_all_requests_is_in_opsins_metrics(served: Served) -> None:
    only(served, "vllm")
    stages = [f'opsin_engine_stage_seconds_count{{model="demo",source="vllm",stage="{stage}"}}' for stage in STAGES]
    before = [counted(served.url, stage) for stage in stages]
    shape_of(served.client)
    deadline = time.monotonic() + SOON_S
    while (now := [counted(served.url, stage) for stage in stages]) == before and time.monotonic() < deadline:
        time.sleep(0.5)
    assert all(after > count for after, count in zip(now, before, strict=True))


def test_vllm_that_lives_to_see_its_engine_die_says_so_in_the_stream(served: Served) -> None:
    only(served, "vllm")
    stream = served.long_stream()
    served.engine.kill_part("VLLM::EngineCore")
    with pytest.raises(openai.APIError) as in_band:
        list(stream)
    assert in_band.value.code == "upstream_error"
    served.engine.kill()
    served.start_engine()
    shape_of(served.client)
