"""The benchmark's own judgement: a missed target has to be printed as missed."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from benchmarks.chat_timing import screenshots
from benchmarks.engine import Target
from opsin.bench.photo import PhotoMaker


@pytest.mark.parametrize(
    ("target", "value", "expected"),
    [
        (Target(0.68, 0.76), 0.67, "MISSED"), (Target(0.68, 0.76), 0.68, "met"), (Target(0.68, 0.76), 0.8, "stretch"),
        (Target(1.7, 1.0, at_most=True), 1.71, "MISSED"), (Target(1.7, 1.0, at_most=True), 1.7, "met"),
        (Target(1.7, 1.0, at_most=True), 0.9, "stretch"), (Target(25), 26.0, "met"), (Target(), 1.0, ""),
    ],
)  # fmt: skip
def test_verdicts(target: Target, value: float, expected: str):
    assert target.verdict(value) == expected


def test_about_a_twentieth_of_a_screen_changes():
    first, second = (Image.open(io.BytesIO(one)) for one in screenshots(PhotoMaker(1), 2, (320, 180)))
    pairs = zip(first.tobytes()[::3], second.tobytes()[::3], strict=True)
    changed = sum(one != other for one, other in pairs) / (320 * 180)
    assert 0.04 < changed < 0.06
