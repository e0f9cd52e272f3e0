"""Whose turn it is: start-time fair queueing (Goyal, Vin, Cheng 1996). Pure, no clock, no event loop.

Each key that waits has a start tag: where its last turn ended, or now, in virtual time, if it had none waiting. The
smallest tag is next, and a turn of cost c moves the key's tag on by c. So keys that always wait get equal shares of
cost, whatever the size of single turns: the shares of two differ by at most the largest turn of each. A key that
comes back from a pause starts now and has saved nothing up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class FairOrder(Generic[K]):
    """The order of keys. Choosing takes time in proportion to the keys that wait."""

    def __init__(self) -> None:
        self._now = 0  # virtual time: the start tag of the last turn
        self._starts: dict[K, int] = {}  # of keys that wait
        self._ends: dict[K, int] = {}  # of keys that do not, as long as it matters

    def wait(self, key: K) -> None:
        """The key wants a turn; nothing changes if it waits already."""
        if key not in self._starts:
            self._starts[key] = max(self._now, self._ends.pop(key, 0))

    def leave(self, key: K) -> None:
        """The key wants none any more."""
        self._ends[key] = self._starts.pop(key)

    def by_turn(self) -> list[K]:
        """All that wait, whose turn it is first; of equal ones who waits longer."""
        return sorted(self._starts, key=self._starts.__getitem__)

    def charge(self, key: K, cost: int) -> None:
        """The key has had a turn of this cost, and waits for another."""
        self._now = max(self._now, self._starts[key])
        self._starts[key] += cost
        self._ends = {name: end for name, end in self._ends.items() if end > self._now}


class Lane(StrEnum):
    """Within one tenant, too, texts do not stand behind pictures."""

    TEXT = "text"
    PICTURES = "pictures"


@dataclass(frozen=True, slots=True, eq=False)
class Waiting(Generic[T]):
    """One that waits. ``cost`` is in tokens, visual ones among them."""

    tenant: str
    lane: Lane
    cost: int
    item: T


class FairQueue(Generic[T]):
    """First in, first out within a tenant's lane; fair between the lanes of a tenant, and between tenants."""

    def __init__(self) -> None:
        self._tenants: FairOrder[str] = FairOrder()
        self._lanes: dict[str, FairOrder[Lane]] = {}
        self._queues: dict[tuple[str, Lane], deque[Waiting[T]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def push(self, waiting: Waiting[T]) -> None:
        """At the end of its lane."""
        tenant, lane = waiting.tenant, waiting.lane
        self._queues.setdefault((tenant, lane), deque()).append(waiting)
        self._lanes.setdefault(tenant, FairOrder()).wait(lane)
        self._tenants.wait(tenant)

    def has_any(self, *, without: frozenset[str] = frozenset()) -> bool:
        """Whether anybody waits, of all but some tenants."""
        return any(tenant not in without for tenant in self._lanes)

    def pop(self, *, without: frozenset[str] = frozenset()) -> Waiting[T] | None:
        """Whose turn it is, of all but some tenants; None where nobody else waits."""
        tenant = next((name for name in self._tenants.by_turn() if name not in without), None)
        if tenant is None:
            return None
        lane = self._lanes[tenant].by_turn()[0]
        first = self._queues[tenant, lane].popleft()
        self._tenants.charge(tenant, first.cost)
        self._lanes[tenant].charge(lane, first.cost)
        self._tidy(tenant, lane)
        return first

    def remove(self, waiting: Waiting[T]) -> bool:
        """Takes one out that does not want its turn any more, for which nobody is charged; False if it had it."""
        queue = self._queues.get((waiting.tenant, waiting.lane), deque())
        if waiting not in queue:
            return False
        queue.remove(waiting)
        self._tidy(waiting.tenant, waiting.lane)
        return True

    def _tidy(self, tenant: str, lane: Lane) -> None:
        if self._queues[tenant, lane]:
            return
        del self._queues[tenant, lane]
        self._lanes[tenant].leave(lane)
        if not any(owner == tenant for owner, _ in self._queues):
            self._tenants.leave(tenant)
            del self._lanes[tenant]
