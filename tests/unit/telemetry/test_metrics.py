from __future__ import annotations

from opsin.core.stages import Stage
from opsin.telemetry.engine_stages import EngineStageSample
from opsin.telemetry.metrics import Metrics

SEVEN = (
    "vlm_image_preprocess_seconds",
    "vlm_encoder_inference_seconds",
    "vlm_total_image_tokens_total",
    "vlm_image_cache_hits_total",
    "vlm_image_cache_misses_total",
    "vlm_active_image_count",
    "vlm_kv_cache_image_tokens_ratio",
)


def test_the_seven_metrics_are_there_by_name() -> None:
    text = Metrics(stages=frozenset(Stage), cache=True, kv=True).render().decode()
    for name in SEVEN:
        assert f"# TYPE {name.removesuffix('_total') if name.endswith('_total') else name}" in text


def test_what_an_engine_cannot_tell_is_absent() -> None:
    metrics = Metrics(stages=frozenset(), cache=False, kv=False)
    metrics.looked_up(hits=1, misses=1)
    metrics.encoded((0.5,), 1)
    metrics.kv_holds(tokens=10, image_tokens=5)
    metrics.cache_is(turned_down=True)
    text = metrics.render().decode()
    assert "vlm_encoder_inference_seconds" not in text
    assert "vlm_image_cache" not in text
    assert "opsin_feature_cache" not in text
    assert "vlm_kv_cache" not in text
    assert "vlm_total_image_tokens_total 0.0" in text


def test_buckets_are_those_of_the_original_plus_a_long_tail() -> None:
    text = Metrics(stages=frozenset(Stage), cache=True, kv=True).render().decode()
    for bound in ("0.01", "0.05", "0.1", "0.25", "0.5", "1.0", "2.0", "10.0", "20.0", "60.0"):
        assert f'vlm_image_preprocess_seconds_bucket{{le="{bound}"}}' in text
    for bound in ("0.05", "0.1", "0.2", "0.5", "1.0", "2.0", "5.0", "10.0", "20.0", "60.0"):
        assert f'vlm_encoder_inference_seconds_bucket{{le="{bound}"}}' in text


def test_the_ratio_is_a_share_and_zero_when_empty() -> None:
    metrics = Metrics(stages=frozenset(), cache=False, kv=True)
    metrics.kv_holds(tokens=200, image_tokens=50)
    assert "vlm_kv_cache_image_tokens_ratio 0.25" in metrics.render().decode()
    metrics.kv_holds(tokens=0, image_tokens=0)
    assert "vlm_kv_cache_image_tokens_ratio 0.0" in metrics.render().decode()


def test_stages_of_remote_engines_are_told_by_source_and_absent_without_any() -> None:
    metrics = Metrics(stages=frozenset(), cache=False, kv=False)
    assert "opsin_engine_stage_seconds" not in metrics.render().decode()
    sample = EngineStageSample(model="m", source="vllm", stage="prefill", seconds=2.5, requests=2)
    metrics.engine_stages.samples = (sample,)
    lines = metrics.render().decode().splitlines()
    labels = '{model="m",source="vllm",stage="prefill"}'
    assert f"opsin_engine_stage_seconds_sum{labels} 2.5" in lines
    assert f"opsin_engine_stage_seconds_count{labels} 2.0" in lines
