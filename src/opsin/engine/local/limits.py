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
    """On a CPU neither a larger prefill nor several tiles at once are faster, and both would stall streams.

    Measured on a Xeon with AMX, SmolVLM-256M's shape, one thread, processor time: 1,100 positions take 1.21 s by 512,
    of which one is 0.57 s, 1.17 s by 256, of which one is 0.29 s, and 1.42 s by 128. One tile takes 0.50 s.

    Raises:
        ConfigError: ``kv_cache_memory_bytes`` does not hold one sequence of ``max_model_len``.
    """
    on_cpu = loaded.device == "cpu"
    return Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens or (256 if on_cpu else 4096),
        max_num_encoder_tokens=config.max_num_encoder_tokens or (1 if on_cpu else 4096),
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
