from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opsin.core.conversation import Detail, MediaRef
from opsin.core.errors import MediaError, MediaTooLarge, MediaUndecodable
from opsin.llm.pictures import to_url
from opsin.media import data_url
from opsin.media.config import MediaConfig
from opsin.media.loader import MediaLoader, load_data_url
from opsin.media.render import execute, render
from opsin.vision.plan import Size
from opsin.vision.recipe import whole
from tests.corpus.pictures import good_pictures

CONFIG = MediaConfig()
LOADER = MediaLoader(CONFIG)
NOISE = np.random.default_rng(7)


def noise(*shape: int) -> Any:
    return NOISE.integers(0, 256, shape, dtype=np.uint8)


def sent(picture: object) -> bytes:
    """The bytes that arrive at the media loader."""
    return data_url.parse(to_url(picture, LOADER, "p"), "p", 2**30)


def rgb(picture: object) -> bytes:
    """The pixels that a model would see."""
    media = load_data_url(MediaRef(to_url(picture, LOADER, "p"), Detail.AUTO, "p"), CONFIG)
    size = media.header.upright
    return render(media.data, media.header, whole(size))


def test_encoded_pictures_stay_as_they_are(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(noise(9, 7, 3)).save(buffer, "JPEG")
    data = buffer.getvalue()
    file = tmp_path / "one.jpg"
    file.write_bytes(data)
    for same in (data, bytearray(data), memoryview(data), file, str(file), data_url.write("image/jpeg", data)):
        assert sent(same) == data


@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 3), (9, 7, 4)])
def test_arrays_and_images_lose_nothing(shape: tuple[int, ...]) -> None:
    array = noise(*shape)
    image = Image.fromarray(array)
    for picture in (array, array[::-1][::-1], image):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(sent(picture)))), array)
    if shape == (9, 7, 3):
        assert rgb(image) == execute(image, whole(Size(7, 9)))


@pytest.mark.parametrize("case", good_pictures(), ids=lambda case: case.name)
def test_an_opened_file_becomes_the_same_pixels_as_its_bytes(case: Any) -> None:
    assert rgb(Image.open(io.BytesIO(case.data))) == rgb(case.data)


@pytest.mark.parametrize("mode", ["1", "CMYK", "F", "HSV", "I", "LA", "La", "P", "PA", "RGBX", "RGBa", "YCbCr"])
def test_any_mode_can_be_sent(mode: str) -> None:
    image = Image.fromarray(noise(8, 8, 4))
    through = image.convert("LA") if mode == "La" else image.convert("P") if mode == "PA" else image
    assert len(rgb(through.convert(mode))) == 8 * 8 * 3


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (3, "must be a PIL image, bytes, a path, a URL, or a uint8 array; got int"),
        (None, "got NoneType"),
        (noise(8, 8, 3) / 255, "must be uint8 of shape.*got <f8"),
        (noise(3, 8, 8), r"got \|u1 of shape \(3, 8, 8\)"),
        (noise(0, 8, 3), "of shape"),
        ("no/such/file.png", "file.png cannot be read"),
        (Path("/"), "not a regular file"),
    ],
)
def test_what_is_no_picture(picture: object, said: str) -> None:
    with pytest.raises(MediaError, match=said) as caught:
        to_url(picture, LOADER, "multi_modal_data.image.0")
    assert caught.value.param == "multi_modal_data.image.0"


def test_a_broken_lazy_image() -> None:
    buffer = io.BytesIO()
    Image.fromarray(noise(64, 64, 3)).save(buffer, "PNG")
    with pytest.raises(MediaUndecodable):
        to_url(Image.open(io.BytesIO(buffer.getvalue()[:2000])), LOADER, "p")


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "large.png"
    with file.open("wb") as large:
        large.truncate(CONFIG.max_image_bytes + 1)
    with pytest.raises(MediaTooLarge):
        to_url(file, LOADER, "p")
