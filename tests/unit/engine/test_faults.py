"""Injected delays: once per request, whatever its length; and once per step where an answer shall take long."""

from __future__ import annotations

import time
from pathlib import Path

from opsin.core.stages import Stage
from opsin.engine.api import SamplingParams
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.core import EngineCore
from opsin.engine.local.faults import FaultyRunner
from opsin.engine.local.feature_cache import FeatureCache
from opsin.engine.local.messages import Ended, Submit
from opsin.engine.local.prefix_cache import PrefixCache
from opsin.engine.local.scheduler import ContinuousScheduler
from tests.unit.engine.test_local_core import EOS, IMAGE, ScriptedRunner, limits_of

NUM_TOKENS = 6
DELAY_S = 0.05


def stages_of_an_answer(delays: dict[Stage, float], step_delay_s: float = 0.0) -> dict[Stage, float]:
    """Seconds by stage of the second of two answers."""
    config = LocalEngineConfig(
        model_path=Path(),
        model_type="smolvlm",
        image_token_id=IMAGE,
        eos_token_ids=(EOS,),
        image_mean=(0.5, 0.5, 0.5),
        image_std=(0.5, 0.5, 0.5),
        max_model_len=100,
    )
    runner = FaultyRunner(ScriptedRunner(NUM_TOKENS), delays, {}, step_delay_s)
    core = EngineCore(config, runner, ContinuousScheduler(limits_of()), FeatureCache(0), PrefixCache(0, 1))
    ended: list[Ended] = []
    for request_id in ("first", "second"):
        core.submit(Submit(request_id, "scope", (1, 2), (), SamplingParams(), time.monotonic()))
        while core.has_work:
            ended += core.step().ended
    return ended[1].stages_s


def test_a_delay_is_once_per_request() -> None:
    for stage in (Stage.PREFILL, Stage.DECODE):
        stages_s = stages_of_an_answer({stage: DELAY_S})
        assert DELAY_S <= stages_s[stage] < 2 * DELAY_S
        assert stages_s[Stage.DECODE if stage is Stage.PREFILL else Stage.PREFILL] < DELAY_S


def test_a_step_delay_is_once_per_token() -> None:
    assert stages_of_an_answer({}, step_delay_s=0.01)[Stage.DECODE] >= 0.01 * NUM_TOKENS
