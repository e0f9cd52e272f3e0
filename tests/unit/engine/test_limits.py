from __future__ import annotations

import pytest

from opsin.core.errors import ConfigError
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.limits import limits_for
from opsin.engine.local.runner_api import LoadedModel


def config(**changes: object) -> LocalEngineConfig:
    values: dict[str, object] = {
        "model_path": "model", "model_type": "idefics3", "image_token_id": 5, "eos_token_ids": (9,),
        "image_mean": (0.5,) * 3, "image_std": (0.5,) * 3, "max_model_len": 100, "max_num_seqs": 4,
    }  # fmt: skip
    return LocalEngineConfig.model_validate({**values, **changes})


def loaded(device: str = "cpu", free_bytes: int = 10**6) -> LoadedModel:
    return LoadedModel(device, "float32", kv_bytes_per_token=10, free_bytes=free_bytes)


def test_small_steps_on_a_cpu():
    cpu, cuda = limits_for(config(), loaded()), limits_for(config(), loaded("cuda"))
    assert (cpu.max_num_batched_tokens, cpu.max_num_tokens_beside_decode) == (2048, 224)
    assert (cpu.max_num_encoder_tokens, cpu.max_num_encoder_units) == (512, 2)
    assert cuda.max_num_encoder_units is None
    assert {cuda.max_num_batched_tokens, cuda.max_num_tokens_beside_decode, cuda.max_num_encoder_tokens} == {4096}
    stated = limits_for(config(max_num_batched_tokens=7, max_num_encoder_tokens=8), loaded())
    assert {stated.max_num_batched_tokens, stated.max_num_tokens_beside_decode} == {7}
    assert stated.max_num_encoder_tokens == 8


@pytest.mark.parametrize(
    ("free_bytes", "tokens"),
    [(10**6, 4 * 112), (6000, 300), (10, 112)],
    ids=["all that can run", "half of what is free", "one sequence at least"],
)
def test_the_kv_cache_takes_what_is_free_and_no_more_than_is_useful(free_bytes: int, tokens: int):
    assert limits_for(config(), loaded(free_bytes=free_bytes)).kv_capacity_tokens == tokens


def test_the_kv_cache_can_be_stated():
    assert limits_for(config(kv_cache_memory_bytes=2000), loaded()).kv_capacity_tokens == 200
    with pytest.raises(ConfigError, match=r"kv_cache_memory_bytes is 1000; one sequence .* takes 1120"):
        limits_for(config(kv_cache_memory_bytes=1000), loaded())
