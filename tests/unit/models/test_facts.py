"""The table of well-known checkpoints."""

from __future__ import annotations

import pytest

from opsin.models.facts import Facts, facts_of, known_checkpoints
from opsin.models.traits import Fusion, MixtureOfExperts


def facts(model_id: str) -> Facts:
    found = facts_of(model_id)
    assert found is not None
    return found


def test_a_hub_id_that_is_not_in_the_table() -> None:
    assert facts_of("owner/name") is None


def test_shape_and_parameters_of_one() -> None:
    found = facts("Qwen/Qwen2.5-VL-7B-Instruct")
    assert found.parameters is not None
    assert (found.parameters.total, found.parameters.text, found.parameters.vision) == (8.292, 7.616, 0.677)
    text = found.text
    assert (text.layers, text.kv_heads, text.head_dim, text.hidden_size) == (28, 4, 128, 3584)
    assert text.max_model_len == 128_000
    assert found.verified
    assert found.vision_verified


# Bytes of KV cache per token as published for a 16-bit cache.
@pytest.mark.parametrize(
    ("model_id", "kv_bytes"),
    [
        ("HuggingFaceTB/SmolVLM-256M-Instruct", 23_040),
        ("HuggingFaceTB/SmolVLM-Instruct", 196_608),
        ("Qwen/Qwen2.5-VL-72B-Instruct", 327_680),
        ("Qwen/Qwen3-VL-235B-A22B-Instruct", 192_512),
        ("OpenGVLab/InternVL3-1B", 12_288),
        ("llava-hf/llava-1.5-7b-hf", 524_288),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", 163_840),
        ("zai-org/GLM-4.1V-9B-Thinking", 40_960),
        ("facebook/chameleon-7b", 524_288),
    ],
)
def test_kv_cache_follows_from_the_shape(model_id: str, kv_bytes: int) -> None:
    text = facts(model_id).text
    assert text.kv_bytes_per_token is None
    assert text.layers is not None
    assert text.kv_heads is not None
    assert text.head_dim is not None
    assert 2 * text.layers * text.kv_heads * text.head_dim * 2 == kv_bytes


@pytest.mark.parametrize(
    ("model_id", "per_token", "per_request_mib"),
    [
        ("Qwen/Qwen3.5-9B", 32_768, 49),
        ("Qwen/Qwen3.5-35B-A3B", 20_480, 61),
        ("google/gemma-3-27b-it", 81_920, 416),
        ("deepseek-ai/deepseek-vl2-small", 31_104, None),
    ],
)
def test_kv_cache_is_stated_where_it_does_not(model_id: str, per_token: int, per_request_mib: int | None) -> None:
    text = facts(model_id).text
    assert text.kv_bytes_per_token == per_token
    assert text.kv_bytes_per_request == (None if per_request_mib is None else per_request_mib * 2**20)


def test_traits_of_the_field() -> None:
    early = {model_id for model_id, found in known_checkpoints().items() if found.traits.fusion is Fusion.EARLY}
    assert {model_id.partition("/")[2] for model_id in early} == {
        "Llama-4-Scout-17B-16E-Instruct",
        "Llama-4-Maverick-17B-128E-Instruct",
        "chameleon-7b",
        "gemma-4-12B-it",
    }
    assert facts("deepseek-ai/deepseek-vl2").traits.moe == MixtureOfExperts(total_billions=27.5, active_billions=4.5)
    assert facts("Qwen/Qwen3-VL-235B-A22B-Instruct").traits.moe == MixtureOfExperts(
        num_experts=128, num_experts_per_token=8, total_billions=235.67, active_billions=22.0
    )
    assert facts("Qwen/Qwen2.5-VL-7B-Instruct").traits.moe is None


@pytest.mark.parametrize("model_id", known_checkpoints())
def test_what_is_unverified_says_so(model_id: str) -> None:
    found = facts(model_id)
    assert found.vision_source
    if found.traits.moe is not None:
        assert found.parameters is not None
        assert found.traits.moe.total_billions == found.parameters.total
    if found.verified:
        assert found.parameters is not None
        assert found.text.max_model_len is not None


def test_unverified_rows() -> None:
    """Those that nobody could check: a sample, so that a flag is not dropped unseen."""
    assert not facts("moonshotai/Kimi-VL-A3B-Instruct").verified
    assert not facts("deepseek-ai/deepseek-vl2-tiny").verified
    assert not facts("meta-llama/Llama-4-Scout-17B-16E-Instruct").verified
    assert not facts("zai-org/GLM-4.1V-9B-Thinking").vision_verified
    assert not facts("HuggingFaceTB/SmolVLM2-2.2B-Instruct").vision_verified
    assert not facts("openbmb/MiniCPM-V-4").vision_verified
