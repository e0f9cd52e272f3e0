"""Settings of how pictures become tokens."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from opsin.core.conversation import PixelBounds


class SizeBounds(BaseModel):
    """``size`` as the processors of Qwen-VL and GLM-V have it: pixels in total, over all frames."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shortest_edge: int | None = Field(default=None, ge=1, description="the same as min_pixels, over all frames")
    longest_edge: int | None = Field(default=None, ge=1, description="the same as max_pixels, over all frames")


class ProcessorKwargs(BaseModel):
    """vLLM's ``mm_processor_kwargs``, as far as they only lower what a picture may cost."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_pixels: int | None = Field(
        default=None, ge=1, description="smaller pictures are enlarged to it; never above the checkpoint's own"
    )
    max_pixels: int | None = Field(
        default=None, ge=1, description="larger pictures are scaled down to it; never above the checkpoint's own"
    )
    size: SizeBounds = SizeBounds()
    do_image_splitting: bool | None = Field(default=None, description="whether detail auto cuts pictures into tiles")

    @property
    def bounds(self) -> PixelBounds:
        """What a request may ask for as well."""
        return PixelBounds(
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels,
            shortest_edge=self.size.shortest_edge,
            longest_edge=self.size.longest_edge,
        )
