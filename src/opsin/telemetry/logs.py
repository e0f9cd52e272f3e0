"""Log lines for operators: one line per event, as ``key=value`` or JSON. No prompts, payloads, keys or URLs.

Exceptions of libraries quote what they were given, so a logged exception is its type and the way it took, never its
text. Where a text cannot come from a request, as while a model loads, the caller puts it into the message. Whatever a
process leaves uncaught is logged the same way.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from pathlib import PurePath
from types import TracebackType

logger = logging.getLogger(__name__)

_BARE = re.compile(r"[!#-<>-\[\]-~]+")  # printable ASCII that needs no quotes
_CONTROL = {code: f"\\u{code:04x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}


class LogFormat(StrEnum):
    """How a line is written."""

    TEXT = "text"  # time, level, logger, message
    JSON = "json"  # one object with the same, and each field under its name


@dataclass(frozen=True, slots=True)
class Fields:
    """Named values as the argument of a log message."""

    values: dict[str, object]

    def __str__(self) -> str:
        return " ".join(f"{name}={_quoted(value)}" for name, value in self.values.items())


def fields(**values: object) -> Fields:
    """``key=value`` pairs in the order given; None is left out."""
    return Fields({name: value for name, value in values.items() if value is not None})


def configure(level: str, log_format: str = LogFormat.TEXT) -> None:
    """Sends all of opsin's logs to standard error; other libraries' only from WARNING."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if log_format == LogFormat.JSON else _Text())
    # force: a handler that a library installed before would write exceptions with their texts.
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("opsin").setLevel(level.upper())
    logging.getLogger("asyncio").addFilter(_without_reprs)
    logging.raiseExceptions = False  # a line that cannot be written would be printed with its arguments
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # no line tells them
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable


def child_arguments() -> tuple[str, str]:
    """What a child process gives to ``configure`` to log as this one does."""
    level = logging.getLevelName(logging.getLogger("opsin").getEffectiveLevel()).lower()
    in_json = any(isinstance(handler.formatter, _Json) for handler in logging.getLogger().handlers)
    return level, LogFormat.JSON if in_json else LogFormat.TEXT


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told = "".join(f" exception={_quoted(told)}" for told in _exceptions(record))
        message = record.getMessage().translate(_CONTROL)
        return f"{_time(record)} {record.levelname} {record.name} {message}{told}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        given = record.args if isinstance(record.args, tuple) else ()
        groups = [argument for argument in given if isinstance(argument, Fields)]
        for group in groups:
            line |= group.values
        if record.msg != "%s" or not groups:  # fields alone need no second telling
            line["message"] = record.getMessage()
        for told in _exceptions(record):
            line["exception"] = told
        return json.dumps(line, default=str)


def _time(record: logging.LogRecord) -> str:
    seconds, rest_s = divmod(record.created, 1)
    return f"{_second(int(seconds))}.{int(rest_s * 1e3):03d}+00:00"


@lru_cache(maxsize=2)
def _second(since_1970: int) -> str:
    return f"{datetime.fromtimestamp(since_1970, UTC):%Y-%m-%dT%H:%M:%S}"


def _quoted(value: object) -> str:
    text = str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text)


def _exceptions(record: logging.LogRecord) -> Iterator[str]:
    """The exception of a record, if it has one."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        yield " caused by ".join(_way(one) for one in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, then what it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _way(error: BaseException) -> str:
    """From where it was raised outwards: ``ValueError at prompt/build.py:88 splice < gateway/chat.py:40 answer``."""
    frames = [
        f"{'/'.join(PurePath(frame.f_code.co_filename).parts[-2:])}:{line} {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    kind = type(error).__qualname__
    if isinstance(error, OSError) and (code := errno.errorcode.get(error.errno or 0)):
        kind += f" {code}"
    return f"{kind} at {' < '.join(reversed(frames))}" if frames else kind


def _without_reprs(record: logging.LogRecord) -> bool:
    """asyncio describes a failure by the reprs of futures and callbacks, with results, exceptions and arguments."""
    record.msg = record.getMessage().partition("\n")[0].partition(" callback ")[0]
    record.args = ()
    return True


def _uncaught(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
    logger.critical("uncaught", exc_info=error)


def _uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
        logger.critical("uncaught in a thread", exc_info=arguments.exc_value)


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    logger.error("ignored, because nobody can catch it here", exc_info=unraisable.exc_value)
