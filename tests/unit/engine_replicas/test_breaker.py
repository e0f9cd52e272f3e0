"""When a replica is left alone, and what lets it back in."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from opsin.engine.replicas.breaker import Breaker
from opsin.engine.replicas.config import RoutingConfig

CONFIG = RoutingConfig(eject_after=3, eject_s=5, max_eject_s=60)


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock, config: RoutingConfig = CONFIG) -> Breaker:
    breaker = Breaker(config, clock)
    for _ in range(config.eject_after):
        breaker.failed()
    return breaker


def test_failures_in_a_row_open_it() -> None:
    breaker = Breaker(CONFIG, Clock())
    for _ in range(5):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.admits()
    breaker.failed()
    breaker.failed()
    breaker.abandoned()
    breaker.failed()
    assert not breaker.admits()
    assert breaker.ejections == 1


def test_one_trial_decides_when_the_time_is_over() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 4.9
    assert not breaker.admits()
    clock.now += 0.1
    assert breaker.admits()
    breaker.begun()
    assert not breaker.admits()
    breaker.succeeded()
    assert breaker.admits()
    assert not breaker.is_open


def test_a_trial_that_nobody_waits_for_is_no_verdict() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 5
    breaker.begun()
    breaker.abandoned()
    assert breaker.is_open
    assert breaker.admits()


def test_every_failed_trial_doubles_the_time_up_to_the_cap() -> None:
    clock = Clock()
    breaker = opened(clock)
    waits = list[float]()
    for _ in range(6):
        began = clock.now
        while not breaker.admits():
            clock.now += 0.5
        waits.append(clock.now - began)
        breaker.begun()
        breaker.failed()
    assert waits == [5, 10, 20, 40, 60, 60]


def test_late_failures_of_before_do_not_extend_it() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 4
    for _ in range(10):
        breaker.failed()
    clock.now += 1
    assert breaker.admits()
    assert breaker.ejections == 1


@pytest.mark.parametrize(("healthy_s", "left_alone_s"), [(1.0, 10.0), (60.0, 5.0)])
def test_a_long_healthy_time_forgives(healthy_s: float, left_alone_s: float) -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 5
    breaker.begun()
    breaker.succeeded()
    clock.now += healthy_s
    for _ in range(CONFIG.eject_after):
        breaker.failed()
    clock.now += left_alone_s - 0.1
    assert not breaker.admits()
    clock.now += 0.1
    assert breaker.admits()


@given(st.lists(st.sampled_from(["begun", "succeeded", "failed", "abandoned", "wait"]), max_size=60))
def test_it_is_never_shut_for_longer_than_the_cap(events: list[str]) -> None:
    clock = Clock()
    breaker = Breaker(CONFIG, clock)
    for event in events:
        if event == "wait":
            clock.now += 3
        else:
            getattr(breaker, event)()
    breaker.abandoned()
    clock.now += CONFIG.max_eject_s
    assert breaker.admits()


def test_the_cap_is_not_below_the_first_time() -> None:
    with pytest.raises(ValidationError, match=r"max_eject_s \(1\) should not be less than eject_s \(5\)"):
        RoutingConfig(eject_s=5, max_eject_s=1)
