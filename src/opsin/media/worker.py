"""A render worker: ``python -m opsin.media.worker FD MEMORY_BYTES CPU_S LOG_LEVEL LOG_FORMAT``.

It serves tasks from the socket FD, one at a time, and ends when the other side closes. Knows no request and no model.
"""

from __future__ import annotations

import socket
import sys
import warnings
from io import BufferedReader, BufferedWriter, BytesIO

from PIL import Image

from opsin.core.errors import MediaUndecodable
from opsin.media import render
from opsin.media.confine import allow_cpu_s, confine
from opsin.media.header import read_header
from opsin.media.lift import lift
from opsin.media.messages import LENGTH, Answer, Done, Failed, LiftTask, Ready, Task, decode_task, encode
from opsin.media.types import ImageFormat
from opsin.media.undecodable import Failure
from opsin.telemetry import logs
from opsin.vision.plan import RenderRecipe, Size


def main() -> None:
    """Runs until the parent closes the socket."""
    descriptor, memory_bytes, cpu_s = (int(argument) for argument in sys.argv[1:4])
    logs.configure(*sys.argv[4:])
    warnings.simplefilter("ignore")  # Pillow's are about the picture, and nobody reads them here
    with socket.socket(fileno=descriptor) as channel:
        reader, writer = channel.makefile("rb"), channel.makefile("wb")
        _warm_up()
        confine(memory_bytes)
        _send(writer, Ready())
        while (received := _receive(reader)) is not None:
            allow_cpu_s(cpu_s)
            _send(writer, _run(*received))


def _run(task: Task, data: bytes) -> Answer:
    try:
        if isinstance(task, LiftTask):
            return lift(data, task.marker, task.max_image_bytes)
        if task.recipe is None:
            render.verify(data, task.header)
            return Done(b"")
        return Done(render.render(data, task.header, task.recipe))
    except MediaUndecodable as error:
        return Failed(Failure(error.code))
    except MemoryError:
        return Failed(Failure.MEMORY)


def _receive(stream: BufferedReader) -> tuple[Task, bytes] | None:
    """The next task and its data; None at the end of the stream."""
    prefix = stream.read(LENGTH.size)
    if len(prefix) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(prefix)
    message = stream.read(length)
    if len(message) < length:
        return None
    task = decode_task(message)
    data = stream.read(task.num_bytes)
    return (task, data) if len(data) == task.num_bytes else None


def _send(stream: BufferedWriter, answer: Answer) -> None:
    payload = encode(answer)
    stream.write(LENGTH.pack(len(payload)))
    stream.write(payload)
    stream.flush()


def _warm_up() -> None:
    """Renders a picture of each format, so that nothing is imported or opened once the worker is confined."""
    recipe = RenderRecipe((Size(2, 2),), Size(1, 1), rows=2, columns=2, overview=True)
    for image_format in ImageFormat:
        buffer = BytesIO()
        Image.new("RGB", (3, 3)).save(buffer, image_format.value)
        data = buffer.getvalue()
        render.render(data, read_header(data, None), recipe)


if __name__ == "__main__":
    main()
