"""The model's own Transformers processor, asked what it makes of a picture. Serves nothing: recipes are judged by it.

Its floats are taken back to the levels from 0 to 255 that they were: normalising, rescaling and the order of patches
undone. Knows no recipe and no family of ours.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import transformers
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoImageProcessor, AutoProcessor
from transformers.models.auto import processing_auto
from transformers.utils import logging as transformers_logging

from opsin.core.errors import ConfigError
from opsin.media.types import RenderedPicture

logger = logging.getLogger(__name__)

_Levels = NDArray[np.float32]
"""Shape (tiles, 3, height, width), 0 to 255."""

_ROUNDING = 0.05
"""Of a level: what float32 loses on the way there and back is under a hundredth of it."""


@dataclass(frozen=True, slots=True)
class Made:
    """One picture. ``levels`` is None where tiles have different sizes, ``image_tokens`` where nobody here tells."""

    num_tiles: int
    image_tokens: int | None
    levels: _Levels | None

    def difference(self, rendered: RenderedPicture) -> int | None:
        """The largest of all pixels; None when the tiles are not as many, or not of the same size."""
        ours = np.frombuffer(rendered.pixels, np.uint8)
        shape = (rendered.num_tiles, rendered.tile.height, rendered.tile.width, 3)
        ours = ours.reshape(shape).transpose(0, 3, 1, 2)
        if self.levels is None or ours.shape != self.levels.shape:
            return None
        return math.ceil(float(np.abs(self.levels - ours).max()) - _ROUNDING)


class ProcessorOracle:
    """The processor of one model folder, with Pillow as its backend where it has one. Loads no weights."""

    def __init__(self, folder: Path, model_type: str) -> None:
        """Raises ConfigError when Transformers has no processor for it, or lacks a library for that."""
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        self._images = _image_processor(folder)
        self._processor = _whole_processor(folder)
        self._defaults = _images_kwargs(model_type, self._images)

    def made_of(self, picture: Image.Image) -> Made | None:
        """What becomes of an RGB picture alone in its request; None when the processor refuses its shape."""
        try:
            output = self._images(picture, return_tensors="pt", **self._defaults)
        except ValueError:
            return None
        image_tokens = self._image_tokens(output, picture)
        if "target_sizes" in output:  # MiniCPM-V
            return Made(len(output["target_sizes"]), image_tokens, None)
        levels = self._levels(_tiles(output, self._images))
        return Made(len(levels), image_tokens, levels)

    def _image_tokens(self, output: Any, picture: Image.Image) -> int | None:
        if "image_grid_thw" in output:
            return int(output["image_grid_thw"].prod()) // self._images.merge_size**2
        if "num_soft_tokens_per_image" in output:
            return int(output["num_soft_tokens_per_image"][0])
        if "aspect_ratio_mask" in output:  # Llama 3.2: they stand beside the prompt
            return 0
        if self._processor is None:
            return None
        ids = np.asarray(self._processor(images=picture, text=self._processor.image_token)["input_ids"])
        return int(np.count_nonzero(ids == _image_token_id(self._processor)))

    def _levels(self, pixels: _Levels) -> _Levels:
        images = self._images
        if images.do_normalize:
            mean, std = (np.asarray(each, np.float32)[:, None, None] for each in (images.image_mean, images.image_std))
            pixels = pixels * std + mean
        return pixels / np.float32(images.rescale_factor) if images.do_rescale else pixels


def _image_processor(folder: Path) -> Any:
    load = cast("Any", AutoImageProcessor).from_pretrained  # untyped in the library
    try:
        return load(folder, backend="pil", local_files_only=True)
    except (ImportError, OSError, ValueError) as error:
        raise ConfigError(f"{folder}: Transformers cannot load its image processor: {_first_line(error)}") from error


def _whole_processor(folder: Path) -> Any:
    """With the tokenizer, so that it can count; None where it cannot be loaded, e.g. its videos need torchvision."""
    load = cast("Any", AutoProcessor).from_pretrained
    try:
        return load(folder, backend="pil", local_files_only=True)
    except Exception:  # whatever its tokenizer or its other parts raise: pixels are compared all the same
        logger.debug("the whole processor of %s cannot be loaded", folder, exc_info=True)
        return None


def _images_kwargs(model_type: str, images: Any) -> dict[str, Any]:
    """What the whole processor tells its image processor when the caller says nothing, e.g. whether to cut."""
    try:
        kind = getattr(transformers, cast("Any", processing_auto).PROCESSOR_MAPPING_NAMES[model_type])
        stated = cast("dict[str, Any]", getattr(kind, "images_kwargs", None) or {})
    except (KeyError, ImportError):  # a class that lacks a library says so at every touch
        return {}
    known = images.valid_kwargs.__annotations__.keys() - {"return_tensors"}
    return {name: value for name, value in stated.items() if name in known}


def _image_token_id(processor: Any) -> int:
    """Of the token that features replace; Gemma 3's ``processor.image_token`` is the marker that opens a picture."""
    token = getattr(processor.tokenizer, "image_token", None) or processor.image_token
    return processor.tokenizer.convert_tokens_to_ids(token)


def _tiles(output: Any, images: Any) -> _Levels:
    """Pictures for the encoder, out of each layout that processors have."""
    pixels: _Levels = output["pixel_values"].float().numpy()
    if "image_grid_thw" in output:
        _, rows, columns = output["image_grid_thw"][0].tolist()
        return _of_merged_patches(pixels, rows, columns, images)
    if "image_position_ids" in output:
        return _of_patches(pixels[0], output["image_position_ids"][0].numpy(), images.patch_size)
    if "aspect_ratio_mask" in output:  # filled up to the largest number of tiles
        return pixels[0, 0, : output["num_tiles"][0][0]]
    return pixels.reshape(-1, *pixels.shape[-3:])


def _of_merged_patches(pixels: _Levels, rows: int, columns: int, images: Any) -> _Levels:
    """Qwen-VL and GLM-V: patches in blocks that become a token, a still repeated as frames."""
    side, block = images.patch_size, images.merge_size
    frames = pixels.shape[1] // (3 * side**2)
    pixels = pixels.reshape(rows // block, columns // block, block, block, 3, frames, side, side)[:, :, :, :, :, 0]
    return pixels.transpose(4, 0, 2, 5, 1, 3, 6).reshape(1, 3, rows * side, columns * side)


def _of_patches(pixels: _Levels, positions: NDArray[np.int64], side: int) -> _Levels:
    """Gemma 4: patches in reading order with the channels last, filled up; what fills stands at -1."""
    columns, rows = (int(last) + 1 for last in positions.max(axis=0))
    pixels = pixels[: rows * columns].reshape(rows, columns, side, side, 3)
    return pixels.transpose(4, 0, 2, 1, 3).reshape(1, 3, rows * side, columns * side)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
