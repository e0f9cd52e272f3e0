"""The media type that a sender states for a picture. It never decides anything; it can only contradict the bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from opsin.core.errors import Code, MediaError
from opsin.core.warnings import AnswerWarning, WarningCode
from opsin.media.types import Glance, ImageFormat, MediaBytes

_SAYS_NOTHING = frozenset({"", "image/*", "*/*", "application/octet-stream", "binary/octet-stream"})
"""What senders state that do not know; the last is S3's."""

_ALIASES = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
    "image/x-bmp": "image/bmp",
    "image/x-ms-bmp": "image/bmp",
    "image/heif": "image/heic",
}


def contradicts(media_type: str, image_format: ImageFormat) -> bool:
    """Whether this media type, without parameters, names another format."""
    stated = media_type.strip().lower()
    return stated not in _SAYS_NOTHING and _ALIASES.get(stated, stated) != image_format.mime


def labelled(media: MediaBytes, media_type: str) -> MediaBytes:
    """The picture, with what its sender calls it."""
    return replace(media, mislabelled=contradicts(media_type, media.header.format))


def check_label(media: MediaBytes, *, strict: bool) -> MediaBytes:
    """The same picture. Raises MediaError for a wrong label if ``strict``."""
    if media.mislabelled and strict:
        raise MediaError(f"{_found(media)} (strict_media_type).", code=Code.MEDIA_TYPE_MISMATCH, param=media.param)
    return media


def label_warnings(media: Sequence[MediaBytes | Glance]) -> Iterator[AnswerWarning]:
    """One for each picture with a wrong label."""
    for picture in media:
        if picture.mislabelled:
            yield AnswerWarning(WarningCode.MEDIA_TYPE_MISMATCH, f"{_found(picture)}.", picture.param)


def _found(media: MediaBytes | Glance) -> str:
    return f"The picture's bytes are {media.header.format.mime}, its stated media type is another one"
