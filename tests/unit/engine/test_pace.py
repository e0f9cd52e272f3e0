from __future__ import annotations

from dataclasses import dataclass

from opsin.engine.local.pace import ENCODING_PER_DECODING, Pace


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A pace whose decode steps take as long as the test says."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.pace = Pace(self.clock)

    def decode(self, seconds: float) -> None:
        started = self.clock.now
        self.clock.now += seconds
        self.pace.decoded(started)

    def turn_s(self, num_waiting: int = 1, num_units: int = 1, unit_tokens: int = 64) -> float:
        """After how long, in steps of 0.01 s, a decode step is due; the clock stays there."""
        started = self.clock.now
        while not self.pace.is_due(num_waiting, num_units, unit_tokens):
            self.clock.now = round(self.clock.now + 0.01, 2)
            assert self.clock.now < started + 1000
        return round(self.clock.now - started, 2)


def test_nothing_is_due_before_the_first_decode_step():
    bench = Bench()
    bench.clock.now += 1000
    assert not bench.pace.is_due(1, 2, 64)


def test_a_decode_step_is_due_after_some_times_its_own_length():
    bench = Bench()
    bench.decode(0.1)
    assert bench.turn_s() == round(0.1 * ENCODING_PER_DECODING, 2)
    bench.decode(0.1)
    assert bench.turn_s() == round(0.1 * ENCODING_PER_DECODING, 2)


def test_one_slow_step_moves_nothing():
    bench = Bench()
    bench.decode(0.1)
    bench.decode(5.0)
    assert bench.turn_s() == round(0.1 * ENCODING_PER_DECODING, 2)


def test_steps_that_became_longer_count():
    bench = Bench()
    bench.decode(0.1)
    for _ in range(20):
        bench.decode(0.5)
    assert bench.turn_s() == round(0.5 * ENCODING_PER_DECODING, 2)


def test_turns_are_longer_where_more_requests_wait():
    bench = Bench()
    bench.decode(0.1)
    assert bench.turn_s(num_waiting=3) == round(0.3 * ENCODING_PER_DECODING, 2)


def test_of_several_units_a_turn_is_one_of_them_at_most():
    bench = Bench()
    bench.decode(0.1)
    assert bench.turn_s(num_waiting=9, num_units=2) == round(0.9 * ENCODING_PER_DECODING, 2)
    for unit_s in (0.5, 3.0):
        bench.pace.encoded(unit_s, 64)
    bench.decode(0.1)
    assert bench.turn_s(num_waiting=9, num_units=2) == 0.5
    bench.decode(0.1)
    assert bench.turn_s(num_waiting=9) == round(0.9 * ENCODING_PER_DECODING, 2)


def test_a_small_picture_before_large_ones_does_not_shorten_their_turns():
    bench = Bench()
    bench.pace.encoded(0.1, 16)
    bench.decode(0.1)
    assert bench.turn_s(num_waiting=9, num_units=2, unit_tokens=400) == 2.5
