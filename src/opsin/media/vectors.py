"""Attacks on the way of a picture into the server, as data, each with the code that has to refuse it.

``opsin doctor media`` runs them on an operator's own settings; what they mean is judged in
:mod:`opsin.media.self_check`. Nothing here is ever resolved or dialled.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from dataclasses import dataclass

from opsin.core.errors import Code
from opsin.media.containers import png
from opsin.media.types import ImageFormat
from opsin.media.warm_up import samples


@dataclass(frozen=True, slots=True)
class UrlVector:
    """A URL that has to be refused with ``expected``. ``setting`` is the only one by which an operator can open it."""

    url: str
    expected: Code
    setting: str | None = None


@dataclass(frozen=True, slots=True)
class DataUrlVector:
    """A ``data:`` URL; without ``expected`` it is inside the grammar and has to be read."""

    name: str
    url: str
    expected: Code | None = None


@dataclass(frozen=True, slots=True)
class BytesVector:
    """The first bytes of something that has to be refused before anything is decoded.

    ``format`` is what it claims to be, if that can be accepted; where it is not, the refusal says so instead.
    """

    name: str
    data: bytes
    expected: Code
    format: ImageFormat | None = None


_SPELLINGS = (
    "http://127.0.0.1\\@1.1.1.1/",  # two parsers see two hosts
    "http://images.example.com\\@127.0.0.1/",
    "http://images.example.com\n@127.0.0.1/",
    "http://images.example.com@127.0.0.1/",
    "http://images.example.com%00.127.0.0.1/",
    " http://127.0.0.1/",
    "http:127.0.0.1/",
    "//127.0.0.1/",
    "httpx://127.0.0.1/",
    "ftp://127.0.0.1/",
    "gopher://127.0.0.1/",
    "http://2130706433/",  # numbers that resolvers take for 127.0.0.1 or 0.0.0.0
    "http://0x7f000001/",
    "http://0x7f.1/",
    "http://0177.0.0.1/",
    "http://127.1/",
    "http://0/",
    "http://127。0。0。1/",  # dots and digits that become plain ones
    "http://１２７.0.0.1/",
    "http://[::1%25eth0]/",  # zones
    "http://[fe80::1%eth0]/",
)
_ADDRESSES = (
    "127.0.0.1",
    "[::1]",
    "0.0.0.0",  # noqa: S104 an address to refuse
    "[::]",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "169.254.169.254",  # metadata of most clouds
    "192.0.0.192",  # Oracle's
    "168.63.129.16",  # Azure's
    "100.100.100.200",  # Alibaba's
    "[fd00:ec2::254]",  # AWS's
    "[fe80::1]",
    "[fec0::1]",
    "198.18.0.1",
    "240.0.0.1",
    "224.0.0.1",
    "239.255.255.250",
    "[ff02::1]",
    "[ff0e::1]",
    "[::ffff:127.0.0.1]",  # IPv4 inside IPv6: mapped, compatible, SIIT, NAT64, 6to4, Teredo, ISATAP
    "[::127.0.0.1]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::169.254.169.254]",
    "[64:ff9b:1::a00:1]",
    "[2002:7f00:1::]",
    "[2001:0:4136:e378:8000:63bf:3fff:fdd2]",
    "[2001:470::5efe:7f00:1]",
)
_NAMES = ("localhost", "metadata.google.internal", "router.lan", "intranet")
_PORTS = (22, 6379, 8080)

URLS: tuple[UrlVector, ...] = (
    *(UrlVector(url, Code.INVALID_MEDIA_URL) for url in _SPELLINGS),
    *(
        UrlVector(f"http://{address}/", Code.MEDIA_URL_BLOCKED, "media.fetch.allowed_private_networks")
        for address in _ADDRESSES
    ),
    *(UrlVector(f"http://{name}/", Code.MEDIA_URL_BLOCKED, "media.fetch.allowed_media_domains") for name in _NAMES),
    *(
        UrlVector(f"https://images.example.com:{port}/", Code.MEDIA_URL_BLOCKED, "media.fetch.allowed_ports")
        for port in _PORTS
    ),
)

_BASE64 = b64encode(bytes(range(250, 256)) * 10).decode()  # holds + and /, and needs no padding
_URL_SAFE = _BASE64.translate(str.maketrans("+/", "-_"))
_WRAPPED = "\r\n".join(_BASE64[at : at + 76] for at in range(0, len(_BASE64), 76))

DATA_URLS: tuple[DataUrlVector, ...] = (
    DataUrlVector("plain", f"data:image/png;base64,{_BASE64}"),
    DataUrlVector("upper case", f"DATA:image/png;BASE64,{_BASE64}"),
    DataUrlVector("no media type", f"data:;base64,{_BASE64}"),
    DataUrlVector("parameters", f"data:image/png;charset=utf-8;base64,{_BASE64}"),
    DataUrlVector("MIME line breaks", f"data:image/png;base64,{_WRAPPED}\n"),
    DataUrlVector("no padding", "data:image/png;base64,AA"),
    DataUrlVector("no base64", f"data:image/png,{_BASE64}", Code.INVALID_DATA_URL),
    DataUrlVector("base64 not last", f"data:image/png;base64;charset=x,{_BASE64}", Code.INVALID_DATA_URL),
    DataUrlVector("no comma", f"data:image/png;base64{_BASE64}", Code.INVALID_DATA_URL),
    DataUrlVector("a header without end", f"data:{'x' * 300};base64,{_BASE64}", Code.INVALID_DATA_URL),
    DataUrlVector("a tab in the scheme", f"da\tta:image/png;base64,{_BASE64}", Code.INVALID_DATA_URL),
    DataUrlVector("URL-safe alphabet", f"data:image/png;base64,{_URL_SAFE}", Code.INVALID_DATA_URL),
    DataUrlVector("percent-encoded", "data:image/png;base64,AAAA%2BAA", Code.INVALID_DATA_URL),
    DataUrlVector("padding in the middle", "data:image/png;base64,AA==AAAA", Code.INVALID_DATA_URL),
    DataUrlVector("one digit left over", "data:image/png;base64,AAAAA", Code.INVALID_DATA_URL),
    DataUrlVector("beyond ASCII", "data:image/png;base64,AAAé", Code.INVALID_DATA_URL),
)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int) -> bytes:
    """A PNG that says a size and holds one row of one pixel."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(4))), (b"IEND", b""))
    return png.SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


