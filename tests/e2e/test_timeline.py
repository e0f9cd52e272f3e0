"""Timeline truth: time put into a stage shows up in that stage, and in no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from opsin.core.stages import Stage
from opsin.demo.scenes import random_objects
from opsin.testing.server_process import ServerProcess
from tests.conftest import ONE_THREAD, client_of
from tests.e2e.asking import about, complete, fresh_rng
from tests.tries import TRIES

pytestmark = pytest.mark.timing

INJECTED_MS = {
    Stage.MEDIA_LOAD: 300.0,
    Stage.PREPROCESS: 400.0,
    Stage.VISION_ENCODE: 500.0,
    Stage.QUEUE: 600.0,
    Stage.PREFILL: 700.0,
    Stage.DECODE: 800.0,
}
"""Each is more than the tolerance, and so are all differences: time in a wrong stage is seen, whichever it is."""
TOLERANCE_MS = 60.0
REQUESTS = 5


class Asked:
    """One server, and the shortest time of each stage over all requests so far: what is more is the machine's doing."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._rng = fresh_rng()
        self.shortest_ms: dict[str, float] = {}
        self._ask(1)  # a warm-up
        self.shortest_ms.clear()

    def again(self) -> dict[str, float]:
        """The times after some more requests."""
        self._ask(REQUESTS)
        return self.shortest_ms

    def _ask(self, num_requests: int) -> None:
        """Of one new picture and two tokens each.

        Of one tile each: of several some may be known from the pictures before, and what is known is not delayed.
        """
        with client_of(self._url) as client:
            for _ in range(num_requests):
                messages = about([random_objects(self._rng)], "What shape is it?", detail="low")
                completion = complete(client, messages, max_tokens=2, extra_body={"ignore_eos": True})
                for name, ms in completion.opsin["timeline"].items():
                    if name.endswith("_ms"):
                        self.shortest_ms[name] = min(ms, self.shortest_ms.get(name, ms))


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    """A server without delays and one with all of them: loading side by side, then idle until it is asked."""
    delays = ",".join(f"{stage}={ms / 1e3}" for stage, ms in INJECTED_MS.items())
    with ExitStack() as running:
        servers = [
            running.enter_context(ServerProcess(*words, environment=ONE_THREAD))
            for words in ((), ("--inject-delay", delays))
        ]
        yield [server.until_ready() for server in servers]
    assert [server.wait() for server in servers] == [0, 0]


def test_delays_show_up_where_they_were_put(urls: list[str]) -> None:
    baseline, slowed = map(Asked, urls)
    wrong = list[str]()
    for _ in range(TRIES):
        wrong.append(_what_is_wrong(baseline.again(), slowed.again()))
        if not wrong[-1]:
            return
    pytest.fail(f"wrong in each of {TRIES} tries: {wrong}")


def _what_is_wrong(baseline: dict[str, float], slowed: dict[str, float]) -> str:
    """The stages that did not grow by what was put into them; empty where all did."""
    grown = {name: slowed[name] - baseline[name] for name in baseline if name != "total_ms"}
    expected = {f"{stage}_ms": ms for stage, ms in INJECTED_MS.items()}
    assert expected.keys() <= grown.keys()
    off = {name: ms for name, ms in grown.items() if abs(ms - expected.get(name, 0.0)) > TOLERANCE_MS}
    if baseline["unattributed_ms"] >= 0.2 * baseline["total_ms"] + 5:
        off["unattributed_ms"] = baseline["unattributed_ms"]
    return f"grown by {off}" if off else ""
