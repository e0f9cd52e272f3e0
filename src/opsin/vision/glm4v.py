"""GLM-4.1V, 4.5V and 4.6V: Qwen's rule over a still of two frames, after tiny pictures were enlarged.

The arithmetic is that of Transformers' ``image_processing_pil_glm4v.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from opsin.models.files import Edges
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Size
from opsin.vision.qwen_vl import QwenVLFamily
from opsin.vision.reading import filter_of, positive
from opsin.vision.recipe import Filter
from opsin.vision.smart_resize import check_ratio, smart_resize

_MIN_PIXELS = 112 * 112
_MAX_PIXELS = 28 * 28 * 15000
_BOUNDS = Edges(shortest_edge=_MIN_PIXELS, longest_edge=_MAX_PIXELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Glm4vFamily(QwenVLFamily):
    """The rule with one checkpoint's parameters."""

    name: str = "glm4v"
    num_frames: int = 2
    min_pixels: int = _MIN_PIXELS
    max_pixels: int = _MAX_PIXELS

    def resized(self, size: Size) -> Size:
        """The size that the encoder sees. Raises MediaError."""
        enlarged = _enlarged(size, self.factor)
        check_ratio(size, enlarged)
        return smart_resize(enlarged, self.factor, self.min_pixels, self.max_pixels, self.num_frames)


def _enlarged(size: Size, factor: int) -> Size:
    """At least ``factor`` on both sides; the last step truncates, as in the processor."""
    if size.width >= factor and size.height >= factor:
        return size
    scale = max(factor / size.height, factor / size.width)
    return Size(int(size.width * scale), int(size.height * scale))


@dataclass(frozen=True, slots=True)
class _ImageProcessor:
    patch_size: int = 14
    merge_size: int = 2
    temporal_patch_size: int = 2
    size: Edges = _BOUNDS


def from_files(files: VisionFiles) -> Glm4vFamily:
    """The family of a checkpoint. Raises ConfigError."""
    document = files.image_processor
    stated = document.read(_ImageProcessor)
    return Glm4vFamily(
        name=files.model_type,
        patch_size=positive(stated.patch_size, document, "patch_size"),
        merge_size=positive(stated.merge_size, document, "merge_size"),
        num_frames=positive(stated.temporal_patch_size, document, "temporal_patch_size"),
        min_pixels=positive(stated.size.shortest_edge, document, "size.shortest_edge"),
        max_pixels=positive(stated.size.longest_edge, document, "size.longest_edge"),
        filter=filter_of(document, Filter.BICUBIC),
    )
