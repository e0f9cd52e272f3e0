"""Families from checkpoints: known ones by their facts, with the golden values of the field; others by their files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.engine.local.traits import TRAITS
from opsin.models.card import GenerationDefaults, ModelCard, Normalization
from opsin.models.facts import Facts, facts_of, known_checkpoints
from opsin.models.files import Document
from opsin.models.vision_files import VisionFiles
from opsin.vision.estimate import estimated
from opsin.vision.plan import Family, Size, planned
from opsin.vision.registry import FAMILIES, family_for, is_native, native_family_for

SIZES = [Size(336, 336), Size(512, 512), Size(640, 480), Size(1024, 1024), Size(1920, 1080), Size(4032, 3024)]

# Image tokens and markers together, as published: image tokens alone where a comment says so.
GOLDEN = {
    "Qwen/Qwen2.5-VL-7B-Instruct": (146, 326, 393, 1371, 2693, 15554),
    "Qwen/Qwen3-VL-8B-Instruct": (102, 258, 302, 1026, 2042, 11846),
    "zai-org/GLM-4.1V-9B-Thinking": (146, 326, 393, 1371, 2693, 7502),
    "OpenGVLab/InternVL3-8B": (258, 258, 3330, 2562, 2306, 3330),
    "OpenGVLab/InternVL3_5-8B": (258, 258, 3330, 2562, 2306, 3330),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (147, 727, 727, 2467, 2322, 1887),
    "llava-hf/llava-1.5-7b-hf": (576, 576, 576, 576, 576, 576),
    "llava-hf/llava-v1.6-mistral-7b-hf": (1176, 2928, 2340, 2928, 1948, 2340),
    "llava-hf/llava-onevision-qwen2-7b-ov-hf": (1485, 3699, 2929, 7371, 7269, 7309),
    "llava-hf/llava-interleave-qwen-7b-hf": (729, 729, 729, 729, 729, 729),
    "mistral-community/pixtral-12b": (462, 1056, 1230, 4160, 2340, 3120),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": (156, 380, 432, 1406, 1736, 2352),
    "google/gemma-4-31B-it": (258, 258, 268, 258, 266, 268),
    "google/gemma-3-12b-it": (258, 258, 258, 258, 258, 258),
    "deepseek-ai/deepseek-vl2-small": (421, 1023, 1023, 2017, 1807, 2017),
    "allenai/Molmo-7B-D-0924": (316, 580, 740, 972, 1196, 1196),
    "facebook/chameleon-7b": (1026, 1026, 1026, 1026, 1026, 1026),
}
GOLDEN_IMAGE_TOKENS = {
    "HuggingFaceTB/SmolVLM-256M-Instruct": (1088, 1088, 832, 1088, 832, 832),
    "HuggingFaceTB/SmolVLM2-500M-Video-Instruct": (1088, 1088, 832, 1088, 832, 832),
    "HuggingFaceTB/SmolVLM2-2.2B-Instruct": (1377, 1377, 1053, 1377, 1053, 1053),
    "moonshotai/Kimi-VL-A3B-Instruct": (144, 361, 414, 1089, 1032, 1036),
    "openbmb/MiniCPM-V-2_6": (64, 192, 192, 448, 576, 640),
}


def facts(model_id: str) -> Facts:
    found = facts_of(model_id)
    assert found is not None
    return found


def known(model_id: str) -> Family:
    return family_for(facts(model_id).vision)


@pytest.mark.parametrize("model_id", GOLDEN)
def test_golden_values(model_id: str) -> None:
    assert tuple(known(model_id).count(size).prompt_tokens for size in SIZES) == GOLDEN[model_id]


@pytest.mark.parametrize("model_id", GOLDEN_IMAGE_TOKENS)
def test_golden_values_of_image_tokens(model_id: str) -> None:
    assert tuple(known(model_id).count(size).image_tokens for size in SIZES) == GOLDEN_IMAGE_TOKENS[model_id]


def test_golden_tiles_of_llama_3_2_vision() -> None:
    family = known("meta-llama/Llama-3.2-11B-Vision-Instruct")
    assert [family.count(size).num_tiles for size in SIZES] == [1, 1, 2, 4, 4, 4]


@pytest.mark.parametrize(
    ("model_id", "size", "detail", "image_tokens", "marker_tokens"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", Size(1920, 1080), Detail.AUTO, 2691, 2),
        ("HuggingFaceTB/SmolVLM-256M-Instruct", Size(1024, 1024), Detail.AUTO, 1088, 39),
        ("HuggingFaceTB/SmolVLM-256M-Instruct", Size(1024, 1024), Detail.LOW, 64, 3),
        ("mistral-community/pixtral-12b", Size(336, 336), Detail.AUTO, 441, 21),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", Size(336, 336), Detail.AUTO, 144, 3),
        ("google/gemma-3-12b-it", Size(336, 336), Detail.AUTO, 256, 2),
        ("deepseek-ai/deepseek-vl2-small", Size(336, 336), Detail.AUTO, 421, 0),
    ],
)
def test_markers_are_counted_apart(
    model_id: str, size: Size, detail: Detail, image_tokens: int, marker_tokens: int
) -> None:
    count = known(model_id).count(size, detail)
    assert (count.image_tokens, count.marker_tokens, count.exact) == (image_tokens, marker_tokens, True)


@pytest.mark.parametrize("model_id", known_checkpoints())
def test_every_known_checkpoint_can_be_counted_and_no_detail_costs_less_than_low(model_id: str) -> None:
    family = known(model_id)
    assert family.name == facts(model_id).vision.model_type
    for size in SIZES:
        counts = {detail: family.count(size, detail) for detail in Detail}
        assert counts[Detail.ORIGINAL] == counts[Detail.HIGH]
        assert counts[Detail.LOW].image_tokens <= counts[Detail.AUTO].image_tokens <= counts[Detail.HIGH].image_tokens


def test_an_unknown_model_type_is_refused_or_left_to_somebody_else() -> None:
    unknown = VisionFiles(
        model_type="qwen9_vl",
        config=Document("config.json", b'{"vision_config": {"patch_size": 16}}'),
        image_processor=Document("preprocessor_config.json", None),
        processor=Document("processor_config.json", None),
    )
    with pytest.raises(ConfigError, match="model_type qwen9_vl: no visual-token rule; supported: chameleon, deepseek"):
        family_for(unknown)
    count = family_for(unknown, otherwise=estimated).count(Size(1024, 1024))
    assert (count.exact, count.image_tokens) == (False, 1024)
    assert family_for(facts("Qwen/Qwen2.5-VL-7B-Instruct").vision, otherwise=estimated).count(SIZES[0]).exact


SMOLVLM_256M: dict[str, Any] = {
    "size": {"longest_edge": 2048},
    "max_image_size": {"longest_edge": 512},
    "do_image_splitting": True,
    "resample": 1,
}


def card(
    model_type: str = "idefics3",
    tokens: Mapping[str, str] | None = None,
    image_seq_len: int | None = 64,
    config: str = '{"scale_factor": 4, "vision_config": {"patch_size": 16}}',
    **changes: object,
) -> ModelCard:
    """A card of SmolVLM-256M's values, changed."""
    said = SMOLVLM_256M | changes
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
        vision=VisionFiles(
            model_type=model_type,
            config=Document("config.json", config.encode()),
            image_processor=Document("preprocessor_config.json", json.dumps(said).encode()),
            processor=Document("processor_config.json", json.dumps({"image_seq_len": image_seq_len}).encode()),
        ),
        normalization=Normalization(),
        chat_template="",
        special_tokens=tokens or {},
        processor_fingerprint="",
    )


