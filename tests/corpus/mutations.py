"""Files of every format and ways to damage them by chance, for tests and for the fuzzer. A mutator works in place."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from opsin.media.types import ImageFormat
from tests.corpus.golden import golden_cases
from tests.corpus.golden_rare import rare_cases
from tests.corpus.pictures import animation

EXTREMES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)


def other_bytes(chance: random.Random, data: bytearray) -> None:
    for _ in range(chance.choice((1, 2, 8, 40))):
        data[chance.randrange(len(data))] = chance.randrange(256)


def other_bits_near_the_start(chance: random.Random, data: bytearray) -> None:
    for _ in range(3):
        data[chance.randrange(min(len(data), 300))] ^= 1 << chance.randrange(8)


def a_lie_in_the_header(chance: random.Random, data: bytearray) -> None:
    position, number = chance.randrange(min(len(data), 400) - 4), chance.choice(EXTREMES)
    order, (form, num_bytes) = chance.choice("<>"), chance.choice((("I", 4), ("H", 2)))
    data[position : position + num_bytes] = struct.pack(order + form, number % 256**num_bytes)


def an_end(chance: random.Random, data: bytearray) -> None:
    del data[chance.randrange(1, len(data)) :]


def a_gap(chance: random.Random, data: bytearray) -> None:
    start = chance.randrange(len(data))
    del data[start : start + chance.choice((1, 2, 4, 16, 100))]


def a_part_twice(chance: random.Random, data: bytearray) -> None:
    start = chance.randrange(len(data))
    data[start:start] = data[start : start + 500]


def one_value(chance: random.Random, data: bytearray) -> None:
    start, length = chance.randrange(len(data)), chance.choice((4, 16, 64))
    data[start : start + length] = bytes([chance.choice((0, 255))]) * length


MUTATORS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    *(other_bytes, other_bits_near_the_start, a_lie_in_the_header, an_end, a_gap, a_part_twice, one_value),
)


def originals(image_format: ImageFormat) -> list[bytes]:
    cases = [case for case in (*golden_cases(), *rare_cases()) if case.name.split()[0] == image_format]
    animated = [animation(image_format)] if image_format in ("gif", "png", "webp", "tiff", "avif") else []
    return [*(case.build(6 if case.oriented else 1) for case in cases), *animated]
