from __future__ import annotations

import base64
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsin.core.errors import InvalidDataUrl, MediaError, MediaTooLarge
from opsin.media.data_url import media_type, parse, parse_bytes, write

DATA = bytes(range(256))
BASE64 = base64.b64encode(DATA).decode()
WRAPPED = base64.encodebytes(DATA).decode()


def parsed(url: str, max_bytes: int = 1000) -> bytes:
    return parse(url, "messages[0].content[1]", max_bytes)


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{BASE64}",
        f"DATA:image/png;base64,{BASE64}",
        f"data:image/png;BASE64,{BASE64}",
        f"data:;base64,{BASE64}",
        f"data:image/png;charset=utf-8;base64,{BASE64}",
        f"data:text/html;base64,{BASE64}",
        f"data:image/png;base64,{WRAPPED}",
        "data:image/png;base64," + WRAPPED.replace("\n", "\r\n"),
        f"data:image/png;base64, \t\f{BASE64} \n",
        f"data:image/png;base64,{BASE64.rstrip('=')}",
    ],
)
def test_dialects_that_mean_the_same_bytes(url: str) -> None:
    assert parsed(url) == DATA


def test_what_is_written_can_be_read() -> None:
    assert write("image/png", DATA) == f"data:image/png;base64,{BASE64}"
    assert parsed(write("image/webp", DATA)) == DATA


@pytest.mark.parametrize(
    ("url", "offset"),
    [
        (f"data:image/png,{BASE64}", 14),
        (f"data:image/png;base64;charset=x,{BASE64}", 31),
        (f"data:image/png;base64{BASE64}", 5),
        ("data:" + "x" * 300 + ";base64,AAAA", 5),
        (f"image/png;base64,{BASE64}", 0),
        ("data:;base64,AAAA-_AA", 17),
        ("data:;base64,AAAA%2BAA", 17),
        ("data:;base64,AA AA\nAé", 20),
        ("data:;base64,AA=A", 15),
        ("data:;base64,AA==AAAA", 15),
        ("data:;base64,AA==\n%", 15),
        ("data:;base64,A", 14),
        ("data:;base64,AAAAA===", 21),
        ("data:;base64,AAA==", 18),
        ("data:;base64,AAAA=", 18),
        ("data:;base64,=", 14),
        ("data:;base64,AAAA\x00AAA", 17),
    ],
)
def test_everything_else_is_refused_with_its_offset(url: str, offset: int) -> None:
    with pytest.raises(InvalidDataUrl, match=rf"at offset {offset}\.$") as caught:
        parsed(url)
    assert caught.value.param == "messages[0].content[1]"
    assert "AAAA" not in caught.value.message


def test_an_empty_payload_is_no_bytes() -> None:
    assert parsed("data:;base64,") == b""


def test_the_length_is_checked_before_decoding() -> None:
    assert len(parsed("data:;base64," + "A" * 1332, max_bytes=999)) == 999
    with pytest.raises(MediaTooLarge, match=r"1000 bytes; the limit is 999"):
        parsed("data:;base64," + "A" * 1333 + "%", max_bytes=999)


@settings(deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_round_trip(data: bytes, padded: bool) -> None:
    payload = base64.b64encode(data).decode()
    assert parsed("data:;base64," + (payload if padded else payload.rstrip("="))) == data


_ALPHABET = "AZaz09+/==  \t\n\r\f"
_FOREIGN = "-_%#,;é\0\v\ud800"


def _reference(url: str) -> bytes | int:
    """The bytes, or the offset of what is wrong: the grammar read one character at a time."""
    comma = url.find(",")
    if url[:5].lower() != "data:":
        return 0
    if not 5 <= comma <= 261:
        return 5
    if not url[5:comma].lower().endswith(";base64"):
        return comma
    digits, rest = "", False
    for offset, character in enumerate(url[comma + 1 :], comma + 1):
        if character in " \t\n\r\f":
            continue
        if rest and character != "=":
            return url.index("=", comma + 1)
        if character not in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=":
            return offset
        rest = character == "="
        digits += character
    padding = len(digits) - len(digits := digits.rstrip("="))
    if len(digits) % 4 == 1 or padding not in (0, -len(digits) % 4):
        return len(url)
    return base64.b64decode(digits + "=" * (-len(digits) % 4))


_PIECES = st.one_of(
    st.sampled_from(
        ["data:", "DATA:", ";base64,", ";Base64,", ";base64", ",", "image/png", "text/html;a=b", "x" * 250]
    ),
    st.text(_ALPHABET, max_size=12),
    st.text(_ALPHABET + _FOREIGN, max_size=3),
)
_URLS = st.lists(_PIECES, max_size=8).map("".join)


@settings(deadline=None)
@given(
    st.one_of(_URLS, _URLS.map("data:;base64,{}".format), st.text().map("data:{}".format)), st.sampled_from([4, 10**6])
)
def test_of_bytes_becomes_what_becomes_of_their_text(url: str, max_bytes: int) -> None:
    def outcome(read: Callable[[], bytes]) -> bytes | str:
        try:
            return read()
        except MediaError as error:
            return error.message

    data = url.encode(errors="replace")
    as_text = outcome(lambda: parse(data.decode(), "p", max_bytes))
    assert outcome(lambda: parse_bytes(memoryview(data), "p", max_bytes)) == as_text


@settings(deadline=None)
@given(st.one_of(_URLS, _URLS.map("data:;base64,{}".format), st.text().map("data:{}".format)))
def test_every_url_is_read_or_refused_with_the_right_offset(url: str) -> None:
    expected = _reference(url)
    try:
        assert parsed(url) == expected
        assert media_type(url) == url[5 : url.index(",")].split(";")[0]
    except InvalidDataUrl as error:
        assert error.message.endswith(f" at offset {expected}.")


@pytest.mark.parametrize(
    "payload",
    ["=" * 2_000_000 + "A", "%" * 2_000_000, " " * 2_000_000 + "%", "A" * 1_999_999 + "%"],
    ids=["padding", "foreign", "spaces", "digits"],
)
def test_the_search_for_the_offset_is_linear(payload: str) -> None:
    start = time.process_time()
    with pytest.raises(InvalidDataUrl):
        parsed("data:;base64," + payload, max_bytes=10**9)
    assert time.process_time() - start < 1.0


@given(st.text("AQg5+/-_= \n\té", max_size=16), st.integers(0, 12))
def test_what_is_decoded_at_once_is_what_is_decoded_with_care(payload: str, max_bytes: int) -> None:
    """A space at the end means nothing, and takes the long way."""

    def outcome(text: str) -> bytes | type[MediaError]:
        try:
            return parse(f"data:image/png;base64,{text}", "p", max_bytes)
        except MediaError as error:
            return type(error)

    assert outcome(payload) == outcome(payload + " ")
