"""A progress bar on the terminal, in the place of vLLM's tqdm."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress(total: int, *, shown: bool) -> Generator[Callable[[], None]]:
    """Yields what to call after each prompt, from any thread. Shows nothing where standard error is no terminal."""
    if not shown or not sys.stderr.isatty():
        yield lambda: None
        return
    columns = (TextColumn("processed prompts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
