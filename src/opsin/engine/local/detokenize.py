"""From token ids to deltas: incremental text with stop strings found across token borders.

Knows no tokenizer: the detokenizer (which holds incomplete UTF-8 back) is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from opsin.engine.api import Delta


class Detokenizer(Protocol):
    """Turns one request's ids into text, never half a character."""

    def push(self, token_id: int) -> str:
        """Text that this token completed; may be empty."""
        ...

    def flush(self) -> str:
        """Text held back; nothing more will be pushed."""
        ...


class StopStrings:
    """Passes text through up to the first stop string, which is not passed."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(text for text in stop if text)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Text that can no longer be part of a stop string."""
        self._held += text
        starts = [start for stop in self._stop if (start := self._held.find(stop)) >= 0]
        if starts:
            self.found = True
            return self._give(min(starts), keep=False)
        return self._give(len(self._held) - self._undecided(), keep=True)

    def flush(self) -> str:
        """The rest: nothing follows that could complete a stop string."""
        return self._give(len(self._held), keep=False)

    def _undecided(self) -> int:
        """Length of the longest suffix that begins a stop string."""
        longest = min(len(self._held), max((len(stop) - 1 for stop in self._stop), default=0))
        for length in range(longest, 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stop):
                return length
        return 0

    def _give(self, length: int, *, keep: bool) -> str:
        text, rest = self._held[:length], self._held[length:]
        self._held = rest if keep else ""
        return text


class TextStream:
    """One request's tokens as deltas. Text of the first ``min_tokens`` tokens is not searched for stop strings."""

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str], min_tokens: int) -> None:
        self._detokenizer = detokenizer
        self._stop = StopStrings(stop)
        self._unsearched = min_tokens
        self._pending_tokens = 0
        self.num_tokens = 0

    @property
    def stopped(self) -> bool:
        """A stop string was found: push nothing more."""
        return self._stop.found

    def push(self, token_id: int) -> Delta | None:
        """The next delta, or None while text is held back."""
        self.num_tokens += 1
        self._pending_tokens += 1
        text = self._detokenizer.push(token_id)
        return self._delta(text if self.num_tokens <= self._unsearched else self._stop.push(text))

    def finish(self) -> Delta | None:
        """The last delta of a stream that no stop string ended."""
        last = self._detokenizer.flush()
        text = self._stop.push(last)
        return self._delta(text if self.stopped else text + self._stop.flush())

    def _delta(self, text: str) -> Delta | None:
        if not text:
            return None
        num_tokens, self._pending_tokens = self._pending_tokens, 0
        return Delta(text=text, num_tokens=num_tokens)
