"""What of the runner needs no model; the model itself is in tests/integration/test_local_engine.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.image_transforms import normalize, rescale

from opsin.core.errors import ConfigError
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.loading import choose_device, choose_dtype
from opsin.engine.local.messages import Tiles
from opsin.engine.local.pixels import pixel_values
from opsin.engine.local.runner import TransformersRunner

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def runner(tmp_path: Path, gpu_memory_utilization: float | None = None) -> TransformersRunner:
    config = LocalEngineConfig(
        gpu_memory_utilization=gpu_memory_utilization,
        model_path=tmp_path,
        model_type="idefics3",
        image_token_id=5,
        eos_token_ids=(6,),
        image_mean=MEAN,
        image_std=STD,
        max_model_len=128,
        device="cpu",
        num_threads=1,
    )
    return TransformersRunner(config)


def test_pixels_are_bit_equal_to_the_pil_image_processors():
    levels = np.stack([np.roll(np.arange(256, dtype=np.uint8).reshape(16, 16), shift) for shift in (0, 85, 170)], -1)
    tiles = np.stack([levels, levels[::-1]])
    normalised = pixel_values(Tiles(tiles.tobytes(), 2, 16, 16), MEAN, STD, torch.device("cpu"))
    for index, tile in enumerate(tiles):
        expected = normalize(rescale(tile.transpose(2, 0, 1), 1 / 255), MEAN, STD)
        assert np.array_equal(normalised[index].numpy(), expected)


def test_a_share_of_gpu_memory_is_said_to_have_no_effect_on_a_cpu(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with pytest.raises(ConfigError):  # only the model is missing
        runner(tmp_path, gpu_memory_utilization=0.9).load(lambda step: None)
    assert "gpu_memory_utilization has no effect on cpu" in caplog.text


def test_a_folder_that_holds_no_model_is_a_config_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"the model folder cannot be loaded \(\w+\)") as caught:
        runner(tmp_path).load(lambda step: None)
    assert str(tmp_path) not in caught.value.message


def test_device_by_what_is_there():
    assert choose_device("cpu") == "cpu"
    assert choose_device("auto") in ("cuda", "mps", "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_device_that_is_not_there_is_refused_with_what_is():
    with pytest.raises(ConfigError, match=r"device 'cuda' was asked for; this machine has .*cpu"):
        choose_device("cuda")


@pytest.mark.parametrize(
    ("wanted", "checkpoint", "expected"),
    [
        ("float32", torch.bfloat16, torch.float32),
        ("bfloat16", torch.float32, torch.bfloat16),
        ("auto", torch.float32, torch.float32),
        ("auto", torch.float16, torch.float32),
    ],
)
def test_dtype_on_cpu(wanted: str, checkpoint: torch.dtype, expected: torch.dtype):
    assert choose_dtype(wanted, "cpu", checkpoint) is expected


@pytest.mark.parametrize(("capability", "expected"), [("AVX2", torch.float32), ("AVX512", torch.bfloat16)])
def test_bfloat16_is_kept_where_the_cpu_multiplies_it(
    capability: str, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert choose_dtype("auto", "cpu", torch.bfloat16) is expected
