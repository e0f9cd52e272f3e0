"""The verdict of the soak, on records made by hand: it has to fail when something was wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.soak import MAX_GROWTH_MB, WARM_UP_S, Asked, Outage, Record, Sample, checks, growth_mb
from opsin.demo.tasks import NO_PICTURE, Conversation, Turn
from opsin.testing.chat_client import Reply

HELLO = Conversation((), "none", False, (Turn("text_only", "Hello.", NO_PICTURE["en"]),), False)
RIGHT = Asked(HELLO, 0.0, 1.0, Reply(200, "chatcmpl-1", f" {NO_PICTURE['en']}"))
DIED = Asked(HELLO, 9.0, 11.0, Reply(503, "chatcmpl-2", code="engine_died"))
LEFT = Asked(HELLO, 2.0, 3.0)
LOG = ["INFO request_id=chatcmpl-1 status=200", "INFO request_id=chatcmpl-2 status=503 code=engine_died"]


def good() -> Record:
    samples = [Sample(float(at), "gateway", 1, 80.0 + at % 2, 17) for at in range(100)]
    return Record([RIGHT, DIED, LEFT], [Outage(10.0, 15.0)], samples, 17, 17)


def failed(record: Record, log: list[str] = LOG) -> list[str]:
    return [check.name for check in checks(record, log) if not check.holds]


def test_a_good_record_passes() -> None:
    assert failed(good()) == []
    # A client that left may or may not have reached the server.
    assert failed(good(), [*LOG, "INFO request_id=chatcmpl-3 status=499"]) == []


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        (replace(RIGHT, reply=None, failure="ClientPayloadError"), "every request was answered"),
        (replace(DIED, started_at=30.0, ended_at=31.0), "refused only around a kill"),
        (replace(DIED, reply=Reply(500, "chatcmpl-2", code="internal_error")), "refused only around a kill"),
    ],
)
def test_a_bad_request_fails(extra: Asked, name: str) -> None:
    record = good()
    record.asked.append(extra)
    assert name in failed(record)


def test_an_answer_that_comes_otherwise_alone_fails() -> None:
    assert failed(replace(good(), wrong=[RIGHT])) == ["answers are right", "every answer in the log"]


def test_the_log_has_every_answer_once() -> None:
    assert failed(good(), [*LOG, LOG[0]]) == ["no id twice in the log"]
    assert failed(good(), LOG[:1]) == ["every answer in the log"]
    strangers = [f"INFO request_id=chatcmpl-{number} status=200" for number in (8, 9)]
    assert failed(good(), [*LOG, *strangers]) == ["every answer in the log"]


def test_repeats_that_no_cache_found_fail() -> None:
    assert failed(replace(good(), num_repeats=5, cache_hits=1)) == []
    assert failed(replace(good(), num_repeats=5)) == ["repeated pictures are found"]


def test_what_grows_fails() -> None:
    leaking = [Sample(float(at), "engine", 2, 400.0 + at, 7) for at in range(100)]
    record = replace(good(), samples=leaking, descriptors_after=18)
    assert failed(record) == [f"memory is flat (at most {MAX_GROWTH_MB:g} MB)", "descriptors are flat"]
    assert growth_mb(leaking, []) == pytest.approx(99 - WARM_UP_S)


def test_loading_and_warming_up_is_no_growth() -> None:
    steps = [*range(0, 400, 8), *[400] * 60]
    samples = [Sample(float(at), "engine", 2, float(mb), 7) for at, mb in enumerate(steps)]
    assert growth_mb(samples, [Outage(0.0, 5.0)]) == pytest.approx(0)
    assert growth_mb(samples[:50], []) is None


def test_an_engine_that_stays_down_fails() -> None:
    assert "the engine came back" in failed(replace(good(), outages=[Outage(10.0)]))
