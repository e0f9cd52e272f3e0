"""What vLLM can do and the local engine cannot.

vLLM's flags are understood all the same, so that a refusal can say what to do instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsin.core.problems import Problem
from opsin.engine.local.config import LocalOptions

ATTACH = "start vLLM with it and attach opsin in front: --upstream URL"


def refusals(options: LocalOptions) -> Iterator[Problem]:
    """One problem for each value beyond this engine; paths are those of the options."""
    if options.tensor_parallel_size > 1:
        yield Problem(
            f"--tensor-parallel-size {options.tensor_parallel_size}: the local engine runs on one device; "
            f"for several GPUs {ATTACH}",
            ("tensor_parallel_size",),
        )
    if options.enable_expert_parallel:
        yield Problem(
            f"--enable-expert-parallel: the local engine runs on one device; to spread experts over GPUs {ATTACH}",
            ("enable_expert_parallel",),
        )
    if options.kv_cache_dtype != "auto":
        yield Problem(
            f"--kv-cache-dtype {options.kv_cache_dtype}: the local engine keeps its KV cache in the model's dtype; "
            f"leave the flag out, or {ATTACH}",
            ("kv_cache_dtype",),
        )


def notices(options: LocalOptions) -> Iterator[str]:
    """What is accepted and changes nothing here."""
    if options.enable_prefix_caching:
        yield "--enable-prefix-caching: not built yet; vision features are cached, the text of a prompt is read anew"
