"""The facts of one checkpoint that the other stages need, read once from its folder.

A card knows files and numbers. It loads no weights, does no arithmetic of a family and imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from opsin.core.errors import ConfigError
from opsin.models.files import (
    AddedToken,
    ChatTemplateFile,
    ConfigFile,
    Edges,
    GenerationConfigFile,
    ImageProcessorFile,
    ProcessorFile,
    TextConfig,
    TokenIds,
    TokenizerConfigFile,
    TokenizerFile,
    VisionConfig,
    convert_json,
    read_json,
    require_json,
)
from opsin.models.fingerprint import processor_fingerprint
from opsin.models.hub import ResolvedModel

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
class VisionParameters:
    """The image processor's values as the checkpoint states them; lengths in pixels, None where it says nothing.

    ``image_mean`` and ``image_std`` are per RGB channel, on pixels already multiplied by ``rescale_factor``.
    ``resample`` is Pillow's number of the filter (1 is Lanczos). ``patch_size`` and ``scale_factor`` come from the
    model's configuration: a tile gives ``(tile // patch_size)**2 / scale_factor**2`` tokens.
    """

    image_processor_type: str | None
    longest_edge: int | None
    max_tile_edge: int | None
    do_image_splitting: bool
    image_seq_len: int | None
    do_resize: bool
    resample: int | None
    do_rescale: bool
    rescale_factor: float
    do_normalize: bool
    image_mean: tuple[float, ...] | None
    image_std: tuple[float, ...] | None
    patch_size: int | None
    scale_factor: float | None


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
    vision: VisionParameters
    chat_template: str
    special_tokens: Mapping[str, str]
    processor_fingerprint: str  # sha256 hex over processor, chat template and tokenizer files
    quantization: str | None = None  # Transformers' name of the method, e.g. "awq"
    own_code: tuple[str, ...] = ()  # classes that the checkpoint brings along as Python files

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
        image_token_id=config.image_token_id,
        eos_token_ids=_eos_token_ids(folder, eos_statements, special_tokens),
        generation=_generation_defaults(generation),
        vision=_vision_parameters(_image_processor(folder, processor), processor, config),
        chat_template=_chat_template(folder, processor),
        special_tokens=special_tokens,
        processor_fingerprint=processor_fingerprint(folder),
        quantization=_quantization(config, text),
        own_code=tuple((config.auto_map or {}).values()),
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


def _image_processor(folder: Path, processor: ProcessorFile) -> ImageProcessorFile:
    """The nested form wins, as in Transformers."""
    if processor.image_processor is not None:
        return processor.image_processor
    return require_json(folder, "preprocessor_config.json", ImageProcessorFile)


def _vision_parameters(file: ImageProcessorFile, processor: ProcessorFile, config: ConfigFile) -> VisionParameters:
    size = file.size if isinstance(file.size, Edges) else Edges()
    return VisionParameters(
        image_processor_type=file.image_processor_type,
        longest_edge=size.longest_edge,
        max_tile_edge=file.max_image_size.longest_edge if file.max_image_size else None,
        do_image_splitting=file.do_image_splitting,
        image_seq_len=processor.image_seq_len,
        do_resize=file.do_resize,
        resample=file.resample,
        do_rescale=file.do_rescale,
        rescale_factor=file.rescale_factor,
        do_normalize=file.do_normalize,
        image_mean=tuple(file.image_mean) if file.image_mean else None,
        image_std=tuple(file.image_std) if file.image_std else None,
        patch_size=(config.vision_config or VisionConfig()).patch_size,
        scale_factor=config.scale_factor,
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
