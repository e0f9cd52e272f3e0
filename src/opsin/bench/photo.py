"""Pictures that cost a server what photographs cost: drawn from the 1/f spectrum of natural scenes. Needs numpy.

White noise defeats JPEG and a plain colour defeats decoding; either would measure something that no user sends. The
amplitude of natural images falls with frequency as 1/f (Field 1987), to the power of 1.2 on average (Tolhurst, Tadmor
and Chao 1992), and their colours are faint beside their brightness.

A field costs a Fourier transform, so each size has two of them. Every picture is the sum of both, each shifted by its
own offset and weighted with the cosine and sine of an angle: a field of the same spectrum and strength, and in no two
pictures is a tile the same. As JPEG of quality 85 it takes 0.30 (1920x1080) to 0.39 (512x512) bytes per pixel, as PNG
2.1 to 2.3.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_BRIGHTNESS_DEVIATION = 48.0
_COLOUR_DEVIATION = 12.0
"""Of 255: typical of photographs in YCbCr."""
_SLOPE = np.float32(1.2)
_NUM_FIELDS = 2

_Field = NDArray[np.float32]
"""Shape (3, height, width): Y, Cb, Cr around 0."""


class PhotoMaker:
    """Draws by number: the same seed, number and size give the same pixels. Fast when one size follows the other."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._fields = functools.lru_cache(maxsize=1)(self._make_fields)

    def draw(self, number: int, width: int, height: int) -> Image.Image:
        """One picture, YCbCr, which JPEG stores as it is."""
        rng = np.random.default_rng((self._seed, 1, number))
        angle = rng.uniform(0, 2 * np.pi)
        weights = (np.cos(angle), np.sin(angle))
        shifts = rng.integers(0, (height, width), size=(_NUM_FIELDS, 2))
        field = sum(
            np.roll(one, tuple(shift), axis=(1, 2)) * np.float32(weight)
            for one, shift, weight in zip(self._fields(width, height), shifts, weights, strict=True)
        )
        centre = np.array([rng.uniform(96, 160), 128, 128], np.float32)[:, None, None]
        pixels = np.clip(field + centre, 0, 255).astype(np.uint8)
        return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)), mode="YCbCr")

    def _make_fields(self, width: int, height: int) -> tuple[_Field, ...]:
        rng = np.random.default_rng((self._seed, 0, width, height))
        return tuple(_field(rng, width, height) for _ in range(_NUM_FIELDS))


def _field(rng: np.random.Generator, width: int, height: int) -> _Field:
    """Gaussian, periodic, no constant part."""
    rows = np.fft.fftfreq(height)[:, None]
    columns = np.fft.rfftfreq(width)[None, :]
    frequency = np.hypot(rows, columns).astype(np.float32)
    frequency[0, 0] = np.inf
    channels = [_channel(rng, frequency, (height, width)) for _ in range(3)]
    deviations = (_BRIGHTNESS_DEVIATION, _COLOUR_DEVIATION, _COLOUR_DEVIATION)
    return np.stack([
        channel * np.float32(deviation / channel.std())
        for channel, deviation in zip(channels, deviations, strict=True)
    ])  # fmt: skip


def _channel(rng: np.random.Generator, frequency: NDArray[np.float32], shape: tuple[int, int]) -> NDArray[np.float32]:
    parts = rng.standard_normal((2, *frequency.shape), dtype=np.float32)
    spectrum = (parts[0] + 1j * parts[1]) / frequency**_SLOPE
    return np.fft.irfft2(spectrum, s=shape).astype(np.float32)
