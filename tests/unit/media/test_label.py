from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from opsin.core.conversation import Detail, MediaRef
from opsin.core.errors import Code, MediaError
from opsin.core.warnings import AnswerWarning, WarningCode
from opsin.media.config import ACCEPTED_BY_DEFAULT, MediaConfig
from opsin.media.label import contradicts, label_warnings
from opsin.media.lift import MIN_URL_BYTES, lift
from opsin.media.loader import MediaLoader
from opsin.media.types import ImageFormat, LiftedMedia
from tests.corpus.pictures import data_url, encoded, scene

PNG = encoded(scene(size=(640, 480)), "png")
STRICT = MediaConfig(strict_media_type=True)
WRONG = "image/x-secret; name=secret"

Way = Callable[[str], tuple[MediaRef, LiftedMedia]]


@pytest.mark.parametrize(
    "stated", ["image/png", "IMAGE/PNG", " image/png ", "image/x-png", "", "image/*", "application/octet-stream"]
)
def test_what_does_not_contradict(stated: str) -> None:
    assert not contradicts(stated, ImageFormat.PNG)


@pytest.mark.parametrize("stated", ["image/jpeg", "text/html", "text/plain", "image/svg+xml", "png", "image/png2"])
def test_what_contradicts(stated: str) -> None:
    assert contradicts(stated, ImageFormat.PNG)


@pytest.mark.parametrize(
    ("stated", "image_format"),
    [
        ("image/jpg", ImageFormat.JPEG),
        ("image/pjpeg", ImageFormat.JPEG),
        ("image/x-ms-bmp", ImageFormat.BMP),
        ("image/heif", ImageFormat.HEIC),
        *((image_format.mime, image_format) for image_format in ImageFormat),
    ],
)
def test_other_names_and_its_own(stated: str, image_format: ImageFormat) -> None:
    assert not contradicts(stated, image_format)


def _in_place(url: str) -> tuple[MediaRef, LiftedMedia]:
    return MediaRef(url, Detail.AUTO, "here"), {}


def _lifted(url: str) -> tuple[MediaRef, LiftedMedia]:
    """As a worker hands it over."""
    assert len(url) > MIN_URL_BYTES
    body = json.dumps({"url": url}).encode()
    return MediaRef("lifted:0", Detail.AUTO, "here"), lift(body, "lifted", 2**20, ACCEPTED_BY_DEFAULT).media


@pytest.mark.parametrize("way", [_in_place, _lifted])
async def test_a_wrong_label_is_a_warning_or_where_that_is_set_an_error(way: Way) -> None:
    ref, lifted = way(data_url(PNG, WRONG))
    media = await MediaLoader(MediaConfig()).load([ref], lifted)
    message = "The picture's bytes are image/png, its stated media type is another one."
    assert list(label_warnings(media)) == [AnswerWarning(WarningCode.MEDIA_TYPE_MISMATCH, message, "here")]
    with pytest.raises(MediaError) as caught:
        await MediaLoader(STRICT).load([ref], lifted)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, Code.MEDIA_TYPE_MISMATCH, "here")
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("way", [_in_place, _lifted])
async def test_a_right_label_is_nothing_to_tell(way: Way) -> None:
    ref, lifted = way(data_url(PNG, "image/png;name=a"))
    assert list(label_warnings(await MediaLoader(STRICT).load([ref], lifted))) == []
