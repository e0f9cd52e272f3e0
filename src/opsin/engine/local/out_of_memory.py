"""The adapter of torch's out-of-memory errors."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

from opsin.engine.local.runner_api import OutOfMemory


@contextmanager
def translated() -> Generator[None]:
    """Raises OutOfMemory for a class of errors on CUDA, and for a sentence on CPU and MPS."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory from error
    except RuntimeError as error:
        text = str(error).lower()
        if "out of memory" in text or "not enough memory" in text or "can't allocate memory" in text:
            raise OutOfMemory from error
        raise
