"""What this machine offers to the local engine: libraries, device, dtype, memory. Loads no model.

Asked in a process of its own (``python -m opsin.engine.local.probe DEVICE DTYPE VISION_DTYPE CHECKPOINT_DTYPE``),
because a torch that does not fit the processor kills its process instead of raising an error.
"""

from __future__ import annotations

import subprocess
import sys
from typing import cast

import msgspec
import psutil

from opsin.core.errors import ConfigError, OpsinError
from opsin.engine.local.config import LocalOptions, VisionDtype

_TIMEOUT_S = 120.0


class Machine(msgspec.Struct, frozen=True):
    """What the engine would run on. Memory in bytes: the device's own, or the machine's.

    ``has_int8``: whether ``vision_dtype`` may be int8 there.
    """

    torch: str
    transformers: str
    device: str
    device_name: str
    dtype: str
    has_int8: bool
    threads: int
    free_bytes: int
    total_bytes: int


class _Refusal(msgspec.Struct, frozen=True):
    problem: str


def probe(options: LocalOptions, checkpoint_dtype: str | None) -> Machine:
    """Asks; takes the seconds that importing torch and transformers takes.

    Raises:
        ConfigError: the libraries are missing or broken, the device is not there, or has no fast int8 if that is asked
            for.
    """
    words = [options.device, options.dtype, options.vision_dtype, checkpoint_dtype or "float32"]
    try:
        answer = subprocess.run(  # noqa: S603 our own module
            [sys.executable, "-P", "-m", "opsin.engine.local.probe", *words],
            capture_output=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError(f"torch and transformers did not load within {_TIMEOUT_S:g} s") from None
    try:
        told = msgspec.json.decode(answer.stdout, type=dict[str, object])
    except msgspec.DecodeError:
        raise ConfigError(f"loading torch and transformers ended with status {answer.returncode}") from None
    if "problem" in told:
        raise ConfigError(str(told["problem"]))
    return msgspec.convert(told, Machine)


def main() -> None:
    """Prints a Machine or a refusal."""
    device, dtype, vision_dtype, checkpoint_dtype = sys.argv[1:]
    answer: Machine | _Refusal
    try:
        answer = _look(device, dtype, cast("VisionDtype", vision_dtype), checkpoint_dtype)
    except ImportError as error:
        answer = _Refusal(f"the local engine needs torch and transformers: pip install 'opsin[local]' ({error})")
    except OpsinError as error:
        answer = _Refusal(error.message)
    sys.stdout.buffer.write(msgspec.json.encode(answer))


def _look(wanted_device: str, wanted_dtype: str, vision_dtype: VisionDtype, checkpoint_dtype: str) -> Machine:
    import torch
    import transformers

    from opsin.engine.local.loading import choose_device, choose_dtype
    from opsin.engine.local.vision_encoder import has_int8, require

    device = choose_device(wanted_device)
    require(vision_dtype, device)
    dtype = choose_dtype(wanted_dtype, device, getattr(torch, checkpoint_dtype))
    memory = psutil.virtual_memory()
    free, total = torch.cuda.mem_get_info() if device == "cuda" else (memory.available, memory.total)
    return Machine(
        torch=str(torch.__version__),
        transformers=transformers.__version__,
        device=device,
        device_name=torch.cuda.get_device_name() if device == "cuda" else torch.backends.cpu.get_cpu_capability(),
        dtype=str(dtype).removeprefix("torch."),
        has_int8=has_int8(device),
        threads=torch.get_num_threads(),
        free_bytes=free,
        total_bytes=total,
    )


if __name__ == "__main__":
    main()
