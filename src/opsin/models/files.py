"""The JSON files of a checkpoint, typed as they lie on disk. Knows their fields, not what these mean to a model.

Only fields that opsin reads are listed; others are ignored. Field names are Transformers'; where it renamed one, both
names are listed.
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
    """``text_config`` of config.json."""

    max_position_embeddings: int | None = None
    eos_token_id: TokenIds = None
    dtype: str | None = None
    torch_dtype: str | None = None
    quantization_config: QuantizationFile | None = None


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """``vision_config`` of config.json."""

    patch_size: int | None = None


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """config.json."""

    model_type: str
    architectures: list[str] | None = None
    text_config: TextConfig | None = None
    vision_config: VisionConfig | None = None
    scale_factor: float | None = None
    max_position_embeddings: int | None = None
    image_token_id: int | None = None
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
    """preprocessor_config.json, or ``image_processor`` inside processor_config.json."""

    image_processor_type: str | None = None
    size: Edges | int | None = None
    max_image_size: Edges | None = None
    do_image_splitting: bool = True
    do_resize: bool = True
    resample: int | None = None
    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    do_normalize: bool = True
    image_mean: list[float] | None = None
    image_std: list[float] | None = None


@dataclass(frozen=True, slots=True)
class ProcessorFile:
    """processor_config.json."""

    image_processor: ImageProcessorFile | None = None
    image_seq_len: int | None = None
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


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """tokenizer.json; the ``tokenizers`` library reads the rest."""

    added_tokens: list[AddedToken]


@dataclass(frozen=True, slots=True)
class TokenizerConfigFile:
    """tokenizer_config.json, but for its named tokens, which are keys of any name."""

    chat_template: str | list[NamedTemplate] | None = None


def read_json(folder: Path, name: str, schema: type[T]) -> T | None:
    """The file as ``schema``, or None where there is none.

    Raises:
        ConfigError: the file is not JSON or a field has another type; the message names both.
    """
    path = folder / name
    if not path.is_file():
        return None
    return decode_json(path.read_bytes(), name, schema)


def require_json(folder: Path, name: str, schema: type[T]) -> T:
    """Like ``read_json`` for a file that has to exist.

    Raises:
        ConfigError: also when it does not.
    """
    found = read_json(folder, name, schema)
    if found is None:
        raise ConfigError(f"{name}: missing from the model folder")
    return found


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