_JPEG = samples(ImageFormat.JPEG)[0]

BYTES: tuple[BytesVector, ...] = (
    BytesVector("PNG that declares 20000 x 20000", _png(20_000, 20_000), Code.MEDIA_TOO_LARGE, ImageFormat.PNG),
    BytesVector("PNG that declares 65535 x 65535", _png(65_535, 65_535), Code.MEDIA_TOO_LARGE, ImageFormat.PNG),
    BytesVector("PNG of no width", _png(0, 5), Code.IMAGE_UNDECODABLE, ImageFormat.PNG),
    BytesVector("JPEG cut in half", _JPEG[: len(_JPEG) // 2], Code.IMAGE_TRUNCATED, ImageFormat.JPEG),
    BytesVector("HEIC, only its start", samples(ImageFormat.HEIC)[0][:64], Code.IMAGE_TRUNCATED, ImageFormat.HEIC),
    BytesVector("no bytes", b"", Code.IMAGE_TRUNCATED),
    BytesVector("SVG", b'<svg xmlns="http://www.w3.org/2000/svg"/>', Code.UNSUPPORTED_IMAGE_FORMAT),
    BytesVector("SVG behind XML", b'<?xml version="1.0"?><svg/>', Code.UNSUPPORTED_IMAGE_FORMAT),
    BytesVector("PDF", b"%PDF-1.7\n", Code.UNSUPPORTED_IMAGE_FORMAT),
    BytesVector("EPS", b"%!PS-Adobe-3.0 EPSF-3.0\n", Code.UNSUPPORTED_IMAGE_FORMAT),
    BytesVector("HTML", b"<!doctype html><html></html>", Code.UNSUPPORTED_IMAGE_FORMAT),
    BytesVector("MP4", b"\0\0\0\x18ftypisom\0\0\0\0", Code.UNSUPPORTED_IMAGE_FORMAT),
    BytesVector("PSD", b"8BPS\0\1", Code.UNSUPPORTED_IMAGE_FORMAT),
)
