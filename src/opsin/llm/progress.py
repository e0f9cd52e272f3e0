"""What the terminal shows while it takes long: that a model loads, and a progress bar in the place of vLLM's tqdm."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

logger = logging.getLogger(__name__)


@contextmanager
def loading(model: str) -> Generator[None]:
    """A line in the log, and a sign of life where standard error is a terminal."""
    logger.info("loading %s", model)
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(f"loading {escape(model)} …"):
        yield


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
