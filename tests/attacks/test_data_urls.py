"""Public cases of section 2F that data: URLs are about: one documented grammar, and the same one on every way in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from opsin.core.conversation import Detail, MediaRef
from opsin.core.errors import MediaError
from opsin.media.config import ACCEPTED_BY_DEFAULT, MediaConfig
from opsin.media.label import label_warnings
from opsin.media.lift import MIN_URL_BYTES, lift
from opsin.media.loader import MediaLoader
from opsin.media.types import LiftedMedia, MediaBytes
from tests.corpus.data_urls import BASE64, DIALECTS, PNG, Dialect

API_PAGE = Path(__file__).parents[2] / "docs" / "api.md"

Way = Callable[[str], tuple[MediaRef, LiftedMedia]]


def _in_place(url: str) -> tuple[MediaRef, LiftedMedia]:
    """As the URL of a small body is read."""
    return MediaRef(url, Detail.AUTO, "here"), {}


def _lifted(url: str) -> tuple[MediaRef, LiftedMedia]:
    """As the URL of a large body is read, if it is taken out."""
    body = json.dumps({"url": url}).encode()
    found = lift(body, "lifted", MediaConfig().max_image_bytes, ACCEPTED_BY_DEFAULT)
    left = json.loads(found.body)["url"]
    return MediaRef(left, Detail.AUTO, "here"), found.media


async def _load(way: Way, url: str) -> MediaBytes:
    ref, lifted = way(url)
    (media,) = await MediaLoader(MediaConfig()).load([ref], lifted)
    return media


@pytest.mark.parametrize("way", [_in_place, _lifted])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_case_93_every_dialect_is_read_right_or_refused(dialect: Dialect, way: Way) -> None:
    if dialect.refusal is None:
        media = await _load(way, dialect.url)
        assert media.data.rstrip(b"\0") == PNG.rstrip(b"\0")
        assert [warning.code for warning in label_warnings([media])] == ([dialect.warning] if dialect.warning else [])
        return
    with pytest.raises(MediaError) as caught:
        await _load(way, dialect.url)
    assert (caught.value.code, caught.value.param) == (dialect.refusal, "here")
    assert BASE64[:8] not in caught.value.message


def test_case_93_the_page_says_what_becomes_of_each() -> None:
    rows = [f"| {dialect.name} | {dialect.outcome} |" for dialect in DIALECTS]
    assert "\n".join(["| data: URL | here |", "|---|---|", *rows]) in API_PAGE.read_text()


def test_the_dialects_cover_both_ways() -> None:
    assert sum(len(dialect.url) >= MIN_URL_BYTES for dialect in DIALECTS) == len(DIALECTS) - 1
