"""Pictures in the formats that have to be asked for: good ones, and bad ones with the status and code they must get.

The bad ones are bad where all formats are accepted.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import cache

from PIL import Image

from tests.corpus.golden_rare import heic, tiff
from tests.corpus.pictures import BadPicture, GoodPicture, encoded, exif_block, scene

SIZE, TURNED = (64, 48), (48, 64)
_BITS, _COMPRESSION, _PHOTOMETRIC, _SAMPLES, _FORMAT = 258, 259, 262, 277, 339
GREY = {_BITS: 8, _PHOTOMETRIC: 1, _SAMPLES: 1}
_GREY_PIXELS = bytes(48 * 32)
_SMALLER = struct.pack(">II", 64, 16)
_EXIF = b"Exif\0\0" + exif_block(6)


def avif(picture: Image.Image, **options: object) -> bytes:
    return encoded(picture, "avif", speed=10, max_threads=1, **options)


@cache
def small_heic() -> bytes:
    return heic(scene())


@cache
def small_avif() -> bytes:
    return avif(scene())


def box(kind: bytes, *content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + sum(map(len, content)), kind) + b"".join(content)


def full_box(kind: bytes, *content: bytes, version: int = 0, flags: int = 0) -> bytes:
    return box(kind, struct.pack(">I", version << 24 | flags), *content)


def ispe(width: int, height: int) -> bytes:
    return full_box(b"ispe", struct.pack(">II", width, height))


def clap(width: int, height: int, parts: int = 1) -> bytes:
    return box(b"clap", struct.pack(">IIIIiIiI", width, parts, height, parts, 0, 1, 0, 1))


def heif(brand: bytes, *properties: bytes, order: tuple[int, ...] | None = None, behind: bytes = b"") -> bytes:
    """A file whose primary item has these properties, and no pixels. ``order``: their numbers, from 1."""
    numbers = order if order is not None else tuple(range(1, len(properties) + 1))
    associated = struct.pack(">IHB", 1, 1, len(numbers)) + bytes(0x80 | number for number in numbers)
    iprp = box(b"iprp", box(b"ipco", *properties), full_box(b"ipma", associated))
    meta = full_box(b"meta", full_box(b"pitm", struct.pack(">H", 1)), iprp)
    return box(b"ftyp", brand, bytes(4), brand) + meta + behind


def replaced(data: bytes, kind: bytes, content: bytes) -> bytes:
    """Overwrites the beginning of the first box of a kind, behind its version and flags."""
    start = data.index(kind) + 8
    return data[:start] + content + data[start + len(content) :]


def bmp(width: int, height: int, depth: int, compression: int, content: bytes, *, colours: int = 2) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, depth, compression, 0, 0, 0, colours, 0)
    start = 14 + len(header) + 8
    return b"BM" + struct.pack("<IHHI", start + len(content), 0, 0, start) + header + bytes(8) + content


def rare_good_pictures() -> tuple[GoodPicture, ...]:
    frames = [scene(), scene("L").convert("RGB")]
    return (
        GoodPicture("bmp", SIZE, lambda: encoded(scene(), "bmp")),
        GoodPicture("bmp palette", SIZE, lambda: encoded(scene("P"), "bmp")),
        GoodPicture("bmp run-length encoded", (8, 8), lambda: bmp(8, 8, 8, 1, b"\x08\x01\x00\x00" * 8 + b"\x00\x01")),
        GoodPicture("tiff", SIZE, lambda: encoded(scene(), "tiff")),
        GoodPicture("tiff big", (48, 32), lambda: tiff(GREY, _GREY_PIXELS, big=True)),
        GoodPicture("tiff of motorola order", (48, 32), lambda: tiff(GREY, _GREY_PIXELS, ">")),
        GoodPicture("tiff turned", TURNED, lambda: encoded(scene(), "tiff", tiffinfo={274: 6})),
        GoodPicture("tiff of three pages", SIZE, lambda: encoded(scene(), "tiff", save_all=True, append_images=frames)),
        GoodPicture("tiff of groups", SIZE, lambda: encoded(scene("1"), "tiff", compression="group4")),
        GoodPicture("avif", SIZE, small_avif),
        GoodPicture("avif alpha", SIZE, lambda: avif(scene("RGBA"))),
        GoodPicture("avif turned", TURNED, lambda: avif(scene(), exif=_EXIF)),
        GoodPicture("avif animated", SIZE, lambda: avif(scene(), save_all=True, append_images=frames)),
        GoodPicture("heic", SIZE, small_heic),
        GoodPicture("heic turned", TURNED, lambda: heic(scene(), exif=_EXIF)),
        GoodPicture("heic of an odd size", (33, 17), lambda: heic(scene(size=(33, 17)))),
        GoodPicture("heic of tiles", (300, 200), lambda: heic(scene(size=(300, 200)), tile_size=64)),
    )


def rare_bad_pictures() -> tuple[BadPicture, ...]:
    return (*_cut(), *_limits(), *_unsupported(), *_damaged_tiff(), *_damaged_bmp(), *_damaged_heif())


def _cut() -> tuple[BadPicture, ...]:
    def cut(build: Callable[[], bytes], percent: int) -> bytes:
        data = build()
        return data[: len(data) * percent // 100]

    whole: dict[str, Callable[[], bytes]] = {
        "bmp": lambda: encoded(scene(), "bmp"),
        "tiff": lambda: encoded(scene(), "tiff"),
        "avif": small_avif,
        "heic": small_heic,
    }
    return tuple(
        _truncated(f"{name} cut at {percent} %", lambda build=build, percent=percent: cut(build, percent))
        for name, build in whole.items()
        for percent in (10, 50, 99)
    )


def _limits() -> tuple[BadPicture, ...]:
    def large(name: str, build: Callable[[], bytes]) -> BadPicture:
        return BadPicture(name, 413, "media_too_large", build)

    return (
        large("bmp of 20000 x 20000", lambda: bmp(20_000, 20_000, 8, 0, b"")),
        large("bmp of 8 x -2^31", lambda: bmp(8, -(2**31), 8, 0, b"")),
        large("tiff of 2^32 - 1", lambda: tiff({**GREY, 256: 2**32 - 1, 257: 2**32 - 1}, b"")),
        large("avif of 20000 x 20000", lambda: heif(b"avif", ispe(20_000, 20_000))),
        large("heic of 2^32 - 1", lambda: heif(b"heic", ispe(2**32 - 1, 2**32 - 1))),
        large("heic of 20000 x 20000, turned", lambda: heif(b"heic", ispe(20_000, 20_000), box(b"irot", b"\1"))),
        BadPicture("tiff 1000:1", 400, "image_aspect_ratio", lambda: tiff({**GREY, 256: 8000, 257: 8}, b"")),
    )


def _unsupported() -> tuple[BadPicture, ...]:
    def unsupported(name: str, build: Callable[[], bytes]) -> BadPicture:
        return BadPicture(name, 422, "image_feature_unsupported", build)

    return (
        unsupported("tiff of 32 bits", lambda: tiff({**GREY, _BITS: 32}, _GREY_PIXELS * 4)),
        unsupported("tiff of floats", lambda: tiff({**GREY, _BITS: 32, _FORMAT: 3}, _GREY_PIXELS * 4)),
        unsupported("tiff of signed bytes", lambda: tiff({**GREY, _FORMAT: 2}, _GREY_PIXELS)),
        unsupported("tiff of 12 bits", lambda: tiff({**GREY, _BITS: 12}, _GREY_PIXELS * 2)),
        unsupported("tiff of 16 bits, inverted", lambda: tiff({**GREY, _BITS: 16, _PHOTOMETRIC: 0}, _GREY_PIXELS * 2)),
        unsupported("tiff in Lab", lambda: tiff({_BITS: (8, 8, 8), _PHOTOMETRIC: 8, _SAMPLES: 3}, _GREY_PIXELS * 3)),
        unsupported("tiff that is a camera's preview", lambda: tiff({**GREY, 254: 1}, _GREY_PIXELS)),
        unsupported("avif that is cropped", lambda: heif(b"avif", ispe(64, 48), clap(60, 40))),
        unsupported("heic cropped out of much more", lambda: heif(b"heic", ispe(8000, 3000), clap(64, 48))),
        unsupported("heic cropped to half a pixel", lambda: heif(b"heic", ispe(64, 48), clap(121, 90, 2))),
        unsupported(
            "heic cropped after it was turned", lambda: heif(b"heic", ispe(64, 48), box(b"irot", b"\1"), clap(40, 60))
        ),
    )


def _damaged_tiff() -> tuple[BadPicture, ...]:
    good = tiff(GREY, _GREY_PIXELS)
    deflated = zlib.compress(bytes(100))
    return (
        _damaged("tiff whose width is a text", lambda: good.replace(b"\0\1\3\0", b"\0\1\2\0", 1)),
        _damaged("tiff of 0 x 5", lambda: tiff({**GREY, 256: 0, 257: 5}, _GREY_PIXELS)),
        _damaged("tiff of 65535 samples", lambda: tiff({**GREY, _SAMPLES: 65_535}, _GREY_PIXELS)),
        _damaged("tiff of unknown compression", lambda: tiff({**GREY, _COMPRESSION: 4711}, _GREY_PIXELS)),
        _damaged("tiff whose inflated pixels end early", lambda: tiff({**GREY, _COMPRESSION: 8}, deflated)),
        _damaged("tiff that inflates to nothing", lambda: tiff({**GREY, _COMPRESSION: 8}, b"no zlib" * 9)),
        _damaged("tiff whose jpeg is another picture", _tiff_of_large_jpeg),
        _truncated("tiff whose directory is beyond its end", lambda: good[:4] + struct.pack("<I", 2**31) + good[8:]),
        _truncated("tiff of a header", lambda: good[:8]),
        _truncated("tiff whose strip is beyond its end", lambda: tiff({**GREY, 273: 2**31}, _GREY_PIXELS)),
        _truncated("tiff of 65536 x 65536 tiles", _tiff_of_large_tiles),
    )


def _tiff_of_large_jpeg() -> bytes:
    inner = encoded(Image.new("RGB", (3000, 3000)), "jpeg")
    return tiff({_BITS: (8, 8, 8), _PHOTOMETRIC: 6, _SAMPLES: 3, _COMPRESSION: 7}, inner)


def _tiff_of_large_tiles() -> bytes:
    return tiff({**GREY, 322: 65_536, 323: 65_536, 324: 8, 325: 100}, bytes(200))


def _damaged_bmp() -> tuple[BadPicture, ...]:
    return (
        _damaged("bmp of 0 x 5", lambda: bmp(0, 5, 8, 0, bytes(64))),
        _damaged("bmp of -8 x 8", lambda: bmp(-8, 8, 8, 0, bytes(64))),
        _damaged("bmp with a header of 41 bytes", lambda: bmp(8, 8, 8, 0, bytes(64)).replace(b"\x28", b"\x29", 1)),
        _damaged("bmp of 7 bits", lambda: bmp(8, 8, 7, 0, bytes(64))),
        _damaged("bmp with 2^31 colours", lambda: bmp(8, 8, 8, 0, bytes(64), colours=2**31 - 1)),
        _damaged("bmp that is a jpeg", lambda: bmp(64, 48, 0, 4, encoded(scene(), "jpeg"))),
        _damaged("bmp of endless runs", lambda: bmp(2000, 2000, 8, 1, b"\xff\x01" * 500_000)),
        _damaged("bmp of endless line ends", lambda: bmp(2000, 2000, 8, 1, b"\x00\x00" * 500_000)),
        _truncated("bmp that ends in its header", lambda: bmp(8, 8, 8, 0, b"")[:20]),
    )


def _damaged_heif() -> tuple[BadPicture, ...]:
    tiny = ispe(8, 8)
    ftyp = box(b"ftyp", b"heic", bytes(4), b"heic")
    return (
        _damaged("heic without a picture", lambda: heif(b"heic", tiny)),
        _damaged("avif without a picture", lambda: heif(b"avif", tiny)),
        _damaged("heic without meta", lambda: ftyp + box(b"mdat", bytes(100))),
        _damaged("heic without properties", lambda: ftyp + full_box(b"meta", full_box(b"pitm", bytes(2)))),
        _damaged("heic without a size", lambda: heif(b"heic", box(b"irot", b"\1"))),
        _damaged("heic of 0 x 8", lambda: heif(b"heic", ispe(0, 8))),
        _damaged("heic whose size is cut off", lambda: heif(b"heic", full_box(b"ispe", bytes(6)))),
        _damaged("heic with numbers of absent properties", lambda: heif(b"heic", tiny, order=(0, 2, 127))),
        _damaged("heic of too many boxes", lambda: heif(b"heic", tiny, behind=box(b"free") * 20_001)),
        _damaged("heic of too many properties", lambda: heif(b"heic", *[tiny] * 20_001, order=(1,))),
        _damaged("heic with a box of 2 bytes", lambda: heif(b"heic", tiny, behind=struct.pack(">I4s", 2, b"free"))),
        _damaged("heic with another frame than declared", lambda: replaced(small_heic(), b"ispe", _SMALLER)),
        _damaged("avif called heic", lambda: small_avif().replace(b"avif", b"heic", 2).replace(b"avis", b"heic")),
        _truncated("heic with a box of 2^63 bytes", lambda: heif(b"heic", tiny, behind=_endless_box())),
        _truncated("avif whose pixels are gone", lambda: small_avif()[: small_avif().index(b"mdat") + 12]),
        _damaged("avif with a far larger frame than declared", _hidden_frame),
    )


def _endless_box() -> bytes:
    return struct.pack(">I4sQ", 1, b"free", 2**63 - 1)


@cache
def _hidden_frame() -> bytes:
    """24 Mpx in 8 x 8: the decoder believes the frame and would scale it down, but has no memory for it."""
    large = avif(Image.new("RGB", (8000, 3000)), quality=1, subsampling="4:4:4")
    return replaced(large, b"ispe", struct.pack(">II", 8, 8))


def _damaged(name: str, build: Callable[[], bytes]) -> BadPicture:
    return BadPicture(name, 422, "image_undecodable", build)


def _truncated(name: str, build: Callable[[], bytes]) -> BadPicture:
    return BadPicture(name, 422, "image_truncated", build)
