"""Milliseconds of one decode step over the slot cache, by batch and context: ``python -m benchmarks.decode_step``.

Random weights in SmolVLM-256M's shape by default; ``--model`` takes a folder. Prints the load average beside each:
a busy neighbour makes any of them worthless.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForImageTextToText, Idefics3Config

from opsin.engine.api import SamplingParams
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.runner import TransformersRunner
from opsin.engine.local.scheduler import PrefillChunk
from opsin.engine.local.sequence import Sequence, StageClock

BATCHES = (1, 4, 8, 16)
IMAGE, EOS = 49190, 49279


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a folder with an Idefics3 or SmolVLM; default: random weights")
    parser.add_argument("--contexts", type=int, nargs="+", default=[300, 1200], help="positions of every sequence")
    parser.add_argument("--steps", type=int, default=20, help="of which the median is taken")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runner = TransformersRunner(_config(arguments.model or _random_model(Path(folder)), arguments))
        print(runner.load(lambda step: None))
        for context in arguments.contexts:
            for batch in BATCHES:
                runner.set_kv_capacity(batch * (context + arguments.steps + 64))
                median, least = _step_ms(runner, batch, context, arguments.steps)
                figures = f"median {median:7.1f} ms, least {least:7.1f} ms"
                print(f"context {context:5} batch {batch:3}: {figures}, load {os.getloadavg()[0]:.1f}")


def _step_ms(runner: TransformersRunner, batch: int, context: int, steps: int) -> tuple[float, float]:
    sequences = [_sequence(index, context) for index in range(batch)]
    for sequence in sequences:
        _append(sequence, runner.forward((PrefillChunk(sequence, 0, context),), ())[sequence.id])
    times: list[float] = []
    for _ in range(steps + 3):
        started = time.perf_counter()
        tokens = runner.forward((), sequences)
        times.append((time.perf_counter() - started) * 1000)
        for sequence in sequences:
            _append(sequence, tokens[sequence.id])
    for sequence in sequences:
        runner.release(sequence)
    return statistics.median(times[3:]), min(times[3:])


def _append(sequence: Sequence, token: int) -> None:
    sequence.num_computed = sequence.num_tokens
    sequence.output_ids.append(token)


def _sequence(index: int, context: int) -> Sequence:
    return Sequence(
        id=str(index),
        scope="",
        prompt_ids=tuple(2 + (index + position) % 1000 for position in range(context)),
        image_positions=(),
        picture_keys=(),
        origins=(),
        units=(),
        sampling=SamplingParams(temperature=0.0, ignore_eos=True),
        max_output_tokens=10**6,
        clock=StageClock(0.0),
    )


def _config(folder: Path, arguments: argparse.Namespace) -> LocalEngineConfig:
    return LocalEngineConfig(
        model_path=folder,
        model_type="idefics3",
        image_token_id=IMAGE,
        eos_token_ids=(EOS,),
        image_mean=(0.5, 0.5, 0.5),
        image_std=(0.5, 0.5, 0.5),
        max_model_len=8192,
        num_threads=arguments.threads,
        dtype=arguments.dtype,
    )


def _random_model(folder: Path) -> Path:
    """SmolVLM-256M's text model (134.6 M weights); the vision encoder is left small, decode does not run it."""
    make_config = cast("Any", Idefics3Config)  # the library's own signature is incomplete
    config = make_config(
        vision_config={
            "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
            "image_size": 512, "patch_size": 16,
        },
        text_config={
            "model_type": "llama", "vocab_size": 49280, "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
            "max_position_embeddings": 8192, "pad_token_id": 2,
        },
        scale_factor=4,
        image_token_id=IMAGE,
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = cast("Any", AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16))
    model.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
