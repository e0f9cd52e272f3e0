"""Drawn pictures are photo-like, seeded and all different; those of a folder are sent as they are."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opsin.bench.config import PictureFormat, checked
from opsin.bench.photo import PhotoMaker
from opsin.bench.pictures import Drawn, EncodedPicture, Folder, source_of
from opsin.bench.workload import PictureSpec
from opsin.core.errors import ConfigError

JPEG = PictureFormat(kind="jpeg", quality=85)


def drawn(number: int, *, seed: int = 0, picture_format: PictureFormat = JPEG) -> EncodedPicture:
    return Drawn(picture_format, seed).picture(PictureSpec(number, 256, 192))


@pytest.mark.parametrize("kind", ["jpeg", "webp", "png"])
def test_a_drawn_picture_is_what_it_says(kind: str) -> None:
    picture = drawn(
        3, picture_format=PictureFormat.model_validate({"kind": kind, "quality": None if kind == "png" else 80})
    )
    with Image.open(io.BytesIO(picture.data)) as image:
        assert (image.format, image.size) == (kind.upper(), (256, 192))
    assert (picture.width, picture.height, picture.mime) == (256, 192, f"image/{kind}")


def test_seed_and_number_decide() -> None:
    assert drawn(1) == drawn(1)
    assert len({drawn(number, seed=seed).sha256 for number in range(4) for seed in range(3)}) == 12


def test_no_tile_of_two_pictures_is_alike() -> None:
    maker = PhotoMaker(0)
    pictures = [np.asarray(maker.draw(number, 256, 256)) for number in range(12)]
    tiles = {
        picture[row : row + 64, column : column + 64].tobytes()
        for picture in pictures
        for row in range(0, 256, 64)
        for column in range(0, 256, 64)
    }
    assert len(tiles) == 12 * 16


def test_the_spectrum_falls_as_that_of_photographs() -> None:
    """Amplitude over frequency in a log-log plot: a line of slope -1.2 (clipping flattens it a little)."""
    pixels = np.asarray(PhotoMaker(0).draw(0, 512, 512), dtype=np.float64)[:, :, 0]
    amplitude = np.abs(np.fft.fft2(pixels - pixels.mean()))
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(512), np.fft.fftfreq(512)))
    bands = [(frequency > low) & (frequency <= 2 * low) for low in (0.01, 0.02, 0.04, 0.08, 0.16)]
    slope = np.polyfit(
        [np.log(frequency[band].mean()) for band in bands], [np.log(amplitude[band].mean()) for band in bands], 1
    )[0]
    assert -1.35 < slope < -1.05


def test_it_costs_as_many_bytes_as_a_photograph() -> None:
    picture = Drawn(JPEG, 0).picture(PictureSpec(0, 512, 512))
    assert 0.2 < len(picture.data) / 512**2 < 0.5


def test_a_folder_sends_files_byte_for_byte_and_copies_once(tmp_path: Path) -> None:
    red, blue = (Image.new("RGB", (10, 20), colour) for colour in ("red", "blue"))
    red.save(tmp_path / "a.png")
    red.save(tmp_path / "copy.png")
    blue.save(tmp_path / "b.jpg")
    (tmp_path / "notes.txt").write_text("no picture")
    folder = Folder(tmp_path, 0)
    assert folder.available == 2
    pictures = {folder.picture(PictureSpec(number, 1, 1)).data for number in range(2)}
    assert pictures == {(tmp_path / "a.png").read_bytes(), (tmp_path / "b.jpg").read_bytes()}
    assert folder.picture(PictureSpec(0, 1, 1)).width == 10


def test_a_folder_without_pictures(tmp_path: Path) -> None:
    for wrong in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ConfigError, match="expected a folder with JPEG, PNG, WebP or GIF files"):
            source_of(checked({"url": "http://h", "picture_dir": wrong}))


def test_a_file_that_is_no_picture(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(ConfigError, match=r"broken\.png: expected"):
        Folder(tmp_path, 0).picture(PictureSpec(0, 1, 1))
