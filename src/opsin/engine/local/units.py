"""Cuts the pictures of a request into encoder units and names each by its pixels. Knows no torch and no cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from opsin.engine.local.messages import PictureData, Tiles
from opsin.engine.local.sequence import Unit
from opsin.engine.local.traits import EncoderUnit, FamilyTraits


def units_of(scope: str, picture: PictureData, index: int, traits: FamilyTraits) -> list[Unit]:
    """The units of a picture that came with pixels, the ``index``-th of its request.

    Raises:
        ValueError: the pixels are not as many as they should be, or the image tokens are not shared out evenly.
    """
    assert picture.tiles is not None
    pieces = list(_tiles(picture.tiles)) if traits.unit is EncoderUnit.TILE else [_whole(picture.tiles)]
    original = picture.tiles.original if traits.drops_padding else (0, 0)
    keys = [_key(scope, original, piece) for piece in pieces]
    return _units(picture, index, list(zip(keys, pieces, strict=True)))


def leased_units_of(picture: PictureData, index: int, unit_keys: tuple[str, ...]) -> list[Unit]:
    """The units of a picture whose features are there already."""
    return _units(picture, index, [(key, None) for key in unit_keys])


def _units(picture: PictureData, index: int, pieces: list[tuple[str, Tiles | None]]) -> list[Unit]:
    num_tokens, rest = divmod(picture.image_tokens, len(pieces))
    if rest or not num_tokens:
        raise ValueError(f"{picture.image_tokens} image tokens do not fit {len(pieces)} units")
    share = 1 / len(pieces)
    return [
        Unit(key=key, picture=index, share=share, num_tokens=num_tokens, tiles=tiles) for key, tiles in pieces
    ]  # fmt: skip


def _tiles(tiles: Tiles) -> Iterator[Tiles]:
    size = len(_whole(tiles).pixels) // tiles.num_tiles
    for start in range(0, size * tiles.num_tiles, size):
        yield Tiles(tiles.pixels[start : start + size], 1, tiles.width, tiles.height)


def _whole(tiles: Tiles) -> Tiles:
    expected = tiles.num_tiles * tiles.width * tiles.height * 3
    if len(tiles.pixels) != expected:
        raise ValueError(f"{len(tiles.pixels)} bytes of pixels where {expected} are expected")
    return tiles


def _key(scope: str, original: tuple[int, int], tiles: Tiles) -> str:
    """64 hex digits. The scope has a fixed length within a server, so no two inputs give the same bytes."""
    head = f"{scope}/{original[0]}x{original[1]}/{tiles.num_tiles}x{tiles.height}x{tiles.width}/"
    return hashlib.sha256(head.encode() + tiles.pixels).hexdigest()
