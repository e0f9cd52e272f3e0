"""A tiny Idefics3 with random weights, and what Transformers' own ``generate`` makes of a request."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForImageTextToText, Idefics3Config

from opsin.engine.api import Picture
from opsin.engine.local.config import LocalEngineConfig
from opsin.media.types import RenderedPicture
from opsin.vision.plan import Size

TILE, TOKENS_PER_TILE, VOCABULARY, IMAGE, EOS = 32, 4, 96, 90, 91
MAX_MODEL_LEN = 160
NEAR_TIE = 1e-3
"""Logits closer than this are not told apart: float32 sums in another order differ by about 1e-5."""


class Reference:
    """The same checkpoint inside the test's process."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        make_config: Any = Idefics3Config  # the library's own signature is incomplete
        config = make_config(
            vision_config={
                "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
                "image_size": TILE, "patch_size": 8,
            },
            text_config={
                "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64,
                "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
                "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": 0,
            },
            scale_factor=2,
            image_token_id=IMAGE,
            pad_token_id=0,
            tie_word_embeddings=False,
        )  # fmt: skip
        self.model = cast("Any", AutoModelForImageTextToText.from_config(config, dtype=torch.float32))
        with torch.no_grad():
            # At the usual 0.02 the picture hardly moves the logits, and a wrong feature would go unseen.
            parameters: list[torch.Tensor] = list(self.model.parameters())
            for parameter in parameters:
                if parameter.ndim >= 2:
                    parameter.normal_(std=0.3)
        self.model.generation_config.eos_token_id = EOS
        self.model.eval()
        self.model.save_pretrained(folder)
        self.folder = folder

    def greedy(self, ids: tuple[int, ...], pictures: tuple[Picture, ...], max_tokens: int = 12) -> list[int]:
        """New tokens of ``generate``, end of sequence included."""
        return self.greedy_and_sure(ids, pictures, max_tokens)[0]

    def greedy_and_sure(
        self, ids: tuple[int, ...], pictures: tuple[Picture, ...], max_tokens: int = 12
    ) -> tuple[list[int], int]:
        """The same, and how many of them come before the first that another order of float32 additions could change."""
        tiles = [torch.frombuffer(bytearray(rendered.pixels), dtype=torch.uint8) for rendered in _rendered(pictures)]
        inputs: dict[str, Any] = {}
        if tiles:
            pixels = torch.cat(tiles).view(1, -1, TILE, TILE, 3).permute(0, 1, 4, 2, 3).float()
            inputs["pixel_values"] = (pixels / 255 - 0.5) / 0.5
        return generated(self.model, torch.tensor([ids]), max_tokens, inputs)


def generated(model: Any, ids: torch.Tensor, max_tokens: int, inputs: dict[str, Any]) -> tuple[list[int], int]:
    """New tokens of the library's own loop, and how many of them come before the first near tie."""
    output = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_tokens,
        return_dict_in_generate=True,
        output_logits=True,
        **inputs,
    )
    gaps = [float(best[0] - best[1]) for best in (logits[0].topk(2).values for logits in output.logits)]
    sure = next((index for index, gap in enumerate(gaps) if gap < NEAR_TIE), len(gaps))
    return output.sequences[0, ids.shape[1] :].tolist(), sure


def _rendered(pictures: tuple[Picture, ...]) -> Iterator[RenderedPicture]:
    for one in pictures:
        assert one.rendered is not None
        yield one.rendered


def picture(seed: int, num_tiles: int = 1) -> Picture:
    pixels = random.Random(seed).randbytes(num_tiles * TILE * TILE * 3)
    return Picture(
        key=f"key-{seed}-{num_tiles}",
        image_tokens=num_tiles * TOKENS_PER_TILE,
        num_tiles=num_tiles,
        origin=f"key-{seed}-{num_tiles}",
        rendered=RenderedPicture(pixels, num_tiles, Size(TILE, TILE)),
    )


def prompt(*pictures: Picture, text: int = 6) -> tuple[int, ...]:
    """Text, then every picture's slot followed by text."""
    ids = [2 + index % 18 for index in range(text)]
    for index, one in enumerate(pictures):
        ids += [IMAGE] * (one.image_tokens or 0) + [20 + index, 30 + index]
    return tuple(ids)


def config_of(folder: Path, **changes: object) -> LocalEngineConfig:
    values: dict[str, object] = {
        "model_path": folder,
        "model_type": "idefics3",
        "image_token_id": IMAGE,
        "eos_token_ids": (EOS,),
        "image_mean": (0.5, 0.5, 0.5),
        "image_std": (0.5, 0.5, 0.5),
        "max_model_len": MAX_MODEL_LEN,
        "device": "cpu",
        "num_threads": 1,
        "warm_up_s": 0.0,
    }
    return LocalEngineConfig.model_validate({**values, **changes})
