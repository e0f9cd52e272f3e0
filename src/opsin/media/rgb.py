"""From any of Pillow's modes to RGB on white, as browsers show a picture. ICC profiles are left alone."""

from __future__ import annotations

from typing import cast

from PIL import Image, ImageChops

_WHITE = (255, 255, 255)

Extents = tuple[int, int, int, int]
"""Left, top, right, bottom."""


def to_rgb(picture: Image.Image) -> Image.Image:
    """The picture in RGB, what is transparent on white, of 16 bits the upper eight."""
    if picture.mode in ("I;16", "I;16B"):
        return _of_grey16(picture)
    if picture.has_transparency_data:
        rgba = picture.convert("RGBA")
        return _on_white(rgba, rgba.getchannel("A"))
    return picture if picture.mode == "RGB" else picture.convert("RGB")  # which would copy it


def within(rgb: Image.Image, extents: Extents) -> Image.Image:
    """The picture with white outside of ``extents``."""
    if extents == (0, 0, *rgb.size):
        return rgb
    canvas = Image.new("RGB", rgb.size, _WHITE)
    canvas.paste(rgb.crop(extents), extents)
    return canvas


def _of_grey16(picture: Image.Image) -> Image.Image:
    """The high byte of each sample: Pillow's own conversion clips, which turns 20000 into white instead of 78."""
    high = 0 if picture.mode.endswith("B") else 1
    high_bytes = Image.frombytes("L", picture.size, picture.tobytes()[high::2])
    transparent_level = cast("int | None", picture.info.get("transparency"))
    if transparent_level is None:
        return high_bytes.convert("RGB")
    return _on_white(high_bytes, _differs(picture, transparent_level))


def _differs(picture: Image.Image, level: int) -> Image.Image:
    """A mask of 0 where the 16-bit sample equals ``level``, else 255. Conversion to L clips, hence both signs."""
    samples = picture.convert("I")
    above = samples.point(lambda sample: sample * 1 - level).convert("L")
    below = samples.point(lambda sample: sample * -1 + level).convert("L")
    return ImageChops.lighter(above, below).point([0] + [255] * 255)


def _on_white(picture: Image.Image, alpha: Image.Image) -> Image.Image:
    canvas = Image.new("RGB", picture.size, _WHITE)
    canvas.paste(picture.convert("RGB"), mask=alpha)
    return canvas
