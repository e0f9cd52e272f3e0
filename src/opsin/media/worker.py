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
from opsin.media.confine import confine
from opsin.media.decode import verify
from opsin.media.messages import (
    LENGTH,
    Answer,
    Done,
    Failed,
    Ready,
    ScaleTask,
    Setup,
    Task,
    Written,
    decode_setup,
    decode_task,
    encode,
)
from opsin.media.plugins import STARTS_THREADS
from opsin.media.render import render
from opsin.media.scale import scale
from opsin.media.undecodable import Failure
from opsin.media.warm_up import warm_up
from opsin.telemetry import logs

_FREE_BYTES = 64 * 2**20
_BYTES_PER_PIXEL = 32
"""The costliest pictures, animated WebP and AVIF with alpha, take 20 to 23 for each pixel of 25 Mpx."""
_BYTES_PER_MADE_PIXEL = 16
"""Of what a recipe makes: Pillow takes 4, and a tile is copied three times as 3 bytes until it is sent."""


def main() -> None:
    """Runs until the parent closes the socket."""
    _silence_libraries()
    logs.configure(*sys.argv[2:])
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        reader, writer = channel.makefile("rb"), channel.makefile("wb")
        setup = decode_setup(_receive_message(reader))
        warm_up(setup.formats)
        confinement = confine(setup.memory_bytes, threads=bool(STARTS_THREADS & set(setup.formats)))
        _send(writer, Ready(confinement.level))
        while (task := _receive_task(reader)) is not None:
            confinement.allow(cpu_s=setup.cpu_s, memory_bytes=_memory_bytes(task))
            if len(data := reader.read(task.num_bytes)) < task.num_bytes:
                return
            _send(writer, _run(task, data, setup))


def _silence_libraries() -> None:
    """Leaves the log to us: what decoders print and warn of is about the picture, and may quote it."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    os.dup2(1, 2)  # the standard output of a worker is nowhere
    logging.getLogger("PIL").setLevel(logging.CRITICAL + 1)
    warnings.simplefilter("ignore")


def _run(task: Task, data: bytes, setup: Setup) -> Answer:
    try:
        if isinstance(task, ScaleTask):
            return Written(scale(data, task.header, task.size, task.encoding))
        if task.recipe is None:
            verify(data, task.header)
            return Done(b"")
        return Done(render(data, task.header, task.recipe, setup.mode))
    except MediaUndecodable as error:
        return Failed(Failure(error.code))
    except MemoryError:
        return Failed(Failure.MEMORY)


def _memory_bytes(task: Task) -> int:
    """Enough for what its header declares, so that a picture that lies there cannot take more than its share."""
    decoding = _FREE_BYTES + task.num_bytes + _BYTES_PER_PIXEL * task.header.size.area
    if isinstance(task, ScaleTask):
        return decoding + _BYTES_PER_PIXEL * task.size.area
    if task.recipe is None:
        return decoding
    made = sum(size.area for size in task.recipe.work(task.header.upright))
    return decoding + _BYTES_PER_MADE_PIXEL * (made + task.recipe.num_tiles * task.recipe.tile.area)


def _receive_task(stream: BufferedReader) -> Task | None:
    """None at the end of the stream; the data of the task follows in it."""
    message = _receive_message(stream)
    return decode_task(message) if message else None


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
