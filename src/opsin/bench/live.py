"""Progress and figures on a terminal while a run goes. Knows no results file."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from opsin.bench.metrics import is_ok, ttft
from opsin.bench.record import Kind, Record
from opsin.bench.stats import percentile

_RECENT = 200


class Live:
    """A :class:`opsin.bench.watcher.Watcher` that draws a bar per phase. Figures are rough; the tables are exact."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._pictures: TaskID | None = None
        self._phase: TaskID | None = None
        self._ok = self._failed = 0
        self._ttft_ms: deque[float] = deque(maxlen=_RECENT)

    def preparing(self, done: int, total: int) -> None:
        """See Watcher."""
        if self._pictures is None:
            self._pictures = self._progress.add_task("pictures", total=total, figures="")
        self._progress.update(self._pictures, completed=done)

    def began(self, title: str, total: int) -> None:
        """See Watcher."""
        self._ok = self._failed = 0
        self._ttft_ms.clear()
        self._phase = self._progress.add_task(title, total=total, figures="")

    def saw(self, record: Record) -> None:
        """See Watcher. Probes beside a load do not move its bar."""
        if self._phase is None or (record.kind is Kind.PROBE and record.level >= 0):
            return
        if is_ok(record):
            self._ok += 1
            if (value := ttft(record)) is not None:
                self._ttft_ms.append(value)
        else:
            self._failed += 1
        self._progress.update(self._phase, advance=1, figures=escape(self._figures()))

    def _figures(self) -> str:
        figures = [f"ok {self._ok}"]
        if self._failed:
            figures.append(f"failed {self._failed}")
        if self._ttft_ms:
            figures.append(f"TTFT p50 {percentile(sorted(self._ttft_ms), 0.5):,.0f} ms")
        return " · ".join(figures)


@contextmanager
def live(console: Console) -> Generator[Live]:
    """Bars for as long as the block runs; on no terminal, nothing moves and the last state is printed."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield Live(progress)
