"""From bodies to requests: whatever their size, the same request, and what is not ours to read as it came."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opsin.gateway.intake import LARGE_BODY_BYTES, SMALL_BODY_BYTES, Intake, Reading, Taken
from opsin.media.config import MediaConfig
from opsin.media.types import MediaBytes
from opsin.protocol.request import to_conversation
from tests.corpus.pictures import data_url, encoded, scene

PNG = encoded(scene(size=(40, 32)), "png")
SIZES = (0, SMALL_BODY_BYTES, LARGE_BODY_BYTES)


class Relaying:
    """One model, whose engine is sent what opsin does not read."""

    def reading(self, body: bytes | bytearray) -> Reading:
        return Reading(keep_base64=True, relay=True)


async def taken(least_bytes: int, **further: Any) -> Taken:
    url = data_url(PNG + bytes(least_bytes))
    content = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}]
    body = json.dumps({"messages": [{"role": "user", "content": content}], **further}).encode()
    return await Intake(MediaConfig(), Relaying(), max_text_bytes=10**7).take(body)


@pytest.mark.parametrize("least_bytes", SIZES)
async def test_a_picture_is_taken_out_of_all_but_small_bodies(least_bytes: int) -> None:
    one = await taken(least_bytes)
    (ref,) = to_conversation(one.request).media()
    if least_bytes == 0:
        assert ref.url == data_url(PNG)
        assert not one.media
    else:
        picture = one.media[ref.url]
        assert isinstance(picture, MediaBytes)
        assert picture.data == PNG + bytes(least_bytes)


@pytest.mark.parametrize("least_bytes", SIZES)
async def test_a_picture_in_a_field_that_the_engine_alone_reads_goes_on_as_it_came(least_bytes: int) -> None:
    theirs = {"style": {"url": data_url(PNG)}}
    one = await taken(least_bytes, adapter=theirs)
    assert one.request.relayed is not None
    ((name, value),) = (field for field in one.request.relayed.request if field[0] == "adapter")
    assert (name, json.loads(value)) == ("adapter", theirs)
    (ref,) = to_conversation(one.request).media()
    assert ref.url == data_url(PNG + bytes(least_bytes))
