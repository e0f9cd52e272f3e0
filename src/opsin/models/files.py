"""The JSON files of a checkpoint, typed as they lie on disk. Knows their fields, not what these mean to a model.

Only fields that opsin reads are listed; others are ignored. Field names are Transformers'; where it renamed one, both
names are listed. What a file says about pictures is the knowledge of the family that reads it: see ``Document``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from opsin.core.errors import ConfigError

T = TypeVar("T")

_FIELD_PATH = re.compile(r"at `\$\.?([^`]*)`")

TokenIds = int | list[int] | None


@dataclass(frozen=True, slots=True)
class QuantizationFile:
    """``quantization_config`` of config.json. bitsandbytes used to leave out its name."""

    quant_method: str | None = None
    load_in_4bit: bool = False
    load_in_8bit: bool = False


@dataclass(frozen=True, slots=True)
class TextConfig:
    """``text_config`` of config.json. The number of routed experts has had three names."""

    max_position_embeddings: int | None = None
    num_experts: int | None = None
    num_local_experts: int | None = None
    n_routed_experts: int | None = None
    num_experts_per_tok: int | None = None
    eos_token_id: TokenIds = None
    dtype: str | None = None
    torch_dtype: str | None = None
    quantization_config: QuantizationFile | None = None


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """``vision_config`` of config.json: that there is one. Families read what is in it."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """config.json."""

    model_type: str
    architectures: list[str] | None = None
    text_config: TextConfig | None = None
    vision_config: VisionConfig | None = None
    max_position_embeddings: int | None = None
    image_token_id: int | None = None
    image_token_index: int | None = None
    eos_token_id: TokenIds = None
    dtype: str | None = None
    torch_dtype: str | None = None
    quantization_config: QuantizationFile | None = None
    auto_map: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class GenerationConfigFile:
    """generation_config.json."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    eos_token_id: TokenIds = None


@dataclass(frozen=True, slots=True)
class Edges:
    """A size given by its sides, in pixels."""

    longest_edge: int | None = None
    shortest_edge: int | None = None
    height: int | None = None
    width: int | None = None


@dataclass(frozen=True, slots=True)
class ImageProcessorFile:
    """preprocessor_config.json, or ``image_processor`` inside processor_config.json: the values of pixels."""

    image_mean: list[float] | None = None
    image_std: list[float] | None = None


class ProcessorFile(msgspec.Struct, frozen=True):
    """processor_config.json. ``image_processor`` is JSON, empty where the file holds none."""

    image_processor: msgspec.Raw = msgspec.Raw()  # which only a Struct may hold
    chat_template: str | None = None


@dataclass(frozen=True, slots=True)
class ChatTemplateFile:
    """chat_template.json."""

    chat_template: str


@dataclass(frozen=True, slots=True)
class NamedTemplate:
    """One of several templates of a tokenizer_config.json."""

    name: str
    template: str


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token outside the model's own vocabulary. ``id`` is absent in tokenizer_config.json."""

    content: str
    id: int | None = None
    special: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """tokenizer.json; the ``tokenizers`` library reads the rest."""

    added_tokens: list[AddedToken]


@dataclass(frozen=True, slots=True)
class TokenizerConfigFile:
    """tokenizer_config.json, but for its named tokens, which are keys of any name."""

    chat_template: str | list[NamedTemplate] | None = None
    added_tokens_decoder: dict[str, AddedToken] | None = None


@dataclass(frozen=True, slots=True)
class TekkenToken:
    """A token of tekken.json that no text becomes."""

    token_str: str


@dataclass(frozen=True, slots=True)
class TekkenFile:
    """tekken.json of Mistral's models."""

    special_tokens: list[TekkenToken] | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON file as it lies on disk, for readers that know their own fields of it; ``data`` is None without a file."""

    name: str
    data: bytes | None

    def read(self, schema: type[T]) -> T:
        """The file as ``schema``.

        Raises:
            ConfigError: there is no such file, or a field has another type.
        """
        if self.data is None:
            raise ConfigError(f"{self.name}: missing from the model folder")
        return decode_json(self.data, self.name, schema)

    def read_if_any(self, schema: type[T]) -> T:
        """The same, with the schema's own defaults where there is no file. Raises ConfigError."""
        return decode_json(b"{}" if self.data is None else self.data, self.name, schema)


def document(folder: Path, name: str) -> Document:
    """The file ``name``, whether it is there or not."""
    path = folder / name
    return Document(name, path.read_bytes() if path.is_file() else None)


def read_json(folder: Path, name: str, schema: type[T]) -> T | None:
    """The file as ``schema``, or None where there is none.

    Raises:
        ConfigError: the file is not JSON or a field has another type; the message names both.
    """
    found = document(folder, name)
    return None if found.data is None else found.read(schema)


def require_json(folder: Path, name: str, schema: type[T]) -> T:
    """Like ``read_json`` for a file that has to exist.

    Raises:
        ConfigError: also when it does not.
    """
    return document(folder, name).read(schema)


def decode_json(data: bytes, name: str, schema: type[T]) -> T:
    """JSON bytes of the file ``name`` as ``schema``. Raises ConfigError."""
    try:
        return msgspec.json.decode(data, type=schema)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {_field_problem(str(error))}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: not valid JSON") from error


def convert_json(value: object, name: str, schema: type[T]) -> T:
    """A decoded value of the file ``name`` as ``schema``. Raises ConfigError."""
    try:
        return msgspec.convert(value, type=schema)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {_field_problem(str(error))}") from error


def _field_problem(message: str) -> str:
    """The field out of msgspec's message; the message itself may quote values and is not passed on."""
    place = _FIELD_PATH.search(message)
    prefix = f"{place[1]}." if place and place[1] else ""
    missing = re.match(r"Object missing required field `(\w+)`", message)
    if missing:
        return f"field {prefix}{missing[1]} is missing"
    return f"field {place[1]} has the wrong type" if place and place[1] else "has the wrong shape"
