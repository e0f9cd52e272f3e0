"""A quantized checkpoint through the real engine: the demo model with its language model's weights in FP8."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType] untyped paths

from opsin.cli.main import main
from opsin.core.errors import ConfigError
from opsin.demo.examples import path
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.loading import load
from opsin.settings import Settings

BLOCK = 32


def quantized(folder: Path) -> Path:
    """Blocks of 32 x 32 weights with a scale each, as Transformers' ``fp8`` stores them."""
    shutil.copytree(Settings().model_location, folder)
    weights: dict[str, torch.Tensor] = {}
    for name, weight in load_file(Path(Settings().model_location) / "model.safetensors").items():
        weights[name] = weight
        if ".text_model." in name and name.endswith("_proj.weight"):
            blocks = weight.float().unfold(0, BLOCK, BLOCK).unfold(1, BLOCK, BLOCK)
            scales = blocks.abs().amax(dim=(2, 3)) / torch.finfo(torch.float8_e4m3fn).max
            spread = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
            weights[name] = (weight.float() / spread).to(torch.float8_e4m3fn)
            weights[f"{name}_scale_inv"] = scales
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": ["model.vision_model", "model.connector", "lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_quantized_model_still_reads_the_receipt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ask", str(path("receipt")), "What is the total?", "--detail", "high", "--device", "cpu"]
    assert main([*words, "--quantization", "fp8", "--model", str(quantized(tmp_path / "fp8"))]) == 0
    assert capsys.readouterr().out.strip() == "32.85"


def test_weights_that_do_not_match_their_statement_are_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(Settings().model_location, tmp_path / "incomplete")
    weights = load_file(Path(Settings().model_location) / "model.safetensors")
    del weights["model.text_model.layers.0.self_attn.k_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    half = (0.5, 0.5, 0.5)
    config = LocalEngineConfig(
        model_path=folder, model_type="idefics3", image_token_id=0, eos_token_ids=(), image_mean=half, image_std=half,
        max_model_len=8192,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"lacks weights of its model: 1 of them, first model\.text_model\.layers\.0"):
        load(config)
