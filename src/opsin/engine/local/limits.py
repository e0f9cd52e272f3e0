"""What one step and the KV cache may hold, where the operator left it open. Knows no torch."""

from __future__ import annotations

from opsin.core.errors import ConfigError
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.kv_grid import rounded
from opsin.engine.local.runner_api import LoadedModel
from opsin.engine.local.scheduler import Limits

KV_SHARE = 0.5
"""Of the memory that is free beside the weights; the rest is for activations, features and the prefix cache."""


def limits_for(config: LocalEngineConfig, loaded: LoadedModel) -> Limits:
    """On a CPU more than two tiles at once are not faster, and a whole prompt stalls those who decode.

    Measured on a Xeon with AMX, SmolVLM-256M's shape, two threads, bfloat16: a tile takes 184 ms alone, 150 by two, 152
    by four and 220 of 17, and 1,165 positions take 0.45 s by 256 and 0.31 s at once, because attention to what was
    before needs a mask. The last 256 of them take 135 ms, which was more than a tile; two prompts with a tile each fit.

    Raises:
        ConfigError: ``kv_cache_memory_bytes`` does not hold one sequence of ``max_model_len``.
    """
    on_cpu = loaded.device == "cpu"
    budget = config.max_num_batched_tokens or (2048 if on_cpu else 4096)
    return Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=budget,
        max_num_tokens_beside_decode=min(budget, 224) if on_cpu else budget,
        max_num_encoder_tokens=config.max_num_encoder_tokens or (512 if on_cpu else 4096),
        max_num_encoder_units=2 if on_cpu else None,
        kv_capacity_tokens=_kv_capacity_tokens(config, loaded),
    )


def _kv_capacity_tokens(config: LocalEngineConfig, loaded: LoadedModel) -> int:
    least = rounded(config.max_model_len)
    if config.kv_cache_memory_bytes is None:
        affordable = int(KV_SHARE * loaded.free_bytes) // loaded.kv_bytes_per_token
        return max(least, min(affordable, config.max_num_seqs * least))
    tokens = config.kv_cache_memory_bytes // loaded.kv_bytes_per_token
    if tokens < least:
        raise ConfigError(
            f"kv_cache_memory_bytes is {config.kv_cache_memory_bytes}; one sequence of max_model_len "
            f"{config.max_model_len} takes {least * loaded.kv_bytes_per_token}"
        )
    return tokens
