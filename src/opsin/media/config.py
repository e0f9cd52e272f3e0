"""Limits on pictures and on the workers that decode them. Knows no request, no model, no environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from opsin.media.fetch_config import FetchConfig
from opsin.media.types import ImageFormat, RenderMode

PILLOW_MAX_PIXELS = 178_956_970
"""From here on Pillow itself refuses (twice its ``MAX_IMAGE_PIXELS``), so a higher limit of ours would be a lie."""

ACCEPTED_BY_DEFAULT = (ImageFormat.JPEG, ImageFormat.PNG, ImageFormat.WEBP, ImageFormat.GIF)


def _count(value: object) -> object:
    """vLLM also takes ``{"count": 4}`` beside sizes, which it needs for profiling only."""
    return value.get("count", value) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] any JSON


class LimitPerPrompt(BaseModel):
    """vLLM's ``limit_mm_per_prompt``: how many of a kind one request may hold; 0 refuses it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: Annotated[int, BeforeValidator(_count)] = Field(default=16, ge=0, description="pictures per request")
    video: Annotated[int, BeforeValidator(_count)] = Field(
        default=0, ge=0, description="0: videos are not served yet; more is for vLLM's own words, and stays 0"
    )
    audio: Annotated[int, BeforeValidator(_count)] = Field(default=0, ge=0, description="0: audio is not served")

    @field_validator("audio")
    @classmethod
    def _no_audio(cls, limit: int) -> int:
        if limit:
            raise ValueError("audio is not served: state 0 or nothing here")
        return limit


class MediaConfig(BaseModel):
    """What a picture may cost. Requests cannot raise any of it. Sizes are bytes and pixels, times seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_image_bytes: int = Field(default=10 * 2**20, ge=1)
    """Encoded bytes of one picture, after base64."""
    max_image_pixels: int = Field(default=25_000_000, ge=1, le=PILLOW_MAX_PIXELS)
    """Width x height of one picture."""
    max_image_side: int = Field(default=8192, ge=1)
    """Pixels of its longer side."""
    max_aspect: int = Field(default=100, ge=1)
    """Longer side divided by shorter side."""
    max_decoded_bytes_per_request: int = Field(default=256_000_000, ge=1)
    """Sum over the pictures of a request of width x height x 4, which is what the decoder allocates for RGB."""
    limit_mm_per_prompt: LimitPerPrompt = LimitPerPrompt()
    """What one request may hold, as vLLM has it: {"image": 4}."""
    fetch: FetchConfig = FetchConfig()
    """Pictures that a request names by http or https."""
    allowed_local_media_path: Path | None = None
    """Folder of this machine whose files a request may name by file URL; links in it are not followed."""

    formats: tuple[ImageFormat, ...] = Field(default=ACCEPTED_BY_DEFAULT, min_length=1)
    """Formats that are accepted. Each one more is a decoder more that strangers can attack; bmp, tiff and avif need
    nothing else, heic needs pip install opsin[heif]."""
    max_decoded_bytes_per_image: int = Field(default=100_000_000, ge=1)
    """Width x height x 4 of one picture."""
    max_decoding_bytes: int = Field(default=256_000_000, ge=1)
    """Width x height x 4 of all pictures that are being decoded at one time, in this process; others wait."""
    require_sandbox: bool = False
    """No start where workers cannot have their system calls filtered (seccomp). Without it they are confined as far as
    the machine lets them, and the log says how far."""
    strict_media_type: bool = False
    """Refuse a picture whose bytes are of another format than its media type says, instead of warning of it."""

    render_mode: RenderMode = RenderMode.EXACT
    """How the local engine's pictures are made into tiles: exact, as the model's own processor does, or fast, with
    nearly its pixels in less time, see docs/rendering.md."""
    render_workers: int = Field(default=2, ge=1)
    """Processes that decode pictures."""
    render_timeout_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """Wall time of one picture in a worker; waiting for a free worker does not count."""
    worker_memory_bytes: int = Field(default=2**30, ge=2**20)
    """Address space of a worker beyond what the idle interpreter has. 25 Mpx animated WebP with alpha, the costliest
    accepted picture, needs about 0.6 GB. Enforced on Linux only."""
    worker_max_tasks: int = Field(default=1000, ge=1)
    """Pictures after which a worker is replaced, so that whatever a picture left behind does not live long."""

    @model_validator(mode="after")
    def _one_fits(self) -> MediaConfig:
        """Else a picture that is allowed could not be decoded under the process' own limit."""
        if self.max_decoding_bytes < self.max_decoded_bytes_per_image:
            raise ValueError(
                f"max_decoding_bytes ({self.max_decoding_bytes}) should not be less than max_decoded_bytes_per_image "
                f"({self.max_decoded_bytes_per_image})"
            )
        return self
