from __future__ import annotations

import time

from opsin.core.stages import Stage, Stopwatch, Timeline


def test_what_no_stage_accounts_for_is_unattributed() -> None:
    timeline = Timeline(total_s=1.0, stages_s={Stage.DECODE: 0.25, Stage.MEDIA_LOAD: 0.5})
    assert timeline.to_wire() == {
        "media_load_ms": 500.0,
        "decode_ms": 250.0,
        "unattributed_ms": 250.0,
        "total_ms": 1000.0,
    }


def test_what_a_remote_engine_told_is_named_and_what_it_did_not_is_one_member_of_the_sum() -> None:
    watch = Stopwatch()
    watch.add(Stage.MEDIA_LOAD, 0.5)
    watch.told("vllm", {Stage.PREFILL: 0.25, Stage.DECODE: 0.125}, 0.0625)
    told = watch.timeline()
    assert told.sources == {Stage.PREFILL: "vllm", Stage.DECODE: "vllm"}
    wire = Timeline(1.0, told.stages_s, told.upstream_s, told.sources).to_wire()
    assert wire == {
        "media_load_ms": 500.0,
        "prefill_ms": 250.0,
        "decode_ms": 125.0,
        "upstream_ms": 62.5,
        "unattributed_ms": 62.5,
        "total_ms": 1000.0,
    }


def test_a_block_adds_its_wall_time_even_when_it_fails() -> None:
    watch = Stopwatch()
    for _ in range(2):
        try:
            with watch.stage(Stage.PREPROCESS):
                time.sleep(0.02)
                raise ValueError
        except ValueError:
            pass
    timeline = watch.timeline()
    assert 0.04 <= timeline.stages_s[Stage.PREPROCESS] <= timeline.total_s
