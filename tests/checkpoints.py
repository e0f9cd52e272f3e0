"""Checkpoints built by the tests: real architectures, random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForImageTextToText, Idefics3Config, Idefics3Processor, PreTrainedTokenizerFast
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<fake_token_around_image>", "<global-img>", "<image>"]
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}:"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %} {{ part['text'] }}{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)


def tokenizer(rows: int = 6) -> PreTrainedTokenizerFast:
    """Byte-level BPE with SmolVLM's special tokens, trained on next to nothing."""
    markers = [f"<row_{row}_col_{col}>" for row in range(1, rows + 1) for col in range(1, rows + 1)]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue] the stub omits setters
    bpe.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue] as above
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=[*SPECIAL, "<end_of_utterance>", *markers],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([__doc__ or "", "User: What is it? Assistant:"], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<|im_start|>", eos_token="<end_of_utterance>", pad_token="<|endoftext|>"
    )


def _let_it_write(model: Any, tokens: PreTrainedTokenizerFast) -> None:
    """Only plain words, because a stream without text has no first token to measure."""
    words = [token_id for word, token_id in tokens.get_vocab().items() if word.isascii() and word.isalpha()]
    with torch.no_grad():
        model.lm_head.weight[words] *= 1000


@dataclass(frozen=True, slots=True)
class Width:
    """What decides how long a model takes and nothing about its tokens."""

    vision: dict[str, int]
    text: dict[str, int]


WIDTH_256M = Width(
    {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
    {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "head_dim": 64,
    },
)  # fmt: skip
NARROW = Width(
    {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1},
    {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "head_dim": 16,
    },
)  # fmt: skip


def smolvlm_256m(folder: Path, width: Width = WIDTH_256M) -> Path:
    """The exact shape of SmolVLM-256M-Instruct: 256 M parameters, 64 tokens per 512-pixel tile.

    With another ``width`` only its counts: patches, tiles, tokens and positions.
    """
    torch.manual_seed(0)
    tokens = tokenizer()
    make_config: Any = Idefics3Config  # its signature is generated
    config = make_config(
        vision_config={"image_size": 512, "patch_size": 16, **width.vision},
        text_config={"model_type": "llama", "vocab_size": 49280, "max_position_embeddings": 8192, **width.text},
        scale_factor=4,
        image_token_id=tokens.convert_tokens_to_ids("<image>"),
        pad_token_id=tokens.pad_token_id,
        tie_word_embeddings=False,
    )
    auto = cast("Any", AutoModelForImageTextToText)  # untyped in the library
    model = auto.from_config(config, dtype=torch.bfloat16)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    assert width is not WIDTH_256M or round(num_parameters / 1e6, 1) == 256.5
    model.generation_config.eos_token_id = tokens.eos_token_id
    _let_it_write(model, tokens)
    model.save_pretrained(folder)
    images = Idefics3ImageProcessorPil(size={"longest_edge": 2048}, max_image_size={"longest_edge": 512})
    Idefics3Processor(images, tokens, image_seq_len=64, chat_template=TEMPLATE).save_pretrained(folder)
    return folder
