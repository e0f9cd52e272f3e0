"""Bodies are whole requests in pieces of one file, in which a picture is once."""

from __future__ import annotations

import base64
import json
import os
from contextlib import closing
from typing import Any

import pytest

from opsin.bench.bodies import Body, BodyMaker, Spool
from opsin.bench.config import checked
from opsin.bench.pictures import source_of
from opsin.bench.record import ServerFacts
from opsin.bench.workload import Workload, plan


def made(spool: Spool, running_usage: bool = False, **values: Any) -> tuple[Workload, list[Body], BodyMaker]:
    config = checked({"url": "http://h", "resolution": "64x48", "num_warmups": 0, **values})
    workload = plan(config, [6])
    maker = BodyMaker(config, ServerFacts(model='de"mo', running_usage=running_usage), source_of(config), spool)
    assert len(list(maker.draw(workload.pictures))) == len(workload.pictures)
    return workload, maker.bodies(workload.asks), maker


def content(spool: Spool, body: Body) -> dict[str, Any]:
    return json.loads(b"".join(os.pread(spool.fd, span.num_bytes, span.offset) for span in body.spans))


@pytest.mark.parametrize("detail", [None, "high"])
def test_a_body_is_the_request_it_stands_for(detail: str | None) -> None:
    with closing(Spool()) as spool:
        workload, bodies, _ = made(spool, images="2", detail=detail, output_len=7, ignore_eos=True)
        ask, body = workload.levels[0][0], bodies[0]
        request = content(spool, body)
        assert body.num_bytes == sum(span.num_bytes for span in body.spans)
    assert request["model"] == 'de"mo'
    assert (request["stream"], request["stream_options"]) == (True, {"include_usage": True})
    assert (request["max_tokens"], request["temperature"], request["ignore_eos"]) == (7, 0, True)
    (message,) = request["messages"]
    *pictures, text = message["content"]
    assert text == {"type": "text", "text": f"{ask.words}?"}
    assert [part["image_url"].get("detail") for part in pictures] == [detail] * 2
    for part, sent in zip(pictures, body.pictures, strict=True):
        data = base64.b64decode(part["image_url"]["url"].removeprefix("data:image/jpeg;base64,"))
        assert len(data) == sent.num_bytes
        assert (sent.width, sent.height) == (64, 48)


def test_the_model_comes_first_so_that_a_server_can_know_it_early() -> None:
    with closing(Spool()) as spool:
        _, bodies, _ = made(spool)
        assert os.pread(spool.fd, 10, bodies[0].spans[0].offset).startswith(b'{"model":')


def test_running_usage_is_asked_for_where_it_is_known() -> None:
    with closing(Spool()) as spool:
        _, bodies, _ = made(spool, running_usage=True)
        options = content(spool, bodies[0])["stream_options"]
    assert options == {"include_usage": True, "continuous_usage_stats": True}


def test_a_repeated_picture_is_in_the_file_once() -> None:
    with closing(Spool()) as few, closing(Spool()) as many:
        made(few, cache="warm:1", images="1")
        made(many, cache="warm:1", images="9")
        assert many.num_bytes == few.num_bytes


def test_the_same_pictures_have_the_same_digest() -> None:
    with closing(Spool()) as first, closing(Spool()) as second, closing(Spool()) as other:
        digests = [made(first)[2].dataset, made(second)[2].dataset, made(other, seed=1)[2].dataset]
    assert digests[0] == digests[1] != digests[2]
