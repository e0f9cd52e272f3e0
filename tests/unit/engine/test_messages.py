from __future__ import annotations

import pytest

from opsin.core.errors import Code
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
    m.LoadFailed(m.WireError(Code.CONFIG_ERROR, "no")),
    m.Reserved(1, ("a",)),
    m.Purged(2, 0, m.CoreStats()),
    m.StepOutput(
        (m.Token("r", 7),),
        (m.Ended("r", "cancelled", 3, 1, 0, 0, {Stage.QUEUE: 0.1}, (0.5,), 1),),
        (m.Failed("s", m.WireError(Code.ENGINE_DIED, "no", retry_after_s=1)),),
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


@pytest.mark.parametrize("code", Code)
def test_errors_keep_class_message_and_code(code: Code):
    error = m.error_from_wire(m.error_to_wire(code.error("text", code=code, retry_after_s=3)))
    assert type(error) is code.error
    assert (error.message, error.code, error.retry_after_s) == ("text", code, 3)
