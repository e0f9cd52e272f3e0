"""The fuzzer's own judgement, on records made by hand: it has to fail when something was wrong."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import strategies as st

from benchmarks.fuzz_media import MAX_ANSWER_S, MAX_GROWTH_MB, Answered, Record, checks
from benchmarks.fuzz_parsers import Finding, Target, fuzz, outcome_of
from benchmarks.fuzz_requests import CANARY, Attempt
from benchmarks.soak import WARM_UP_S, Sample
from opsin.core.errors import MediaError
from opsin.testing.chat_client import Reply

REFUSED = Reply(422, "chatcmpl-1", code="image_truncated", message="The picture's data ends before the picture does.")
DAMAGED = Answered(Attempt("damaged picture", b"{}"), 0.1, REFUSED)
GOOD = Answered(Attempt("good", b"{}"), 0.1, Reply(200, "chatcmpl-2", CANARY))
LOG = ["INFO request_id=chatcmpl-1 status=422 code=image_truncated\n"]


def good(*more: Answered) -> Record:
    samples = [Sample(float(at), "gateway", 1, 80.0 + at % 2, 17) for at in range(100)]
    return Record([GOOD, DAMAGED, *more], samples, [200, 200], 17, 17)


def failed(record: Record, log: list[str] = LOG, findings: tuple[Finding, ...] = ()) -> list[str]:
    return [check.name for check in checks(findings, record, log) if not check.holds]


def test_a_good_record_passes() -> None:
    full = replace(REFUSED, status=503, code="overloaded")
    assert failed(good(replace(DAMAGED, reply=full))) == []


@pytest.mark.parametrize(
    "bad",
    [
        replace(DAMAGED, reply=None, failure="ServerDisconnectedError"),
        replace(DAMAGED, reply=replace(REFUSED, status=500, code="internal_error")),
        replace(DAMAGED, reply=replace(REFUSED, status=503, code="engine_died")),
        replace(DAMAGED, reply=replace(REFUSED, status=200, code="engine_internal_error", in_band=True)),
        replace(DAMAGED, reply=replace(REFUSED, code="no_such_code")),
        replace(DAMAGED, reply=replace(REFUSED, message=f"{CANARY} is no picture")),
        replace(DAMAGED, reply=replace(REFUSED, message="cannot identify image file")),
        replace(GOOD, reply=REFUSED),
    ],
)
def test_a_wrong_answer_fails(bad: Answered) -> None:
    assert failed(good(bad)) == ["every answer is right"]


def test_a_hang_fails() -> None:
    assert failed(good(replace(DAMAGED, seconds=MAX_ANSWER_S))) == [f"answered within {MAX_ANSWER_S:g} s"]


@pytest.mark.parametrize("line", ["Traceback (most recent call last):\n", f"INFO said {CANARY}\n"])
def test_what_the_log_must_not_say_fails(line: str) -> None:
    assert failed(good(), [*LOG, line]) == ["the log repeats nothing"]


def test_what_grows_fails() -> None:
    record = good()
    step = (MAX_GROWTH_MB + 1) / (99 - WARM_UP_S)
    record.samples = [replace(one, rss_mb=80 + one.at * step) for one in record.samples]
    record.descriptors_after += 1
    assert failed(record) == [f"memory is flat (at most {MAX_GROWTH_MB:g} MB)", "descriptors are flat"]


@pytest.mark.parametrize("statuses", [[], [200, 503]])
def test_bad_health_fails(statuses: list[int]) -> None:
    record = good()
    record.health = statuses
    assert failed(record) == ["/health answers"]


def test_what_a_parser_must_not_raise_is_found_once_and_small() -> None:
    def tried(number: object) -> str:
        assert isinstance(number, int)
        return outcome_of(lambda: refuse(number))

    tried_out = fuzz((Target("numbers", st.integers(0, 1000), tried),), random.Random(1), 60)
    (found,) = tried_out.findings
    assert (found.kind, found.what) == ("numbers", "KeyError: 'too large'")
    assert "10" in found.example
    assert tried_out.outcomes["numbers"].keys() == {"good", "invalid_media"}
    assert failed(good(), findings=(found,)) == ["parsers give a value or a documented error"]


def refuse(number: int) -> None:
    if number >= 10:
        raise KeyError("too large")
    if number % 2:
        raise MediaError("odd")
