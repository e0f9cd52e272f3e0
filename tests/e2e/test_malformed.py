"""Three hundred malformed requests: each gets its one right answer, and a good one in between always works."""

from __future__ import annotations

import base64
import io
import itertools
import json

import aiohttp

from opsin.media.types import ImageFormat
from tests.corpus.bodies import BadBody, bad_bodies, image_body, text_body
from tests.corpus.pictures import bad_pictures

TOTAL = 300


def _classes() -> list[BadBody]:
    pictures = [
        BadBody(f"picture_{bad.name}", image_body(_data_url(bad.data)), bad.status, bad.code) for bad in bad_pictures()
    ]
    return [*bad_bodies(), *pictures]


def _data_url(data: bytes) -> str:
    return f"data:{ImageFormat.PNG.mime};base64,{base64.b64encode(data).decode()}"


async def test_every_malformed_request_gets_its_status_and_code(demo_url: str) -> None:
    classes = _classes()
    assert len({bad.name for bad in classes}) == len(classes) >= 40
    url = f"{demo_url}/v1/chat/completions"
    wrong: list[str] = []
    async with aiohttp.ClientSession() as session:
        for index, bad in enumerate(itertools.islice(itertools.cycle(classes), TOTAL)):
            async with session.post(url, data=io.BytesIO(bad.body)) as response:
                answer = json.loads(await response.read())
                seen = (response.status, answer["error"]["code"])
                retry = response.headers["x-should-retry"]
            if seen != (bad.status, bad.code) or retry != "false":
                wrong.append(f"{bad.name}: {seen}, not {(bad.status, bad.code)}")
            if index % 10 == 9:
                async with session.post(url, data=text_body()) as response:
                    assert response.status == 200, bad.name
    assert wrong == []
