"""Pictures are taken out of large bodies, and nothing else changes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from opsin.core.errors import MediaError, MediaTooLarge, UnsupportedMediaType
from opsin.media.config import ACCEPTED_BY_DEFAULT
from opsin.media.lift import lift, without_base64
from opsin.media.types import MediaBytes
from tests.corpus.pictures import data_url, encoded, scene

PNG = encoded(scene(size=(640, 480)), "png")
URL = data_url(PNG)
PADDED = data_url(PNG + b"\0" * (4 - len(PNG) % 3))
MARKER = "lifted-0"
LIMIT = 10 * 2**20


def parts(*urls: str) -> dict[str, Any]:
    return {"content": [{"type": "image_url", "image_url": {"url": url}} for url in urls]}


def test_a_picture_becomes_its_marker_and_its_bytes() -> None:
    assert len(URL) > 4096
    body = json.dumps({"text": 'he said "url": yes', **parts(URL, URL)}).encode()
    lifted = lift(body, MARKER, LIMIT, ACCEPTED_BY_DEFAULT)
    assert json.loads(lifted.body) == {"text": 'he said "url": yes', **parts(f"{MARKER}:0", f"{MARKER}:1")}
    picture = lifted.media[f"{MARKER}:1"]
    assert isinstance(picture, MediaBytes)
    assert picture.data == PNG
    assert picture.base64 is not None
    assert picture.base64.tobytes().decode() == URL.partition(",")[2]
    (kept, _) = without_base64(lifted.media).values()
    assert kept == replace(picture, base64=None)


@pytest.mark.parametrize("escape", [("/", "\\/"), ("+", "\\u002B"), ("A", "\\u0041")])
def test_escaped_base64_is_read_but_not_sent_on(escape: tuple[str, str]) -> None:
    body = b'{"image_url" : "%s"}' % URL.replace(*escape).encode()
    picture = lift(body, MARKER, LIMIT, ACCEPTED_BY_DEFAULT).media[f"{MARKER}:0"]
    assert isinstance(picture, MediaBytes)
    assert (picture.data, picture.base64) == (PNG, None)


@pytest.mark.parametrize("url", [PADDED.rstrip("="), PADDED[:5000] + "\\r\\n" + PADDED[5000:]])
def test_base64_that_is_not_canonical_is_not_sent_on(url: str) -> None:
    body = b'{"url":"%s"}' % url.encode()
    picture = lift(body, MARKER, LIMIT, ACCEPTED_BY_DEFAULT).media[f"{MARKER}:0"]
    assert isinstance(picture, MediaBytes)
    assert picture.base64 is None


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"text": f'"url":"{URL}"'}),  # inside a string
        json.dumps({"text": URL, "key": {URL: "url"}}),  # no picture's key
        json.dumps(parts("https://example.com/" + "a" * 5000)),
        json.dumps(parts(URL[:4000])),  # short ones stay
        '{"url":"data:' + "A" * 9000,  # never closed
        '{"url":"data:\\x' + "A" * 9000 + '"}',  # no JSON string
    ],
)
def test_all_else_stays_as_it_is(body: str) -> None:
    assert lift(body.encode(), MARKER, LIMIT, ACCEPTED_BY_DEFAULT).body == body.encode()


@pytest.mark.parametrize("before", [2**17 - 6, 2**17 - 5, 2**17 - 4, 2**17 - 1, 2**17, 2**17 + 1])
def test_pictures_are_found_wherever_they_stand(before: int) -> None:
    body = b'{"image_url": "%s"}' % URL.encode()
    padded = b" " * (before - body.index(b"data:")) + body
    assert list(lift(padded, MARKER, LIMIT, ACCEPTED_BY_DEFAULT).media) == [f"{MARKER}:0"]


def test_a_wrong_picture_is_lifted_as_its_error() -> None:
    urls = ("data:;base64," + "!" * 5000, URL, data_url(b"GIF?" * 2000))
    body = json.dumps(parts(*urls)).encode()
    bad, large, foreign = lift(body, MARKER, 8000, ACCEPTED_BY_DEFAULT).media.values()
    assert isinstance(bad, MediaError)
    assert bad.code == "invalid_data_url"
    assert "offset 13" in bad.message
    assert isinstance(large, MediaTooLarge)
    assert isinstance(foreign, UnsupportedMediaType)


def test_valid_json_stays_valid_and_equal_but_for_the_pictures() -> None:
    rng = random.Random(5)
    alphabet = ['"', "\\", "url", "image_url", ":", " ", "data:;base64,", "A" * 4200, "é", "\n", "{", "}"]

    def text() -> str:
        return "".join(rng.choices(alphabet, k=rng.randrange(9)))

    for _ in range(300):
        deep: list[Any] = [{"image_url": URL}, text(), {"url": {}}]
        value: dict[str, Any] = {text(): text(), "url": rng.choice([text(), URL]), "deep": deep}
        body = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode()
        lifted = lift(body, MARKER, LIMIT, ACCEPTED_BY_DEFAULT)
        restored = lifted.body
        for name in lifted.media:
            assert name.encode() in restored
        after = json.loads(restored)
        assert after["deep"][0]["image_url"].startswith(MARKER)
        assert after.keys() == value.keys()
        assert all(after[key] == value[key] for key in value if key not in ("url", "image_url", "deep"))
