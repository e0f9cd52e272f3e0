"""Breaks between two layers of the vision encoder, in which others may have a turn. Knows no request."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from torch import nn


class LayerBreaks:
    """Of a model whose encoder has these layers; without any there are no breaks."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        self._take: Callable[[], None] | None = None
        self.taken_s = 0.0
        for layer in layers:
            layer.register_forward_pre_hook(self._between)

    @contextmanager
    def taken_by(self, take: Callable[[], None] | None) -> Generator[None]:
        """Calls ``take`` before each layer that runs in the block; ``taken_s`` is what that took, in seconds."""
        self._take, self.taken_s = take, 0.0
        try:
            yield
        finally:
            self._take = None

    def _between(self, *_: Any) -> None:
        if self._take is not None:
            started = time.monotonic()
            # In a context of its own: Transformers keeps there which hidden states the encoder is asked for.
            Context().run(self._take)
            self.taken_s += time.monotonic() - started
