"""The facts of one checkpoint that the other stages need, read once from its folder.

A card knows files and numbers. It loads no weights, does no arithmetic of a family and imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from opsin.core.errors import ConfigError
from opsin.models.facts import facts_of
from opsin.models.files import (
    AddedToken,
    ChatTemplateFile,
    ConfigFile,
    GenerationConfigFile,
    ImageProcessorFile,
    ProcessorFile,
    TextConfig,
    TokenIds,
    TokenizerConfigFile,
    TokenizerFile,
    convert_json,
    read_json,
    require_json,
)
from opsin.models.fingerprint import processor_fingerprint
from opsin.models.hub import ResolvedModel
from opsin.models.traits import UNKNOWN, Traits, traits_of
from opsin.models.vision_files import VisionFiles, read_vision_files

_TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """The checkpoint's own sampling, neutral where it says nothing. ``temperature`` 0 is greedy, ``top_k`` 0 is off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """Per RGB channel, on pixels already rescaled to 0..1; None where the checkpoint says nothing."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """One checkpoint. ``special_tokens`` maps names (``bos_token`` …) to text, for the chat template."""

    model_id: str
    path: Path
    revision: str | None
    model_type: str
    architecture: str | None
    max_model_len: int | None
    dtype: str | None  # torch's name without its prefix, e.g. "bfloat16"
    image_token_id: int | None
    eos_token_ids: tuple[int, ...]
    generation: GenerationDefaults
    vision: VisionFiles
    normalization: Normalization
    chat_template: str
    special_tokens: Mapping[str, str]
    processor_fingerprint: str  # sha256 hex over processor, chat template and tokenizer files
    quantization: str | None = None  # Transformers' name of the method, e.g. "awq"
    own_code: tuple[str, ...] = ()  # classes that the checkpoint brings along as Python files
    traits: Traits = UNKNOWN

    @property
    def tokenizer_path(self) -> Path:
        """The file that the ``tokenizers`` library reads."""
        return self.path / "tokenizer.json"


def load_card(resolved: ResolvedModel) -> ModelCard:
    """Reads the card of a resolved model.

    Raises:
        ConfigError: a file is missing, is not JSON, or a field has another type; the message names file and field.
    """
    folder = resolved.path
    config = require_json(folder, "config.json", ConfigFile)
    text = config.text_config or TextConfig()
    generation = read_json(folder, "generation_config.json", GenerationConfigFile) or GenerationConfigFile()
    processor = read_json(folder, "processor_config.json", ProcessorFile) or ProcessorFile()
    vision = read_vision_files(folder)
    facts = facts_of(resolved.model_id) if resolved.from_hub else None
    special_tokens = _special_tokens(folder)
    eos_statements = (generation.eos_token_id, config.eos_token_id, text.eos_token_id)
    return ModelCard(
        model_id=resolved.model_id,
        path=folder,
        revision=resolved.revision,
        model_type=config.model_type,
        architecture=config.architectures[0] if config.architectures else None,
        max_model_len=text.max_position_embeddings or config.max_position_embeddings,
        dtype=_dtype(config, text),
        image_token_id=config.image_token_index if config.image_token_id is None else config.image_token_id,
        eos_token_ids=_eos_token_ids(folder, eos_statements, special_tokens),
        generation=_generation_defaults(generation),
        vision=vision,
        normalization=_normalization(vision.image_processor.read(ImageProcessorFile)),
        chat_template=_chat_template(folder, processor),
        special_tokens=special_tokens,
        processor_fingerprint=processor_fingerprint(folder),
        quantization=_quantization(config, text),
        own_code=tuple((config.auto_map or {}).values()),
        traits=facts.traits if facts else traits_of(config),
    )


def _dtype(config: ConfigFile, text: TextConfig) -> str | None:
    name = config.dtype or config.torch_dtype or text.dtype or text.torch_dtype
    return name.removeprefix("torch.") if name else None


def _quantization(config: ConfigFile, text: TextConfig) -> str | None:
    stated = config.quantization_config or text.quantization_config
    if stated is None:
        return None
    if stated.load_in_4bit or stated.load_in_8bit:
        return "bitsandbytes"
    if stated.quant_method is None:
        raise ConfigError("config.json: quantization_config does not name its quant_method")
    return stated.quant_method


def _eos_token_ids(folder: Path, stated: tuple[TokenIds, ...], special_tokens: Mapping[str, str]) -> tuple[int, ...]:
    """The first statement of generation_config.json, config.json (whole, then text); else the tokenizer's own."""
    first = next((ids for ids in stated if ids is not None), None)
    if first is not None:
        return (first,) if isinstance(first, int) else tuple(first)
    eos = special_tokens.get("eos_token")
    added = require_json(folder, "tokenizer.json", TokenizerFile).added_tokens
    return tuple(token.id for token in added if token.content == eos and token.id is not None)


def _generation_defaults(file: GenerationConfigFile) -> GenerationDefaults:
    """``do_sample: false`` is greedy whatever temperature stands beside it; where it is absent nothing is said."""
    stated = {
        "temperature": 0.0 if file.do_sample is False else file.temperature,
        "top_p": file.top_p,
        "min_p": file.min_p,
        "repetition_penalty": file.repetition_penalty,
    }
    return replace(
        GenerationDefaults(top_k=file.top_k or 0),
        **{name: value for name, value in stated.items() if value is not None},
    )


def _normalization(file: ImageProcessorFile) -> Normalization:
    return Normalization(
        mean=tuple(file.image_mean) if file.image_mean else None,
        std=tuple(file.image_std) if file.image_std else None,
    )


def _chat_template(folder: Path, processor: ProcessorFile) -> str:
    """In Transformers' order: the processor's own key, the legacy file, the new file, the tokenizer's key."""
    if processor.chat_template is not None:
        return processor.chat_template
    legacy = read_json(folder, "chat_template.json", ChatTemplateFile)
    if legacy is not None:
        return legacy.chat_template
    source = folder / "chat_template.jinja"
    if source.is_file():
        return _read_text(source)
    tokenizer = read_json(folder, _TOKENIZER_CONFIG, TokenizerConfigFile) or TokenizerConfigFile()
    template = tokenizer.chat_template
    if isinstance(template, list):
        template = next((named.template for named in template if named.name == "default"), None)
    if template is None:
        raise ConfigError("chat_template.jinja: missing, and no other file of the model folder holds a chat template")
    return template


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name}: not UTF-8") from error


def _special_tokens(folder: Path) -> dict[str, str]:
    """Every ``*_token`` of tokenizer_config.json, and the named ones that it nests."""
    fields = read_json(folder, _TOKENIZER_CONFIG, dict[str, object]) or {}
    tokens = _named_tokens(fields)
    for nested in ("extra_special_tokens", "model_specific_special_tokens"):
        value = fields.get(nested)
        # Newer files list the first one without names; those are of no use to a template.
        if value is not None and not isinstance(value, list):
            tokens |= _named_tokens(convert_json(value, _TOKENIZER_CONFIG, dict[str, object]))
    return tokens


def _named_tokens(fields: Mapping[str, object]) -> dict[str, str]:
    # `add_bos_token` and its like are switches, not tokens.
    tokens = {key: value for key, value in fields.items() if key.endswith("_token") and not isinstance(value, bool)}
    return {
        key: value if isinstance(value, str) else convert_json(value, _TOKENIZER_CONFIG, AddedToken).content
        for key, value in tokens.items()
        if value is not None
    }
