from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from opsin.core.conversation import Detail, MediaRef
from opsin.core.errors import MediaError, MediaSourceForbidden, MediaTooLarge, TooManyImages
from opsin.media.config import LimitPerPrompt, MediaConfig
from opsin.media.loader import MediaLoader
from opsin.vision.plan import Size
from tests.corpus.pictures import data_url, encoded, scene

PNG = encoded(scene(), "png")


def refs(*urls: str) -> list[MediaRef]:
    return [MediaRef(url, Detail.AUTO, f"messages[0].content[{number}]") for number, url in enumerate(urls)]


async def test_pictures_come_in_order_with_hash_header_and_place() -> None:
    jpeg = encoded(scene(size=(20, 30)), "jpeg")
    first, second = await MediaLoader(MediaConfig()).load(refs(data_url(PNG, "text/plain"), data_url(jpeg)))
    assert (first.data, second.data) == (PNG, jpeg)
    assert first.sha256 == hashlib.sha256(PNG).hexdigest()
    assert (first.header.size, second.header.size) == (Size(64, 48), Size(20, 30))
    assert second.param == "messages[0].content[1]"


@pytest.mark.parametrize(
    ("url", "flag"),
    [
        ("http://127.0.0.1/a.png", "--allowed-media-domains"),
        ("HTTPS://example.com/a.png", "--allowed-media-domains"),
        ("file:///etc/passwd", "--allowed-local-media-path"),
        ("FILE:a.png", "--allowed-local-media-path"),
    ],
)
async def test_addresses_are_refused_naming_the_flag(url: str, flag: str) -> None:
    with pytest.raises(MediaSourceForbidden, match=flag) as caught:
        await MediaLoader(MediaConfig()).load(refs(data_url(PNG), url))
    assert caught.value.param == "messages[0].content[1]"
    assert url.split(":", 1)[1] not in caught.value.message


@pytest.mark.parametrize("url", ["", "/etc/passwd", "a.png", "iVBORw0KGgo=", "httpx://x", "ftp://x", " data:;base64,"])
async def test_anything_else_is_no_media_url(url: str) -> None:
    with pytest.raises(MediaError) as caught:
        await MediaLoader(MediaConfig()).load(refs(url))
    assert (caught.value.status, caught.value.code) == (400, "invalid_media_url")


async def test_too_many_pictures_are_refused_before_any_is_read() -> None:
    with pytest.raises(TooManyImages, match="the limit is 1 "):
        await MediaLoader(MediaConfig(limit_mm_per_prompt=LimitPerPrompt(image=1))).load(
            refs("http://never.read", "http://never.read")
        )


async def test_decoded_bytes_are_counted_over_the_request() -> None:
    loader = MediaLoader(MediaConfig(max_decoded_bytes_per_request=3 * 64 * 48 * 4))
    assert len(await loader.load(refs(*[data_url(PNG)] * 3))) == 3
    with pytest.raises(MediaTooLarge, match="max_decoded_bytes_per_request"):
        await loader.load(refs(*[data_url(PNG)] * 4))


def test_load_file(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(PNG)
    media = MediaLoader(MediaConfig()).load_file(path, "--image")
    assert (media.data, media.header.size, media.param) == (PNG, Size(64, 48), "--image")


def test_load_file_refuses_what_is_no_readable_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing.png", ".", "pipe"):
        with pytest.raises(MediaError) as caught:
            MediaLoader(MediaConfig()).load_file(tmp_path / name, "--image")
        assert caught.value.code == "media_file_unreadable"
        assert str(tmp_path.parent) not in caught.value.message


def test_load_file_checks_the_size_first(tmp_path: Path) -> None:
    path = tmp_path / "sparse.png"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(MediaTooLarge, match=f"{2**40} bytes"):
        MediaLoader(MediaConfig()).load_file(path, "--image")
