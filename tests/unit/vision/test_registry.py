"""Families from model cards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.models.card import GenerationDefaults, ModelCard, VisionParameters
from opsin.vision.plan import Size
from opsin.vision.registry import family_for

SMOLVLM_256M = VisionParameters(
    image_processor_type="Idefics3ImageProcessor",
    longest_edge=2048,
    max_tile_edge=512,
    do_image_splitting=True,
    image_seq_len=64,
    do_resize=True,
    resample=1,
    do_rescale=True,
    rescale_factor=1 / 255,
    do_normalize=True,
    image_mean=(0.5, 0.5, 0.5),
    image_std=(0.5, 0.5, 0.5),
    patch_size=16,
    scale_factor=4,
)


def card(
    model_type: str = "idefics3", vision: VisionParameters = SMOLVLM_256M, tokens: Mapping[str, str] | None = None
) -> ModelCard:
    return ModelCard(
        model_id="owner/name",
        path=Path("nowhere"),
        revision=None,
        model_type=model_type,
        architecture=None,
        max_model_len=8192,
        dtype=None,
        image_token_id=5,
        eos_token_ids=(6,),
        generation=GenerationDefaults(),
        vision=vision,
        chat_template="",
        special_tokens=tokens or {},
        processor_fingerprint="",
    )


@pytest.mark.parametrize("model_type", ["idefics3", "smolvlm"])
def test_family_has_the_checkpoints_parameters(model_type: str) -> None:
    family = family_for(card(model_type))
    assert (family.name, family.image_token) == (model_type, "<image>")
    assert family.plan(Size(640, 480), Detail.AUTO).image_tokens == 832


def test_only_smolvlm_takes_markers_from_the_tokenizer() -> None:
    names = {"fake_image_token": "<f>", "global_image_token": "<g>", "image_token": "<i>"}
    slot = family_for(card("smolvlm", tokens=names)).plan(Size(1, 1), Detail.LOW).slot
    assert slot == "<f><g>" + "<i>" * 64 + "<f>"
    assert family_for(card("idefics3", tokens=names)).image_token == "<image>"


def test_tokens_per_tile_come_from_the_model_where_the_processor_is_silent() -> None:
    vision = replace(SMOLVLM_256M, max_tile_edge=384, patch_size=14, scale_factor=3, image_seq_len=None)
    assert family_for(card(vision=vision)).plan(Size(9, 9), Detail.LOW).image_tokens == 81


@pytest.mark.parametrize(
    ("vision", "message"),
    [
        (replace(SMOLVLM_256M, image_seq_len=169), "image_seq_len is 169, but the model makes 64 of a tile"),
        (replace(SMOLVLM_256M, image_seq_len=None, patch_size=None), "image_seq_len is missing"),
        (replace(SMOLVLM_256M, resample=3), "resample is 3"),
        (replace(SMOLVLM_256M, do_resize=False), "do_resize is false"),
        (replace(SMOLVLM_256M, longest_edge=None), "size.longest_edge is None"),
        (replace(SMOLVLM_256M, max_tile_edge=0), "max_image_size.longest_edge is 0"),
    ],
)
def test_contradicting_values_are_refused_by_name(vision: VisionParameters, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        family_for(card(vision=vision))


def test_unknown_model_type_is_refused_with_the_supported_list() -> None:
    with pytest.raises(ConfigError, match="model_type qwen9_vl: no visual-token rule; supported: idefics3, smolvlm"):
        family_for(card("qwen9_vl"))
