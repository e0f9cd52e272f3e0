"""Model cards from folders in the old and the new layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig, Idefics3Config, Idefics3Processor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from opsin.core.conversation import Detail
from opsin.core.errors import ConfigError
from opsin.models.card import GenerationDefaults, ModelCard, Normalization, load_card
from opsin.models.facts import facts_of
from opsin.models.hub import ResolvedModel
from opsin.models.traits import Fusion, Traits
from opsin.vision.plan import Size, planned
from opsin.vision.registry import family_for, native_family_for
from tests import checkpoints

CONFIG = {
    "model_type": "idefics3",
    "architectures": ["Idefics3ForConditionalGeneration"],
    "dtype": "bfloat16",
    "image_token_id": 5,
    "scale_factor": 4,
    "text_config": {"model_type": "llama", "max_position_embeddings": 8192, "eos_token_id": 0},
    "vision_config": {"patch_size": 16, "image_size": 512},
}
IMAGE_PROCESSOR = {
    "image_processor_type": "Idefics3ImageProcessor",
    "size": {"longest_edge": 2048},
    "max_image_size": {"longest_edge": 512},
    "resample": 1,
    "rescale_factor": 0.00392156862745098,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
TOKENIZER_CONFIG = {
    "bos_token": {"content": "<|im_start|>", "lstrip": False},
    "eos_token": "<end_of_utterance>",
    "pad_token": None,
    "add_bos_token": True,
}
FOLDER: dict[str, Any] = {
    "config.json": CONFIG,
    "generation_config.json": {"do_sample": True, "top_p": 0.9, "eos_token_id": [6, 0]},
    "preprocessor_config.json": IMAGE_PROCESSOR,
    "processor_config.json": {"image_seq_len": 64, "processor_class": "Idefics3Processor"},
    "tokenizer.json": {"added_tokens": [{"id": 6, "content": "<end_of_utterance>"}], "model": {}},
    "tokenizer_config.json": TOKENIZER_CONFIG,
    "chat_template.jinja": "new",
}


def written(folder: Path, **changes: Any) -> Path:
    """FOLDER on disk with whole files replaced; None leaves a file out."""
    files = FOLDER | {name.replace("__", "."): content for name, content in changes.items()}
    for name, content in files.items():
        if content is not None:
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def card(folder: Path, **changes: Any) -> ModelCard:
    return load_card(ResolvedModel(path=written(folder, **changes), model_id="owner/name", revision="abc"))


def test_old_layout(tmp_path: Path) -> None:
    found = card(tmp_path)
    assert (found.model_id, found.revision, found.model_type) == ("owner/name", "abc", "idefics3")
    assert found.architecture == "Idefics3ForConditionalGeneration"
    assert (found.max_model_len, found.dtype, found.image_token_id) == (8192, "bfloat16", 5)
    assert found.eos_token_ids == (6, 0)
    assert found.generation == GenerationDefaults(temperature=1.0, top_p=0.9)
    assert found.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<end_of_utterance>"}
    assert found.normalization == Normalization(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    assert found.traits == Traits(fusion=Fusion.LATE)
    assert family_for(found.vision).count(Size(256, 256)).image_tokens == 17 * 64
    assert found.chat_template == "new"
    assert found.tokenizer_path == tmp_path / "tokenizer.json"


def test_what_transformers_writes(tmp_path: Path) -> None:
    tokenizer = checkpoints.tokenizer()
    images = Idefics3ImageProcessorPil(size={"longest_edge": 256}, max_image_size={"longest_edge": 128})
    Idefics3Processor(images, tokenizer, image_seq_len=16, chat_template="{{ messages }}").save_pretrained(tmp_path)
    text = {"model_type": "llama", "max_position_embeddings": 4096}
    Idefics3Config(
        vision_config={"patch_size": 16, "image_size": 128}, text_config=text, scale_factor=2, image_token_id=5
    ).save_pretrained(tmp_path)
    GenerationConfig(do_sample=False, eos_token_id=tokenizer.eos_token_id).save_pretrained(tmp_path)
    found = load_card(ResolvedModel(path=tmp_path, model_id="owner/name", revision=None))
    assert (found.model_type, found.max_model_len, found.image_token_id) == ("idefics3", 4096, 5)
    assert found.eos_token_ids == (tokenizer.eos_token_id,)
    assert found.generation.temperature == 0
    assert found.chat_template == "{{ messages }}"
    assert found.special_tokens["bos_token"] == "<|im_start|>"
    assert planned(native_family_for(found), Size(256, 256), Detail.AUTO).image_tokens == 5 * 16


def test_new_layout_nests_the_image_processor(tmp_path: Path) -> None:
    processor = {"image_processor": IMAGE_PROCESSOR | {"do_image_splitting": False}, "image_seq_len": 64}
    found = card(tmp_path, processor_config__json=processor, preprocessor_config__json=None)
    assert family_for(found.vision).count(Size(256, 256)).image_tokens == 64
    assert found.normalization.mean == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("generation", "defaults"),
    [
        (None, GenerationDefaults()),
        ({}, GenerationDefaults()),
        ({"temperature": 0.4, "top_k": 50, "min_p": 0.1}, GenerationDefaults(temperature=0.4, top_k=50, min_p=0.1)),
        ({"do_sample": False, "temperature": 0.7}, GenerationDefaults(temperature=0.0)),
        ({"do_sample": True, "repetition_penalty": 1.2}, GenerationDefaults(repetition_penalty=1.2)),
    ],
)
def test_generation_defaults(tmp_path: Path, generation: Any, defaults: GenerationDefaults) -> None:
    assert card(tmp_path, generation_config__json=generation).generation == defaults


@pytest.mark.parametrize(
    ("generation", "config", "ids"),
    [
        ({"eos_token_id": 3}, {"eos_token_id": 4}, (3,)),
        ({}, {"eos_token_id": 4}, (4,)),
        ({}, {}, (0,)),
        ({}, {"text_config": {}}, (6,)),
    ],
)
def test_end_tokens_in_order_of_precedence(
    tmp_path: Path, generation: Any, config: dict[str, Any], ids: tuple[int, ...]
) -> None:
    assert card(tmp_path, generation_config__json=generation, config__json=CONFIG | config).eos_token_ids == ids


@pytest.mark.parametrize(
    ("changes", "template"),
    [
        ({"processor_config__json": {"chat_template": "own"}, "chat_template__json": {"chat_template": "old"}}, "own"),
        ({"chat_template__json": {"chat_template": "old"}}, "old"),
        ({}, "new"),
        ({"chat_template__jinja": None, "tokenizer_config__json": {"chat_template": "plain"}}, "plain"),
        (
            {
                "chat_template__jinja": None,
                "tokenizer_config__json": {
                    "chat_template": [
                        {"name": "tool_use", "template": "tools"},
                        {"name": "default", "template": "named"},
                    ]
                },
            },
            "named",
        ),
    ],
)
def test_chat_template_in_order_of_precedence(tmp_path: Path, changes: dict[str, Any], template: str) -> None:
    assert card(tmp_path, **changes).chat_template == template


@pytest.mark.parametrize("key", ["extra_special_tokens", "model_specific_special_tokens"])
def test_nested_named_tokens(tmp_path: Path, key: str) -> None:
    found = card(tmp_path, tokenizer_config__json={key: {"image_token": "<image>"}})
    assert found.special_tokens == {"image_token": "<image>"}


def test_unnamed_extra_tokens_are_ignored(tmp_path: Path) -> None:
    assert card(tmp_path, tokenizer_config__json={"extra_special_tokens": ["<image>"]}).special_tokens == {}


def test_dtype_of_older_files(tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "dtype"} | {"torch_dtype": "torch.float16"}
    assert card(tmp_path, config__json=config).dtype == "float16"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config__json": None}, r"config\.json: missing from the model folder"),
        ({"config__json": "{"}, r"config\.json: not valid JSON"),
        ({"config__json": "[]"}, r"config\.json: has the wrong shape"),
        ({"config__json": {}}, r"config\.json: field model_type is missing"),
        (
            {"config__json": CONFIG | {"text_config": {"max_position_embeddings": "8k"}}},
            r"config\.json: field text_config\.max_position_embeddings has the wrong type",
        ),
        ({"preprocessor_config__json": None}, r"preprocessor_config\.json: missing"),
        (
            {"preprocessor_config__json": IMAGE_PROCESSOR | {"image_mean": 0.5}},
            r"preprocessor_config\.json: field image_mean has the wrong type",
        ),
        ({"chat_template__jinja": None}, r"chat_template\.jinja: missing"),
        ({"tokenizer_config__json": {"eos_token": 6}}, r"tokenizer_config\.json: has the wrong shape"),
        ({"chat_template__json": {}}, r"chat_template\.json: field chat_template is missing"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        card(tmp_path, **changes)


def test_fingerprint_follows_processor_files_only(tmp_path: Path) -> None:
    first = card(tmp_path).processor_fingerprint
    assert len(first) == 64
    assert card(tmp_path, config__json=CONFIG | {"image_token_id": 9}).processor_fingerprint == first
    assert card(tmp_path, chat_template__jinja="other").processor_fingerprint != first


def test_traits_of_a_known_hub_id_are_the_facts(tmp_path: Path) -> None:
    model_id = "Qwen/Qwen3-VL-30B-A3B-Instruct"
    known = facts_of(model_id)
    assert known is not None
    folder = written(tmp_path)
    assert load_card(ResolvedModel(folder, model_id, "abc", from_hub=True)).traits == known.traits
    assert load_card(ResolvedModel(folder, model_id, "abc")).traits == Traits(fusion=Fusion.LATE)
