"""What the vision encoder of a checkpoint costs at least on this machine: its arithmetic over the measured peak.

    python benchmarks/floor.py CHECKPOINT --threads 2

No server can be faster than this without leaving work out: a figure beyond it means that a picture was not encoded.
Counted are the matrix products of a SigLIP-like encoder (Idefics3, SmolVLM); prefill and decode come on top.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch

_MEASURED_S = 1.5


@dataclass(frozen=True, slots=True)
class Encoder:
    """Sizes of one tile's way through the encoder."""

    hidden: int
    intermediate: int
    layers: int
    patches: int  # positions of one tile
    tokens: int  # visual tokens of one tile

    @classmethod
    def of(cls, checkpoint: Path) -> Encoder:
        """From ``config.json``."""
        config = json.loads((checkpoint / "config.json").read_text())
        vision = config["vision_config"]
        side = vision["image_size"] // vision["patch_size"]
        return cls(
            hidden=vision["hidden_size"],
            intermediate=vision["intermediate_size"],
            layers=vision["num_hidden_layers"],
            patches=side * side,
            tokens=(side // config["scale_factor"]) ** 2,
        )

    @property
    def flops(self) -> float:
        """Of one tile: four projections and two layers of the MLP, then scores and values; 2 per multiply-add."""
        linear = 2 * self.patches * (4 * self.hidden**2 + 2 * self.hidden * self.intermediate)
        attention = 2 * 2 * self.patches**2 * self.hidden
        return float(self.layers * (linear + attention))


def peak_flops(encoder: Encoder, threads: int) -> float:
    """The best of float32 and bfloat16 on the encoder's own largest product, per second."""
    torch.set_num_threads(threads)
    return max(_flops_of(encoder, dtype) for dtype in (torch.float32, torch.bfloat16))


def _flops_of(encoder: Encoder, dtype: torch.dtype) -> float:
    left = torch.randn(encoder.patches, encoder.hidden, dtype=dtype)
    right = torch.randn(encoder.hidden, encoder.intermediate, dtype=dtype)
    torch.matmul(left, right)
    runs, start = 0, time.monotonic()
    while time.monotonic() - start < _MEASURED_S:
        torch.matmul(left, right)
        runs += 1
    seconds = time.monotonic() - start
    return 2.0 * encoder.patches * encoder.hidden * encoder.intermediate * runs / seconds


def main() -> None:
    """Prints the floor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    encoder = Encoder.of(args.checkpoint)
    peak = peak_flops(encoder, args.threads)
    print(f"{encoder.flops / 1e9:.0f} GFLOP per tile of {encoder.tokens} tokens; peak {peak / 1e9:.0f} GFLOP/s")
    print(f"one tile takes {encoder.flops / peak * 1e3:.0f} ms at least: at most {peak / encoder.flops:.2f} per second")


if __name__ == "__main__":
    main()
