"""A render worker: ``python -m opsin.media.worker FD LOG_LEVEL LOG_FORMAT``.

It is set up and given tasks over the socket FD, one at a time, and ends when the other side closes. Knows no request
and no model.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import warnings
from io import BufferedReader, BufferedWriter

from opsin.core.errors import MediaUndecodable
from opsin.media.confine import allow_cpu_s, confine
from opsin.media.decode import verify
from opsin.media.lift import lift
from opsin.media.messages import (
    LENGTH,
    Answer,
    Done,
    Failed,
    LiftTask,
    Ready,
    Setup,
    Task,
    decode_setup,
    decode_task,
    encode,
)
from opsin.media.plugins import STARTS_THREADS
from opsin.media.render import render
from opsin.media.undecodable import Failure
from opsin.media.warm_up import warm_up
from opsin.telemetry import logs


def main() -> None:
    """Runs until the parent closes the socket."""
    _silence_libraries()
    logs.configure(*sys.argv[2:])
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        reader, writer = channel.makefile("rb"), channel.makefile("wb")
        setup = decode_setup(_receive_message(reader))
        warm_up(setup.formats)
        _send(writer, Ready(confine(setup.memory_bytes, threads=bool(STARTS_THREADS & set(setup.formats)))))
        while (received := _receive(reader)) is not None:
            allow_cpu_s(setup.cpu_s)
            _send(writer, _run(*received, setup))


def _silence_libraries() -> None:
    """Leaves the log to us: what decoders print and warn of is about the picture, and may quote it."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    os.dup2(1, 2)  # the standard output of a worker is nowhere
    logging.getLogger("PIL").setLevel(logging.CRITICAL + 1)
    warnings.simplefilter("ignore")


def _run(task: Task, data: bytes, setup: Setup) -> Answer:
    try:
        if isinstance(task, LiftTask):
            return lift(data, task.marker, task.max_image_bytes, setup.formats)
        if task.recipe is None:
            verify(data, task.header)
            return Done(b"")
        return Done(render(data, task.header, task.recipe))
    except MediaUndecodable as error:
        return Failed(Failure(error.code))
    except MemoryError:
        return Failed(Failure.MEMORY)


def _receive(stream: BufferedReader) -> tuple[Task, bytes] | None:
    """The next task and its data; None at the end of the stream."""
    message = _receive_message(stream)
    if not message:
        return None
    task = decode_task(message)
    data = stream.read(task.num_bytes)
    return (task, data) if len(data) == task.num_bytes else None


def _receive_message(stream: BufferedReader) -> bytes:
    """Empty at the end of the stream."""
    prefix = stream.read(LENGTH.size)
    if len(prefix) < LENGTH.size:
        return b""
    (length,) = LENGTH.unpack(prefix)
    message = stream.read(length)
    return message if len(message) == length else b""


def _send(stream: BufferedWriter, answer: Answer) -> None:
    payload = encode(answer)
    stream.write(LENGTH.pack(len(payload)))
    stream.write(payload)
    stream.flush()


if __name__ == "__main__":
    main()
