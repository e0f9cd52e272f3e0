"""What families share when they read a checkpoint's files and refuse a picture."""

from __future__ import annotations

from dataclasses import dataclass

from opsin.core.errors import Code, ConfigError, MediaError
from opsin.models.files import Document, Edges
from opsin.vision.recipe import Colour, Filter
from opsin.vision.size import Size

CLIP_GREY: Colour = (122, 116, 104)
"""CLIP's mean, see ``background``."""

LOW_PIXELS = 512 * 512
"""``detail: low`` where a picture keeps its own shape: the size to which OpenAI's ``low`` scales."""


@dataclass(frozen=True, slots=True)
class VisionTower:
    """``vision_config`` of config.json, as far as tiles need it."""

    model_type: str | None = None
    patch_size: int | list[int] | None = None


UNKNOWN_TOWER = VisionTower()


@dataclass(frozen=True, slots=True)
class TowerConfig:
    """config.json of a model with one encoder."""

    vision_config: VisionTower = UNKNOWN_TOWER


@dataclass(frozen=True, slots=True)
class _Resampling:
    do_resize: bool | None = None
    resample: int | None = None


@dataclass(frozen=True, slots=True)
class _Mean:
    image_mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)


_FILTERS = (Filter.NEAREST, Filter.LANCZOS, Filter.BILINEAR, Filter.BICUBIC, Filter.BOX, Filter.HAMMING)
"""By their number in Pillow, which is what files state."""


def filter_of(document: Document, default: Filter) -> Filter | None:
    """How the checkpoint's image processor resizes, None where it does not, or by no filter of Pillow's.

    ``default`` is the class's own. Raises ConfigError.
    """
    stated = document.read(_Resampling)
    if stated.do_resize is False:
        return None
    if stated.resample is None:
        return default
    return _FILTERS[stated.resample] if 0 <= stated.resample < len(_FILTERS) else None


def background(document: Document) -> Colour:
    """The colour on which LLaVA's processors square a picture: ``image_mean`` in whole levels. Raises ConfigError."""
    red, green, blue = document.read(_Mean).image_mean
    return int(red * 255), int(green * 255), int(blue * 255)


def positive(value: int | None, document: Document, field: str) -> int:
    """``value``, if it is a length or a number of things. Raises ConfigError."""
    if value is None or value < 1:
        raise ConfigError(f"{document.name}: {field} is {value}, a positive number is needed")
    return value


def square(size: Edges | None, default: int, document: Document) -> int:
    """The side of a square tile, from ``size.height`` and ``size.width``. Raises ConfigError for another shape."""
    if size is None:
        return default
    if size.height != size.width:
        raise ConfigError(f"{document.name}: size is {size.width} x {size.height}, a square is needed")
    return positive(size.height, document, "size.height")


def patch_side(tower: VisionTower, default: int, document: Document) -> int:
    """The side of a square patch of the encoder, in pixels. Raises ConfigError."""
    stated = tower.patch_size
    return positive(default if stated is None else _first(stated), document, "vision_config.patch_size")


def refuse_shape(size: Size, limit: str) -> MediaError:
    """For a picture that the model's own processor does not take."""
    return MediaError(
        f"The picture is {size.width} x {size.height} pixels; this model {limit}.", code=Code.IMAGE_ASPECT_RATIO
    )


def _first(value: int | list[int]) -> int:
    return value if isinstance(value, int) else value[0]
