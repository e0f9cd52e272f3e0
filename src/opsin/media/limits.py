"""Limits on what headers declare, checked before anything is decoded. Messages name the limit and the value."""

from __future__ import annotations

from collections.abc import Iterable

from opsin.core.errors import Code, MediaError, MediaTooLarge, TooManyImages
from opsin.media.config import MediaConfig
from opsin.media.types import ImageHeader

DECODED_BYTES_PER_PIXEL = 4
"""Pillow stores RGB in four bytes."""


def check_count(num_images: int, config: MediaConfig) -> None:
    """Raises TooManyImages when a request names more pictures than allowed."""
    limit = config.limit_mm_per_prompt.image
    if num_images > limit:
        raise TooManyImages(
            f"The request holds {num_images} pictures; the limit is {limit} (limit_mm_per_prompt, image)."
        )


def check_bytes(num_bytes: int, config: MediaConfig, param: str | None) -> None:
    """Raises MediaTooLarge when a picture has too many encoded bytes."""
    if num_bytes > config.max_image_bytes:
        raise MediaTooLarge(
            f"The picture has {num_bytes} bytes; the limit is {config.max_image_bytes} (max_image_bytes).", param=param
        )


def decoded_bytes(header: ImageHeader) -> int:
    """What a picture takes while it is decoded."""
    return header.size.width * header.size.height * DECODED_BYTES_PER_PIXEL


def check_size(header: ImageHeader, config: MediaConfig, param: str | None) -> None:
    """Raises MediaTooLarge for too long a side or too many pixels or bytes, MediaError for too narrow a picture."""
    width, height = header.size.width, header.size.height
    longer, shorter = max(width, height), min(width, height)
    declared = f"The picture is {width} x {height} pixels"
    if longer > config.max_image_side:
        raise MediaTooLarge(
            f"{declared}; the limit on a side is {config.max_image_side} (max_image_side).", param=param
        )
    if width * height > config.max_image_pixels:
        raise MediaTooLarge(
            f"{declared}, in total {width * height}; the limit is {config.max_image_pixels} (max_image_pixels).",
            param=param,
        )
    if decoded_bytes(header) > config.max_decoded_bytes_per_image:
        raise MediaTooLarge(
            f"{declared} and takes {decoded_bytes(header)} bytes decoded; the limit is "
            f"{config.max_decoded_bytes_per_image} (max_decoded_bytes_per_image).",
            param=param,
        )
    if longer > shorter * config.max_aspect:
        raise MediaError(
            f"{declared}; one side may be at most {config.max_aspect} times the other (max_aspect).",
            code=Code.IMAGE_ASPECT_RATIO,
            param=param,
        )


def check_decoded_bytes(headers: Iterable[ImageHeader], config: MediaConfig) -> None:
    """Raises MediaTooLarge when the pictures of one request would take too much memory together."""
    total = sum(map(decoded_bytes, headers))
    if total > config.max_decoded_bytes_per_request:
        raise MediaTooLarge(
            f"The pictures of the request take {total} bytes decoded; the limit is "
            f"{config.max_decoded_bytes_per_request} (max_decoded_bytes_per_request)."
        )
