"""Encoded pictures by number: drawn, or from a folder. Knows no request."""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from PIL import Image

from opsin.bench.config import BenchConfig, PictureFormat
from opsin.bench.workload import PictureSpec
from opsin.core.errors import ConfigError

_MIME = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif"}


@dataclass(frozen=True, slots=True)
class EncodedPicture:
    """The bytes as they are sent."""

    width: int
    height: int
    mime: str
    data: bytes

    @property
    def sha256(self) -> str:
        """Of the bytes."""
        return hashlib.sha256(self.data).hexdigest()


class PictureSource(Protocol):
    """Where pictures come from. Different numbers give different bytes."""

    @property
    def available(self) -> int | None:
        """How many there are; None when there is no end."""
        ...

    def picture(self, spec: PictureSpec) -> EncodedPicture:
        """One of them. Raises ConfigError if it cannot be read."""
        ...


def source_of(config: BenchConfig) -> PictureSource:
    """Raises ConfigError when the folder holds no pictures, or numpy is needed and missing."""
    if config.picture_dir is not None:
        return Folder(config.picture_dir, config.seed)
    return Drawn(config.format, config.seed)


class Drawn:
    """Photo-like pictures of any size, see :mod:`opsin.bench.photo`."""

    def __init__(self, picture_format: PictureFormat, seed: int) -> None:
        try:
            from opsin.bench.photo import PhotoMaker
        except ModuleNotFoundError:
            raise ConfigError(
                "drawn pictures need numpy: pip install 'opsin[bench]', or send your own with --picture-dir"
            ) from None
        self._format = picture_format
        self._maker = PhotoMaker(seed)

    @property
    def available(self) -> int | None:
        """See PictureSource."""
        return None

    def picture(self, spec: PictureSpec) -> EncodedPicture:
        """See PictureSource."""
        image = self._maker.draw(spec.number, spec.width, spec.height)
        buffer = io.BytesIO()
        match self._format.kind:
            case "jpeg":
                image.save(buffer, "JPEG", quality=self._format.quality)
            case "webp":
                image.convert("RGB").save(buffer, "WEBP", quality=self._format.quality)
            case "png":
                image.convert("RGB").save(buffer, "PNG")
        return EncodedPicture(spec.width, spec.height, self._format.mime, buffer.getvalue())


class Folder:
    """The pictures of a folder, byte for byte, in an order that the seed decides. Files that are alike count once."""

    def __init__(self, folder: Path, seed: int) -> None:
        files = _distinct(sorted(folder.iterdir()) if folder.is_dir() else ())
        if not files:
            raise ConfigError(f"{folder}: expected a folder with JPEG, PNG, WebP or GIF files")
        random.Random(f"{seed} folder").shuffle(files)
        self._files = files

    @property
    def available(self) -> int | None:
        """See PictureSource."""
        return len(self._files)

    def picture(self, spec: PictureSpec) -> EncodedPicture:
        """See PictureSource; sizes are the files' own."""
        file = self._files[spec.number]
        try:
            data = file.read_bytes()
            with Image.open(io.BytesIO(data)) as image:
                return EncodedPicture(*image.size, _MIME[image.format or ""], data)
        except (OSError, KeyError):
            raise ConfigError(f"{file}: expected a JPEG, PNG, WebP or GIF file") from None


_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif"}


def _distinct(files: Sequence[Path]) -> list[Path]:
    by_content = {
        hashlib.sha256(file.read_bytes()).digest(): file for file in files if file.suffix.lower() in _SUFFIXES
    }
    return list(by_content.values())
