"""Linear layers whose weights lie in memory as oneDNN multiplies them, on a CPU.

``torch.nn.functional.linear`` arranges a bfloat16 weight anew in every call, which is most of its time when there are
few rows: measured on a Zen 4, one thread, 576 → 1536, CPU time of 1, 8 and 64 rows falls from 277, 545 and 2299 µs to
211, 309 and 1971. Products are bit-equal. What follows a layer is computed while the product is still in the cache:
1024 x 768 x 3072 with a GELU in float32 on a Xeon takes 24 ms instead of 21 and 5, and the three layers of an MLP of
Llama's kind, 1,165 x 576 x 1536 in bfloat16, 4.8 instead of 5.9. The operators are those that ``torch.compile`` uses;
they are not public, so their absence or refusal leaves a model as it is.
"""

from __future__ import annotations

import logging
import time
from functools import cache, partial
from typing import Any, cast

import torch
from torch import nn

from opsin.engine.local.linears import NOTHING, Then, replace_linears

logger = logging.getLogger(__name__)

_cpu: Any = torch.cpu  # what it can do is not public either
_mkldnn: Any = torch.ops.mkldnn  # its operators have no types

_BLOCK = 256
"""Rows of a call, where one call for all of them would leave threads idle."""
_NARROWING_BLOCK = 208
"""The same for layers that narrow, where numbers of rows are too many to try each."""
_DOUBTFUL = range(2 * _BLOCK, 8 * _BLOCK)
"""Numbers of rows for which oneDNN's plan may be one for a single thread."""
_CLEARLY = 1.2
_TRIALS = 4


class PackedLinear(nn.Module):
    """Stands for a Linear that will only be run. The weight in its ordinary form is not kept.

    ``is_tuned``: numbers of rows come again and again, as in a vision encoder, so that it pays to try what is faster.
    """

    def __init__(self, linear: nn.Linear, then: Then = NOTHING, *, is_tuned: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        is_bfloat16 = linear.weight.dtype is torch.bfloat16
        self._packed: torch.Tensor = _mkldnn._reorder_linear_weight(linear.weight.detach())
        bias = cast("torch.Tensor | None", linear.bias)  # declared as never absent
        self._bias = None if bias is None else bias.detach()
        self._is_tuned = is_tuned and is_bfloat16
        narrows = self.out_features < self.in_features
        self._idles = is_bfloat16 and not is_tuned and narrows and _threads_may_idle()
        self._then = then.coarse if is_bfloat16 else then
        self._activation = self._then.for_onednn

    def forward(self, input: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """From (…, in_features) to (…, out_features); ``other`` is what a sum or product is with."""
        rows = input.numel() // self.in_features
        if self._idles and rows > _NARROWING_BLOCK:
            return self._in_blocks(input, other, _NARROWING_BLOCK)
        if self._is_tuned and rows in _DOUBTFUL and self._is_faster_in_blocks(rows):
            return self._in_blocks(input, other, _BLOCK)
        return self._product(input, other)

    def _product(self, input: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
        if other is None:
            return _mkldnn._linear_pointwise(input, self._packed, self._bias, *self._activation)
        return _mkldnn._linear_pointwise.binary(input, other, self._packed, self._bias, self._then.combine)

    def _is_faster_in_blocks(self, rows: int) -> bool:
        whole_blocks = rows - rows % _BLOCK
        return faster_in_blocks(whole_blocks, self.in_features, self.out_features, torch.get_num_threads())

    def _in_blocks(self, input: torch.Tensor, other: torch.Tensor | None, size: int) -> torch.Tensor:
        blocks = torch.split(input.reshape(-1, self.in_features), size)
        others = [None] * len(blocks) if other is None else torch.split(other.reshape(-1, self.out_features), size)
        products = [self._product(block, part) for block, part in zip(blocks, others, strict=True)]
        return torch.cat(products).view(*input.shape[:-1], self.out_features)


def _threads_may_idle() -> bool:
    """Whether oneDNN has plans for one thread, as with AMX for layers that narrow, and there are more.

    1536 x 576 takes two threads on a Xeon 144 µs with 208 rows and 297 with 216, 1,170 with 800 and 1,610 with 1,165;
    in blocks of 208 rows the last two take 730 and 1,050.
    """
    return torch.get_num_threads() > 1 and bool(_cpu._is_amx_tile_supported())


@cache
def faster_in_blocks(rows: int, in_features: int, out_features: int, threads: int) -> bool:
    """Whether calls of 256 rows are clearly faster than one for all, by trial, for some 20 ms.

    A layer asks for whole blocks only, so that pictures of any size cost it six trials: the plan depends on rows no
    more finely, of 3072 x 768 it is the poor one from 512 to some 1,500. Time is that of this thread. The clock shows
    neighbours, too, and most in what takes long: with three threads to a core it had blocks at 1.2 to 3.6 times of the
    whole's time where this thread takes 1.3 to 1.6 times less.

    For some shapes oneDNN's plan keeps one thread busy and no other: of 1024 x 3072 x 768 in bfloat16 two threads on a
    Xeon with AMX make 1,240 GFLOP/s like one, and 2,100 in blocks, but of 1024 x 768 x 3072 they make 2,800.
    """
    if threads == 1:
        return False
    packed = _mkldnn._reorder_linear_weight(torch.ones(out_features, in_features, dtype=torch.bfloat16))
    input = torch.ones(rows, in_features, dtype=torch.bfloat16)
    least = dict.fromkeys((_BLOCK, rows), float("inf"))
    for _ in range(_TRIALS):  # in turn, and the least of each: what is left of neighbours only ever adds
        for size in least:
            least[size] = min(least[size], _product_s(torch.split(input, size), packed))
    return least[rows] > _CLEARLY * least[_BLOCK]


def _product_s(blocks: tuple[torch.Tensor, ...], packed: torch.Tensor) -> float:
    started = time.thread_time()  # the thread that calls has the first share of the work, or all of it
    for block in blocks:
        _mkldnn._linear_pointwise(block, packed, None, *NOTHING.for_onednn)
    return time.thread_time() - started


def can_pack() -> bool:
    """Whether this CPU multiplies bfloat16 and this build of torch has the operators."""
    try:
        return torch.backends.mkldnn.is_available() and bool(_mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return False


def pack(model: nn.Module, *, is_tuned: bool = False) -> int:
    """Replaces every Linear of a model; returns how many. 0 where this build of torch cannot."""
    try:
        return replace_linears(model, partial(PackedLinear, is_tuned=is_tuned))
    except (AttributeError, RuntimeError) as error:
        logger.warning("linear layers stay unpacked: %s", str(error).partition("\n")[0])
        return 0
