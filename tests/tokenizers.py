"""Tokenizers of the kinds that vision-language models have, made by hand, each with its family's special tokens.

They differ in what decides whether a text becomes a token: byte-level or SentencePiece-like, normalised or not, tokens
that no flag calls special, tokens that are white space. In all of them merges lead from letters to the tokens
themselves, so that only what opsin does keeps a text from becoming one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tokenizers import pre_tokenizers

from opsin.prompt.tokenizer import Tokenizer

CHATML = (
    "{%% for m in messages %%}<|im_start|>{{ m['role'] }}\n{%% for p in m['content'] %%}"
    "{%% if p['type'] == 'image' %%}%s{%% else %%}{{ p['text'] }}{%% endif %%}{%% endfor %%}<|im_end|>\n{%% endfor %%}"
    "<|im_start|>assistant\n"
)
INSTRUCT = (
    "<s>{% for m in messages %}{% if m['role'] == 'assistant' %}{{ m['content'][0]['text'] }}</s>{% else %}[INST]"
    "{% for p in m['content'] %}{% if p['type'] == 'image' %}[IMG]{% else %}{{ p['text'] }}{% endif %}{% endfor %}"
    "[/INST]{% endif %}{% endfor %}"
)
VICUNA = (
    "<s>{% for m in messages %}{{ m['role'] | upper }}: {% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}<image>\n{% else %}{{ p['text'] | trim }}{% endif %}{% endfor %}</s>{% endfor %}"
    "ASSISTANT:"
)
GEMMA = (
    "<bos>{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}<start_of_image>{% else %}{{ p['text'] | trim }}{% endif %}{% endfor %}"
    "<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
)

_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_FROM_SPACES = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
_SENTENCEPIECE: dict[str, Any] = {
    "normalizer": _SPACES,
    "decoder": {"type": "Sequence", "decoders": [_FROM_SPACES, {"type": "ByteFallback"}, {"type": "Fuse"}]},
}
_BYTE_LEVEL: dict[str, Any] = {
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
}


@dataclass(frozen=True, slots=True)
class TokenizerKind:
    """One family's way. ``placeholder`` is what its template writes for a picture; ``added`` are not called special."""

    name: str
    placeholder: str
    template: str
    special: tuple[str, ...]
    added: tuple[str, ...] = ()
    has_byte_alphabet: bool = True  # GPT-2's; else SentencePiece's, with bytes as tokens of last resort
    normalized: bool = False  # whether tokens are looked for after the normalizer
    changes: dict[str, Any] = field(default_factory=dict[str, Any])  # fields of tokenizer.json
    model: dict[str, Any] = field(default_factory=dict[str, Any])  # fields of its model

    def build(self) -> Tokenizer:
        """The product's adapter of it."""
        return Tokenizer(self.to_json().encode())

    def to_json(self) -> str:
        """What its tokenizer.json holds."""
        return json.dumps(self._file())

    def _file(self) -> dict[str, Any]:
        tokens = [*self.special, *self.added]
        merges = [merge for token in tokens if token.replace("▁", "").isascii() for merge in _merges(token)]
        pieces = dict.fromkeys([*tokens, *self._alphabet(), *(left + right for left, right in merges)])
        model = {"type": "BPE", "vocab": {piece: index for index, piece in enumerate(pieces)}, "merges": merges}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": self.normalized}
        return {
            "version": "1.0",
            "added_tokens": [
                {"id": index, "content": token, "special": token in self.special, **flags}
                for index, token in enumerate(tokens)
            ],
            **(_BYTE_LEVEL if self.has_byte_alphabet else _SENTENCEPIECE),
            **self.changes,
            "model": {**model, "byte_fallback": not self.has_byte_alphabet, **self.model},
        }

    def _alphabet(self) -> list[str]:
        if self.has_byte_alphabet:
            return sorted(pre_tokenizers.ByteLevel.alphabet())
        return ["▁", *map(chr, range(33, 127)), *(f"<0x{byte:02X}>" for byte in range(256))]


def _merges(token: str) -> Iterator[tuple[str, str]]:
    """One letter after the other."""
    for end in range(1, len(token)):
        yield token[:end], token[end]


QWEN = TokenizerKind(
    name="Qwen-VL",
    placeholder="<|image_pad|>",
    template=CHATML % "<|vision_start|><|image_pad|><|vision_end|>",
    special=(
        *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|box_start|>", "<|vision_start|>"),
        *("<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
    ),
    added=("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<think>", "</think>"),
    changes={"normalizer": {"type": "NFC"}},
)
PIXTRAL = TokenizerKind(
    name="Pixtral",
    placeholder="[IMG]",
    template=INSTRUCT,
    special=("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    changes={"pre_tokenizer": {**_BYTE_LEVEL["pre_tokenizer"], "use_regex": False}},  # a text is looked up as a whole
    model={"ignore_merges": True},
)
LLAVA = TokenizerKind(
    name="LLaVA",
    placeholder="<image>",
    template=VICUNA,
    special=("<unk>", "<s>", "</s>", "<image>", "<pad>"),
    has_byte_alphabet=False,
    changes={"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, _SPACES]}},
    model={"unk_token": "<unk>"},
)
INTERNVL = TokenizerKind(
    name="InternVL",
    placeholder="<IMG_CONTEXT>",
    template=CHATML % "<img><IMG_CONTEXT></img>\n",
    special=(
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<img>",
        "</img>",
        "<IMG_CONTEXT>",
        "<quad>",
        "<ref>",
        "<box>",
    ),
)
GEMMA3 = TokenizerKind(
    name="Gemma 3",
    placeholder="<start_of_image>",
    template=GEMMA,
    special=(
        *("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>"),
        *("<end_of_image>", "<image_soft_token>"),
    ),
    added=("\n", "\n\n", "▁▁", "▁▁▁", "<unused0>", "<unused1>", "[multimodal]", "<table>", "</td>", "<strong>"),
    has_byte_alphabet=False,
    model={"unk_token": "<unk>"},
)
FOLDING = TokenizerKind(
    name="one that folds case and width",
    placeholder="<image>",
    template=CHATML % "<image>",
    special=("<|im_start|>", "<|im_end|>", "<image>", "<｜user｜>"),
    normalized=True,
    changes={"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]}},
)
KINDS = (QWEN, PIXTRAL, LLAVA, INTERNVL, GEMMA3, FOLDING)
