"""Traits from config.json."""

from __future__ import annotations

import msgspec
import pytest

from opsin.models.files import ConfigFile
from opsin.models.traits import Fusion, MixtureOfExperts, traits_of


@pytest.mark.parametrize(
    ("config", "fusion"),
    [
        ('{"model_type": "qwen2_5_vl", "vision_config": {"patch_size": 14}}', Fusion.LATE),
        ('{"model_type": "llama4", "vision_config": {"patch_size": 14}}', Fusion.EARLY),
        ('{"model_type": "chameleon"}', Fusion.EARLY),
        ('{"model_type": "llama"}', None),
        ('{"model_type": "llama", "vision_config": null}', None),
    ],
)
def test_fusion(config: str, fusion: Fusion | None) -> None:
    assert traits_of(msgspec.json.decode(config, type=ConfigFile)).fusion is fusion


@pytest.mark.parametrize("field", ["num_experts", "num_local_experts", "n_routed_experts"])
def test_experts_under_their_three_names(field: str) -> None:
    config = f'{{"model_type": "some_vl", "text_config": {{"{field}": 128, "num_experts_per_tok": 8}}}}'
    found = traits_of(msgspec.json.decode(config, type=ConfigFile))
    assert found.moe == MixtureOfExperts(num_experts=128, num_experts_per_token=8)


def test_a_dense_model_has_no_experts() -> None:
    config = '{"model_type": "some_vl", "text_config": {"num_experts": 0}}'
    assert traits_of(msgspec.json.decode(config, type=ConfigFile)).moe is None
