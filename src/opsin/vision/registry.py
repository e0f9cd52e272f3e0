"""Which family counts and cuts for a model type. A new family is a new entry here and a file beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from opsin.core.errors import ConfigError
from opsin.models.card import ModelCard, VisionParameters
from opsin.vision.idefics3 import Idefics3Family, Markers
from opsin.vision.plan import Family

_LANCZOS = 1  # PIL.Image.Resampling.LANCZOS, the only filter of RenderRecipe


def family_for(card: ModelCard) -> Family:
    """The family of a checkpoint, with its parameters.

    Raises:
        ConfigError: the model type has no family here, or the checkpoint's values contradict the family's rule.
    """
    build = _FAMILIES.get(card.model_type)
    if build is None:
        supported = ", ".join(sorted(_FAMILIES))
        raise ConfigError(f"model_type {card.model_type}: no visual-token rule; supported: {supported}")
    return build(card)


def _idefics3(card: ModelCard) -> Family:
    return _tiled(card, Markers())  # Idefics3Processor fixes its marker tokens


def _smolvlm(card: ModelCard) -> Family:
    """SmolVLMProcessor takes its marker tokens from the tokenizer where that names them."""
    default = Markers()
    tokens = card.special_tokens
    return _tiled(
        card,
        Markers(
            fake=tokens.get("fake_image_token", default.fake),
            overview=tokens.get("global_image_token", default.overview),
            image=tokens.get("image_token", default.image),
        ),
    )


def _tiled(card: ModelCard, markers: Markers) -> Idefics3Family:
    vision = card.vision
    if not vision.do_resize:
        raise ConfigError("image processor: do_resize is false; tiles then have no fixed size")
    if vision.resample not in (None, _LANCZOS):
        raise ConfigError(f"image processor: resample is {vision.resample}, supported is {_LANCZOS} (Lanczos)")
    tile_side = _positive(vision.max_tile_edge, "max_image_size.longest_edge")
    return Idefics3Family(
        name=card.model_type,
        longest_edge=_positive(vision.longest_edge, "size.longest_edge"),
        tile_side=tile_side,
        tokens_per_tile=_tokens_per_tile(vision, tile_side),
        do_image_splitting=vision.do_image_splitting,
        markers=markers,
    )


def _positive(value: int | None, field: str) -> int:
    if value is None or value < 1:
        raise ConfigError(f"image processor: {field} is {value}, a positive number of pixels is needed")
    return value


def _tokens_per_tile(vision: VisionParameters, tile_side: int) -> int:
    """``image_seq_len``, which must be what the model's encoder and connector yield for a tile."""
    stated = vision.image_seq_len
    if vision.patch_size is None or vision.scale_factor is None:
        if stated is None:
            raise ConfigError("processor_config.json: image_seq_len is missing and config.json does not give it either")
        return stated
    yielded = int((tile_side // vision.patch_size) ** 2 / vision.scale_factor**2)
    if stated not in (None, yielded):
        raise ConfigError(f"processor_config.json: image_seq_len is {stated}, but the model makes {yielded} of a tile")
    return yielded


_FAMILIES: Mapping[str, Callable[[ModelCard], Family]] = {"idefics3": _idefics3, "smolvlm": _smolvlm}
