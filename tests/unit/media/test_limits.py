from __future__ import annotations

import pytest

from opsin.core.errors import MediaError, MediaTooLarge, TooManyImages
from opsin.media import limits
from opsin.media.config import MediaConfig
from opsin.media.types import ImageFormat, ImageHeader
from opsin.vision.plan import Size

CONFIG = MediaConfig()


def header(width: int, height: int) -> ImageHeader:
    return ImageHeader(ImageFormat.PNG, Size(width, height), 1, 1)


@pytest.mark.parametrize("size", [(1, 1), (1, 100), (100, 1), (8192, 3051), (5000, 5000), (8192, 82)])
def test_sizes_within_the_limits(size: tuple[int, int]) -> None:
    limits.check_size(header(*size), CONFIG, "p")


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((8193, 1000), r"8193 x 1000 pixels; the limit on a side is 8192"),
        ((1000, 8193), r"the limit on a side is 8192"),
        ((5000, 5001), r"in total 25005000; the limit is 25000000"),
    ],
)
def test_sizes_beyond_the_limits(size: tuple[int, int], message: str) -> None:
    with pytest.raises(MediaTooLarge, match=message) as caught:
        limits.check_size(header(*size), CONFIG, "p")
    assert caught.value.param == "p"


def test_decoded_bytes_of_a_picture() -> None:
    config = CONFIG.model_copy(update={"max_decoded_bytes_per_image": 4_000_000})
    limits.check_size(header(1000, 1000), config, "p")
    with pytest.raises(MediaTooLarge, match=r"4004000 bytes decoded; the limit is 4000000 \(max_decoded_bytes_per_im"):
        limits.check_size(header(1000, 1001), config, "p")


@pytest.mark.parametrize("size", [(1, 101), (101, 1), (8000, 79)])
def test_too_narrow(size: tuple[int, int]) -> None:
    with pytest.raises(MediaError, match="100 times") as caught:
        limits.check_size(header(*size), CONFIG, "p")
    assert (caught.value.status, caught.value.code) == (400, "image_aspect_ratio")


def test_count() -> None:
    limits.check_count(16, CONFIG)
    with pytest.raises(TooManyImages, match=r"17 pictures; the limit is 16 \(limit_mm_per_prompt"):
        limits.check_count(17, CONFIG)


def test_bytes() -> None:
    limits.check_bytes(10 * 2**20, CONFIG, "p")
    with pytest.raises(MediaTooLarge, match=r"10485761 bytes; the limit is 10485760"):
        limits.check_bytes(10 * 2**20 + 1, CONFIG, "p")


def test_decoded_bytes_of_a_request() -> None:
    limits.check_decoded_bytes([header(4000, 4000)] * 4, CONFIG)
    with pytest.raises(MediaTooLarge, match=r"256016000 bytes decoded; the limit is 256000000"):
        limits.check_decoded_bytes([header(4000, 4000)] * 3 + [header(4000, 4001)], CONFIG)
