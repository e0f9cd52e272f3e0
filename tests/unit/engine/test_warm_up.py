"""Warm-up against the scripted runner of the core's tests."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from opsin.core.stages import Stage
from opsin.engine.local.config import LocalEngineConfig, PictureShape
from opsin.engine.local.runner_api import OutOfMemory
from opsin.engine.local.warm_up import warm_up
from tests.unit.engine.test_local_core import EOS, IMAGE, ScriptedRunner, limits_of

ONE, FOUR, SIXTEEN = (PictureShape(num_tiles=n, width=1, height=1, image_tokens=2 * n) for n in (1, 4, 16))


def config(**changes: object) -> LocalEngineConfig:
    values: dict[str, object] = {
        "model_path": Path("model"), "model_type": "idefics3", "image_token_id": IMAGE, "eos_token_ids": (EOS,),
        "image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5), "max_model_len": 64,
        "warm_up_pictures": (SIXTEEN, ONE, FOUR),
    }  # fmt: skip
    return LocalEngineConfig.model_validate({**values, **changes})


def test_every_decode_batch_a_full_chunk_and_a_tile_are_run_and_nothing_is_left():
    runner = ScriptedRunner(num_tokens=100)
    warm_up(config(), runner, limits_of(max_num_seqs=4, max_num_batched_tokens=40))
    assert {len(batch) for batch in runner.decoded} == {1, 2, 3, 4}
    assert ("warm-up-prompt", 0, 40) in runner.prefilled
    assert len(runner.encoded) == 1, "tile by tile one is enough"
    assert len(runner.released) == 6


def test_a_full_micro_batch_of_the_encoder_is_run_where_it_takes_several():
    runner = ScriptedRunner()
    warm_up(config(), runner, limits_of(max_num_encoder_tokens=10))
    assert len(runner.encoded) == 1 + FOUR.num_tiles


def test_it_ends_in_time_and_gives_everything_back():
    runner, clock = ScriptedRunner(num_tokens=100), count()
    warm_up(config(warm_up_s=6), runner, limits_of(max_num_seqs=8), now=lambda: float(next(clock)))
    assert [len(batch) for batch in runner.decoded] == [1]
    assert len(runner.released) == 1 + 8


def test_an_error_does_not_forbid_the_start(caplog: pytest.LogCaptureFixture):
    runner = ScriptedRunner()
    runner.error, runner.fails_in = OutOfMemory(), Stage.VISION_ENCODE
    warm_up(config(), runner, limits_of())
    assert "warm-up: the engine ran out of memory" in caplog.text
    assert runner.prefilled
