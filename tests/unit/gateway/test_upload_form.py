"""A form in pieces of any size, and with which piece it is refused."""

from __future__ import annotations

import hashlib

import pytest

from opsin.core.errors import Code, InvalidRequest, MediaTooLarge
from opsin.gateway.upload_form import Upload, UploadForm

BOUNDARY = "boundary"
KIND = f"multipart/form-data; boundary={BOUNDARY}"
PICTURE = bytes(range(256)) * 8 + b"\r\n--bound\r\n--boundar" + bytes(100)
"""With beginnings of a boundary in it."""
LIMIT = 3000


def part(name: str, data: bytes, filename: str | None = None) -> bytes:
    named = "" if filename is None else f'; filename="{filename}"'
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + data + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()
PURPOSE = part("purpose", b"vision")
FILE = part("file", PICTURE, "a/b.png")
BODY = PURPOSE + part("expires_after[seconds]", b"3600") + FILE + END


def read(body: bytes, size: int = 10**6) -> Upload:
    form = UploadForm(KIND, LIMIT)
    for start in range(0, len(body), size):
        form.take(body[start : start + size])
    return form.whole()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 10**6])
def test_pieces_of_any_size_give_the_same(size: int) -> None:
    assert read(BODY, size) == Upload(PICTURE, hashlib.sha256(PICTURE).hexdigest(), "b.png", 3600.0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        END,
        PURPOSE + END,
        PURPOSE + FILE,
        PURPOSE + part("file", PICTURE) + END,
        FILE + END,
        PURPOSE + FILE + FILE + END,
        PURPOSE + PURPOSE + FILE + END,
        PURPOSE + b"".join(part(f"f{number}", b"x") for number in range(9)) + FILE + END,
        PURPOSE + part("note", bytes(1025)) + FILE + END,
        PURPOSE + part("expires_after[seconds]", b"0") + FILE + END,
        PURPOSE + part("expires_after[seconds]", b"1e3") + FILE + END,
        b"--other\r\n" + BODY,
        f"--{BOUNDARY}\r\n{'x' * 5000}: y\r\n\r\n".encode(),
    ],
)
@pytest.mark.parametrize("size", [1, 10**6])
def test_what_is_no_upload_is_none(body: bytes, size: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body, size)
    assert (caught.value.code, caught.value.status) == (Code.INVALID_UPLOAD, 400)


@pytest.mark.parametrize(
    "kind", ["", "application/json", "multipart/form-data", f"multipart/form-data; boundary={'x' * 300}"]
)
def test_another_content_type_is_refused_before_a_byte_is_read(kind: str) -> None:
    with pytest.raises(InvalidRequest):
        UploadForm(kind, LIMIT)


def test_a_large_file_is_refused_with_the_byte_that_is_too_many() -> None:
    form = UploadForm(KIND, LIMIT)
    form.take(PURPOSE + part("file", bytes(LIMIT), "a.png")[:-2])
    with pytest.raises(MediaTooLarge, match="3000 bytes"):
        form.take(bytes(100))


def test_another_purpose_is_refused_before_the_file() -> None:
    form = UploadForm(KIND, LIMIT)
    with pytest.raises(InvalidRequest) as caught:
        form.take(part("purpose", b"assistants") + f"--{BOUNDARY}\r\n".encode())
    assert caught.value.param == "purpose"


@pytest.mark.parametrize(
    "head", [b"Content-Disposition: form-data" + b";a=b" * 2000, b"a: b\r\n" * 20, b"a: " + b"b" * 8000]
)
def test_the_head_of_a_part_is_limited_before_it_is_taken_apart(head: bytes) -> None:
    form = UploadForm(KIND, LIMIT)
    with pytest.raises(InvalidRequest):
        form.take(f"--{BOUNDARY}\r\n".encode() + head)
