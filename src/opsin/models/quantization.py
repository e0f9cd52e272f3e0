"""Which packages Transformers needs to load a quantized checkpoint. Imports none of them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution

from opsin.core.errors import ConfigError
from opsin.models.card import ModelCard

_COMMON = ("accelerate",)
"""Places quantized weights on a device; most methods need it everywhere."""

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "aqlm": ("aqlm",),
    "auto-round": ("auto-round",),
    "awq": ("gptqmodel",),
    "bitnet": (),
    "bitsandbytes": ("bitsandbytes",),
    "compressed-tensors": ("compressed-tensors",),
    "eetq": ("kernels",),
    "fbgemm_fp8": ("fbgemm-gpu",),
    "fp8": (),
    "fp_quant": ("fp-quant",),
    "gptq": ("optimum", "gptqmodel"),
    "higgs": ("flute-kernel", "fast-hadamard-transform"),
    "hqq": ("hqq",),
    "mxfp4": (),
    "mxfp8": (),
    "quanto": ("optimum-quanto",),
    "quark": ("amd-quark",),
    "sinq": ("sinq",),
    "spqr": ("spqr-quant",),
    "torchao": ("torchao",),
    "vptq": ("vptq",),
}
"""Methods that Transformers 5.24 can load, by their ``quant_method``, and what it asks for, by pip's names."""


def check_quantization(card: ModelCard, wanted: str | None) -> None:
    """Whether a checkpoint's own quantization can be honoured, and is the one that the operator expects, if any.

    Raises:
        ConfigError: another one is expected, Transformers does not know it, or packages are missing.
    """
    method = card.quantization
    if wanted is not None and wanted.removesuffix("_marlin") != method:  # vLLM's name for one of its kernels
        raise ConfigError(f"--quantization {wanted}: {_instead(method)}")
    if method is None:
        return
    packages = PACKAGES.get(method)
    if packages is None:
        raise ConfigError(
            f"model {card.model_id} is quantized with {method}, which Transformers does not load; "
            f"it loads {', '.join(PACKAGES)}"
        )
    missing = [name for name in (*packages, *_COMMON) if not _is_installed(name)]
    if missing:
        raise ConfigError(
            f"model {card.model_id} is quantized with {method}, which needs: pip install {' '.join(missing)}"
        )


def _instead(method: str | None) -> str:
    if method is None:
        return "the checkpoint is not quantized, and opsin does not quantize; choose one that is, or drop the flag"
    return f"the checkpoint is quantized with {method}, which is honoured without the flag"


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