@pytest.mark.parametrize("model_type", ["idefics3", "smolvlm"])
def test_family_has_the_checkpoints_parameters(model_type: str) -> None:
    family = native_family_for(card(model_type))
    assert (family.name, family.image_token) == (model_type, "<image>")
    assert planned(family, Size(640, 480), Detail.AUTO).image_tokens == 832


def test_only_smolvlm_takes_markers_from_the_tokenizer() -> None:
    names = {"fake_image_token": "<f>", "global_image_token": "<g>", "image_token": "<i>"}
    slot = planned(native_family_for(card("smolvlm", names)), Size(1, 1), Detail.LOW).slot
    assert slot == "<f><g>" + "<i>" * 64 + "<f>"
    assert native_family_for(card("idefics3", names)).image_token == "<image>"


def test_tokens_per_tile_come_from_the_model_where_the_processor_is_silent() -> None:
    config = '{"scale_factor": 3, "vision_config": {"patch_size": 14}}'
    said = card(image_seq_len=None, config=config, max_image_size={"longest_edge": 384})
    assert planned(native_family_for(said), Size(9, 9), Detail.LOW).image_tokens == 81


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (card(image_seq_len=169), "image_seq_len is 169, but the model makes 64 of a tile"),
        (card(image_seq_len=None, config="{}"), "image_seq_len is missing"),
        (card(resample=9), "resample is not one of Pillow's filters"),
        (card(do_resize=False), "do_resize is false"),
        (card(size={}), r"preprocessor_config\.json: size\.longest_edge is None"),
        (card(max_image_size={"longest_edge": 0}), r"preprocessor_config\.json: max_image_size\.longest_edge is 0"),
    ],
)
def test_contradicting_values_are_refused_by_name(said: ModelCard, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        native_family_for(said)


def test_what_is_counted_and_not_served_is_refused_by_name_with_a_way_out() -> None:
    said = replace(card(), model_type="llama4", vision=facts("meta-llama/Llama-4-Scout-17B-16E-Instruct").vision)
    assert family_for(said.vision).count(SIZES[0]).image_tokens == 144
    with pytest.raises(ConfigError, match=r"llama4: not served by the local engine, which serves gemma3, .*--upstream"):
        native_family_for(said)


def test_what_no_recipe_can_do_is_refused_with_a_way_out() -> None:
    said = replace(card(do_resize=False, size={"shortest_edge": 1, "longest_edge": 99}), model_type="qwen2_vl")
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json: resizes.*--upstream"):
        native_family_for(said)


def test_every_family_that_the_engine_batches_is_served_and_no_other() -> None:
    assert {name for name in FAMILIES if is_native(name)} == TRAITS.keys()
