"""Vision features by encoder unit, and which picture is made of which units.

A unit is what the encoder runs apart from everything else: a tile, or a whole picture. Its key stands for its pixels,
so what did not change from one screenshot to the next is found again; a picture is found when all of its units are.
Purging a picture takes the units that no other picture of the scope holds.

Keys are opaque and never shared between scopes; values are opaque objects with a size. A lease keeps an entry usable
for its request even when it is purged or does not fit: then no later lookup finds it, and it is freed when the last
lease ends. What was used more than once outlives what was not (a segmented LRU, Karedla et al. 1994). Where hardly any
unit comes again, only a sample is kept (``HitWatch``). Safe to call from several threads: the worker's reader answers
Reserve while a step runs. Knows no torch.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from opsin.engine.local.hit_watch import HitWatch

PROVEN_SHARE = 0.8
"""How much of the capacity may be held by what was used more than once."""


@dataclass(frozen=True, slots=True)
class Features:
    """What the encoder made of one unit: ``num_tokens`` positions of a prompt; ``value`` belongs to the runner.

    ``tile_size`` is width and height of its tiles in pixels, from which some families make positions.
    """

    value: object
    size_bytes: int
    num_tokens: int
    tile_size: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class PictureUnits:
    """A picture by its key, and the keys of its units in order; the same unit may stand there twice.

    ``origin`` is what it was made of; several pictures can have one.
    """

    key: str
    unit_keys: tuple[str, ...]
    origin: str = ""


@dataclass(slots=True)
class _Entry:
    scope: str
    features: Features
    stored_at: float
    num_leases: int = 0
    pictures: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class _Picture:
    """Exists as long as one of its units is there."""

    scope: str
    units: PictureUnits
    present: set[str] = field(default_factory=set[str])

    @property
    def is_complete(self) -> bool:
        return len(self.present) == len(set(self.units.unit_keys))


@dataclass(slots=True)
class _Leases:
    """What a request holds."""

    pictures: dict[str, PictureUnits] = field(default_factory=dict[str, PictureUnits])
    entries: dict[str, _Entry] = field(default_factory=dict[str, _Entry])


class FeatureCache:
    """At most ``capacity_bytes`` of features that can be found, none older than ``ttl_s``; leased ones stay."""

    def __init__(
        self, capacity_bytes: int, ttl_s: float = float("inf"), now: Callable[[], float] = time.monotonic
    ) -> None:
        self._capacity_bytes = capacity_bytes
        self._ttl_s = ttl_s
        self._now = now
        self._fresh: OrderedDict[str, _Entry] = OrderedDict()  # used once
        self._proven: OrderedDict[str, _Entry] = OrderedDict()
        self._pictures: dict[str, _Picture] = {}
        self._leases: dict[str, _Leases] = {}
        self._size_bytes = self._proven_bytes = 0
        self._lock = threading.Lock()
        self._watch = HitWatch()
        self.hits = 0
        self.misses = 0

    @property
    def size_bytes(self) -> int:
        """Bytes that a lookup can find."""
        return self._size_bytes

    @property
    def is_turned_down(self) -> bool:
        """Whether only a sample is kept, because hardly anything was found again."""
        return self._watch.is_down

    def reserve(self, request_id: str, keys: Iterable[str]) -> frozenset[str]:
        """Leases the pictures of ``keys`` that are there as a whole. This is the lookup that hits and misses count."""
        with self._lock:
            wanted = frozenset(keys)
            leased = frozenset(key for key in wanted if self._lease_picture(request_id, key))
            self.hits += len(leased)
            self.misses += len(wanted) - len(leased)
            return leased

    def leased(self, request_id: str, picture_key: str) -> PictureUnits | None:
        """The units of a picture that ``reserve`` leased."""
        with self._lock:
            leases = self._leases.get(request_id)
            return leases.pictures.get(picture_key) if leases else None

    def take(self, request_id: str, unit_key: str, holder: PictureUnits | None = None) -> Features | None:
        """The features of a unit for a request, leased to it. From now on ``holder`` has this unit too."""
        with self._lock:
            entry = self._lease(request_id, unit_key)
            if self._capacity_bytes and self._watch.saw(unit_key, found=entry is not None):
                self._turn_down()
            if entry is not None and holder is not None and self._entry(unit_key) is entry:
                self._link(unit_key, entry, holder)
            return entry.features if entry else None

    def store(
        self, request_id: str, scope: str, unit_key: str, features: Features, holders: Iterable[PictureUnits]
    ) -> None:
        """Keeps the features of a unit that ``holders`` have, leased to ``request_id``.

        What finds no room lives only as long as the lease.
        """
        with self._lock:
            entry = _Entry(scope=scope, features=features, stored_at=self._now())
            if self._watch.admits(unit_key) and self._make_room(features.size_bytes):
                self._drop(unit_key)
                self._fresh[unit_key] = entry
                self._size_bytes += features.size_bytes
                for holder in holders:
                    self._link(unit_key, entry, holder)
            self._lease_entry(request_id, unit_key, entry)

    def release(self, request_id: str) -> None:
        """Ends all leases of a request. Unknown ids are fine."""
        with self._lock:
            leases = self._leases.pop(request_id, None)
            for entry in leases.entries.values() if leases else ():
                entry.num_leases -= 1

    def purge(self, scope: str, origin: str | None) -> int:
        """Forgets the pictures of one origin in a scope, or all of the scope; returns how many there were."""
        with self._lock:
            doomed = [
                key
                for key, picture in self._pictures.items()
                if picture.scope == scope and origin in (None, picture.units.origin)
            ]
            for key in doomed:
                self._forget_picture(key)
            return len(doomed)

    def names(self, scope: str) -> frozenset[str]:
        """Everything that stands here of a scope: keys of pictures and of units, and what the pictures were made of.

        For whoever wants to see that a deletion has deleted.
        """
        with self._lock:
            pictures = [picture.units for picture in self._pictures.values() if picture.scope == scope]
            units = (key for key, entry in self._entries() if entry.scope == scope)
            of_pictures = ((one.key, one.origin, *one.unit_keys) for one in pictures)
            return frozenset(chain(units, *of_pictures))

    def expire(self) -> None:
        """Forgets what is too old."""
        with self._lock:
            oldest = self._now() - self._ttl_s
            for key in [key for key, entry in self._entries() if entry.stored_at < oldest]:
                self._drop(key)

    def _turn_down(self) -> None:
        """Gives back what was used once; what is leased lives on with its leases."""
        for key in [key for key in self._fresh if not self._watch.admits(key)]:
            self._drop(key)

    def _entries(self) -> Iterator[tuple[str, _Entry]]:
        """Those that are evicted first come first."""
        return chain(self._fresh.items(), self._proven.items())

    def _entry(self, unit_key: str) -> _Entry | None:
        """A unit that can be found."""
        entry = self._fresh.get(unit_key) or self._proven.get(unit_key)
        if entry is not None and entry.stored_at < self._now() - self._ttl_s:
            self._drop(unit_key)
            return None
        return entry

    def _lease_picture(self, request_id: str, key: str) -> bool:
        leases = self._leases.get(request_id)
        if leases is not None and key in leases.pictures:
            return True
        picture = self._pictures.get(key)
        if picture is None or not picture.is_complete:
            return False
        units = picture.units
        if any(self._entry(unit_key) is None for unit_key in units.unit_keys):  # one of them was too old
            return False
        for unit_key in units.unit_keys:
            self._lease(request_id, unit_key)
        self._leases.setdefault(request_id, _Leases()).pictures[key] = units
        return True

    def _lease(self, request_id: str, unit_key: str) -> _Entry | None:
        leases = self._leases.get(request_id)
        if leases is not None and unit_key in leases.entries:
            return leases.entries[unit_key]
        entry = self._entry(unit_key)
        if entry is None:
            return None
        self._prove(unit_key, entry)
        self._lease_entry(request_id, unit_key, entry)
        return entry

    def _lease_entry(self, request_id: str, unit_key: str, entry: _Entry) -> None:
        entry.num_leases += 1
        self._leases.setdefault(request_id, _Leases()).entries[unit_key] = entry

    def _link(self, unit_key: str, entry: _Entry, holder: PictureUnits) -> None:
        picture = self._pictures.setdefault(holder.key, _Picture(entry.scope, holder))
        picture.present.add(unit_key)
        entry.pictures.add(holder.key)

    def _prove(self, unit_key: str, entry: _Entry) -> None:
        """Used again: goes to the proven ones, whose oldest step back when they are too many."""
        if self._fresh.pop(unit_key, None) is not None:
            self._proven_bytes += entry.features.size_bytes
        self._proven[unit_key] = entry
        self._proven.move_to_end(unit_key)
        while self._proven_bytes > PROVEN_SHARE * self._capacity_bytes and len(self._proven) > 1:
            oldest, stepping_back = self._proven.popitem(last=False)
            self._proven_bytes -= stepping_back.features.size_bytes
            self._fresh[oldest] = stepping_back

    def _make_room(self, size_bytes: int) -> bool:
        """Evicts nothing unless what can be evicted is enough."""
        needed = self._size_bytes + size_bytes - self._capacity_bytes
        victims: list[str] = []
        for key, entry in self._entries():
            if needed <= 0:
                break
            if entry.num_leases == 0:
                victims.append(key)
                needed -= entry.features.size_bytes
        if needed > 0:
            return False
        for key in victims:
            self._drop(key)
        return True

    def _forget_picture(self, key: str) -> None:
        """With the units that no other picture holds."""
        for unit_key in self._pictures.pop(key).present:
            entry = self._fresh.get(unit_key) or self._proven[unit_key]
            entry.pictures.discard(key)
            if not entry.pictures:
                self._drop(unit_key)

    def _drop(self, unit_key: str) -> None:
        entry = self._fresh.pop(unit_key, None)
        if entry is None:
            entry = self._proven.pop(unit_key, None)
            if entry is None:
                return
            self._proven_bytes -= entry.features.size_bytes
        self._size_bytes -= entry.features.size_bytes
        for key in entry.pictures:
            picture = self._pictures[key]
            picture.present.discard(unit_key)
            if not picture.present:
                del self._pictures[key]
