"""What an engine's own histograms gained, as vLLM 0.32 writes them."""

from __future__ import annotations

from opsin.core.stages import Stage
from opsin.engine.api import EngineStats, StageSum
from opsin.engine.upstream.dialect import DIALECTS, UpstreamKind
from opsin.engine.upstream.metrics_page import StageHistograms, total

VLLM = DIALECTS[UpstreamKind.VLLM]


def page(prefill_s: float, requests: float, decode_s: float = 0.0) -> bytes:
    lines = [
        "# TYPE vllm:request_prefill_time_seconds histogram",
        f'vllm:request_prefill_time_seconds_bucket{{engine="0",le="0.3",model_name="m"}} {requests}',
        f'vllm:request_prefill_time_seconds_count{{engine="0",model_name="m"}} {requests}',
        f'vllm:request_prefill_time_seconds_sum{{engine="0",model_name="m"}} {prefill_s}',
        f'vllm:request_decode_time_seconds_count{{engine="0",model_name="m"}} {requests}',
        f'vllm:request_decode_time_seconds_sum{{engine="0",model_name="m"}} {decode_s}',
        "",
    ]
    return "\n".join(lines).encode()


def told(seconds: float, requests: int, stage: Stage = Stage.PREFILL) -> StageSum:
    return StageSum(source="vllm", stage=stage, seconds=seconds, requests=requests)


def test_only_what_was_gained_since_the_first_look_counts() -> None:
    histograms = StageHistograms(VLLM.kind, VLLM.histograms)
    histograms.take(page(10.0, 4, 1.0))
    assert histograms.sums() == (told(0.0, 0), told(0.0, 0, Stage.DECODE))
    histograms.take(page(12.5, 6, 4.0))
    assert histograms.sums() == (told(2.5, 2), told(3.0, 2, Stage.DECODE))


def test_an_engine_that_was_started_anew_is_added() -> None:
    histograms = StageHistograms(VLLM.kind, VLLM.histograms)
    histograms.take(page(10.0, 4))
    histograms.take(page(11.0, 5))
    histograms.take(page(0.5, 1))
    assert histograms.sums()[0] == told(1.5, 2)


def test_a_page_that_is_not_there_changes_nothing() -> None:
    histograms = StageHistograms(VLLM.kind, VLLM.histograms)
    assert histograms.sums() == ()
    for strange in (b"", b"<html>not found</html>\xff", b"vllm:request_prefill_time_seconds_sum 1\n"):
        histograms.take(strange)
    assert histograms.sums() == ()


def test_engines_whose_histograms_nobody_knows_tell_none() -> None:
    histograms = StageHistograms(UpstreamKind.AUTO, DIALECTS[UpstreamKind.AUTO].histograms)
    histograms.take(page(10.0, 4))
    assert histograms.sums() == ()


def test_replicas_are_summed_by_who_told_which() -> None:
    one = EngineStats(running=0, waiting=0, stage_sums=(told(1.0, 2), told(4.0, 2, Stage.DECODE)))
    other = EngineStats(running=0, waiting=0, stage_sums=(told(2.0, 3),))
    assert EngineStats.total([one, other]).stage_sums == (told(3.0, 5), told(4.0, 2, Stage.DECODE))


def test_numbers_as_prometheus_writes_them() -> None:
    lines = b'a 1\na{x="1"} 2.5\na_b 7\nb 1e+06\nb NaN\nb +Inf\nb ...\nc 1e-05\n'
    assert (total(lines, "a"), total(lines, "b"), total(lines, "c")) == (3.5, 1e6, 1e-5)
    assert total(lines, "d") is None
