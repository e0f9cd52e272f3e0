"""Limits on pictures and on the workers that decode them. Knows no request, no model, no environment."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

PILLOW_MAX_PIXELS = 178_956_970
"""From here on Pillow itself refuses (twice its ``MAX_IMAGE_PIXELS``), so a higher limit of ours would be a lie."""


class MediaConfig(BaseModel):
    """What a picture may cost. Requests cannot raise any of it. Sizes are bytes and pixels, times seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_image_bytes: int = Field(default=10 * 2**20, ge=1)
    """Encoded bytes of one picture, after base64."""
    max_image_pixels: int = Field(default=25_000_000, ge=1, le=PILLOW_MAX_PIXELS)
    max_image_side: int = Field(default=8192, ge=1)
    max_aspect: int = Field(default=100, ge=1)
    """Longer side divided by shorter side."""
    max_decoded_bytes_per_request: int = Field(default=256_000_000, ge=1)
    """Sum over the pictures of a request of width x height x 4, which is what the decoder allocates for RGB."""
    limit_images: int = Field(default=16, ge=0)
    """Pictures per request (``limit_mm_per_prompt`` of ``image``); 0 refuses pictures."""

    render_workers: int = Field(default=2, ge=1)
    render_timeout_s: float = Field(default=10.0, gt=0)
    """Wall time of one picture in a worker; waiting for a free worker does not count."""
    worker_memory_bytes: int = Field(default=2**30, ge=2**20)
    """Address space of a worker beyond what the idle interpreter has. 25 Mpx animated WebP with alpha, the costliest
    accepted picture, needs about 0.6 GB. Enforced on Linux only."""
    worker_max_tasks: int = Field(default=1000, ge=1)
    """Pictures after which a worker is replaced, so that whatever a picture left behind does not live long."""
