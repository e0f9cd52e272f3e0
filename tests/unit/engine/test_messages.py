from __future__ import annotations

import pytest

from opsin.core.errors import ConfigError, ContextLengthExceeded, EngineError, MediaTooLarge, OpsinError
from opsin.core.stages import Stage
from opsin.engine.api import SamplingParams
from opsin.engine.local import messages as m

TO_WORKER: list[m.ToWorker] = [
    m.Load(b"{}"),
    m.Reserve(1, "r", ("a", "b")),
    m.Release("r"),
    m.Submit(
        "r",
        "scope",
        (1, 2, 3),
        (m.PictureData("k", 4, m.Tiles(bytes(12), 1, 2, 2)), m.PictureData("l", 4, None)),
        SamplingParams(temperature=0.5, stop=("\n",), seed=3),
        12.5,
    ),
    m.Cancel("r"),
    m.Purge(2, "scope", None),
    m.Shutdown(),
]
FROM_WORKER: list[m.FromWorker] = [
    m.Progress("loading"),
    m.Ready(1.5, "cpu", "float32", 1),
    m.LoadFailed(m.WireError(m.ErrorKind.CONFIG, "no", "config_error")),
    m.Reserved(1, ("a",)),
    m.Purged(2, 0, m.CoreStats()),
    m.StepOutput(
        (m.Token("r", 7),),
        (m.Ended("r", "cancelled", 3, 1, 0, {Stage.QUEUE: 0.1}, (0.5,)),),
        (m.Failed("s", m.WireError(m.ErrorKind.ENGINE, "no", "engine_died")),),
        m.CoreStats(kv_tokens=3, device_memory_bytes=5),
    ),
]


@pytest.mark.parametrize("message", TO_WORKER, ids=lambda message: type(message).__name__)
def test_round_trip_to_the_worker(message: m.ToWorker):
    frame = m.to_frame(message)
    assert m.body_length(frame[: m.HEADER_BYTES]) == len(frame) - m.HEADER_BYTES
    assert m.decode_to_worker(frame[m.HEADER_BYTES :]) == message


@pytest.mark.parametrize("message", FROM_WORKER, ids=lambda message: type(message).__name__)
def test_round_trip_from_the_worker(message: m.FromWorker):
    assert m.decode_from_worker(m.to_frame(message)[m.HEADER_BYTES :]) == message


@pytest.mark.parametrize("error_class", [ConfigError, ContextLengthExceeded, EngineError])
def test_errors_keep_class_message_and_code(error_class: type[OpsinError]):
    error = m.error_from_wire(m.error_to_wire(error_class("text", code="some_code")))
    assert type(error) is error_class
    assert (error.message, error.code) == ("text", "some_code")


def test_other_errors_become_engine_errors():
    assert type(m.error_from_wire(m.error_to_wire(MediaTooLarge("text")))) is EngineError
