"""The lines that ``configure`` makes, from a process of its own: it changes what a whole process does."""

from __future__ import annotations

import json
import subprocess
import sys

SETUP = """
import asyncio, logging, sys, threading
from opsin.telemetry import logs
from opsin.telemetry.logs import fields
logs.configure(*sys.argv[1:])
logger = logging.getLogger("opsin.here")
SECRET = "sec" + "ret"

def fail():
    raise ValueError(SECRET)
"""


def _stderr(code: str, level: str = "debug", log_format: str = "text", status: int = 0) -> list[str]:
    command = [sys.executable, "-c", SETUP + code, level, log_format]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (status, ""), result.stderr
    return result.stderr.splitlines()


def _json(code: str) -> dict[str, object]:
    (line,) = _stderr(code, log_format="json")
    return json.loads(line)


def test_a_line_is_time_level_logger_and_fields() -> None:
    (line,) = _stderr("logger.info('%s', fields(request_id='a-1', code=None, ms=1.5, text='two words'))")
    time, rest = line.split(" ", 1)
    assert time.endswith("+00:00")
    assert rest == 'INFO opsin.here request_id=a-1 ms=1.5 text="two words"'


def test_json_has_each_field_under_its_name() -> None:
    line = _json("logger.info('%s', fields(request_id='a-1', ms=1.5, text='two words'))")
    assert line.pop("time")
    assert line == {"level": "info", "logger": "opsin.here", "request_id": "a-1", "ms": 1.5, "text": "two words"}


def test_words_and_fields_together() -> None:
    assert _stderr("logger.info('gone %s', fields(pid=3))")[0].endswith("opsin.here gone pid=3")
    line = _json("logger.info('gone %s', fields(pid=3))")
    assert (line["message"], line["pid"]) == ("gone pid=3", 3)


def test_words_that_come_as_an_argument_are_the_message() -> None:
    assert _json("logger.warning('%s', 'not built yet')")["message"] == "not built yet"


def test_the_level_is_that_of_opsin_alone() -> None:
    code = "logger.info('ours'); logging.getLogger('theirs').info('quiet'); logging.getLogger('theirs').warning('loud')"
    assert [line.split()[-1] for line in _stderr(code, "info")] == ["ours", "loud"]
    assert [line.split()[-1] for line in _stderr(code, "warning")] == ["loud"]


def test_one_line_whatever_a_value_holds() -> None:
    code = r"logger.info('%s', fields(a='1\n2026 ERROR forged', b='\x1b[31m', c='x\u2028y', d='e=f'))"
    (line,) = _stderr(code)
    assert line.endswith(r'a="1\n2026 ERROR forged" b="\u001b[31m" c="x\u2028y" d="e=f"')
    (line,) = _stderr(r"logger.warning('one\ntwo\x1b\u2028three')")
    assert line.endswith(r"one\u000atwo\u001b\u2028three")


def test_an_exception_is_its_type_and_its_way_without_its_text() -> None:
    code = """
try:
    try:
        fail()
    except ValueError as error:
        raise OSError(28, SECRET, SECRET) from error
except OSError:
    logger.exception("%s", fields(request_id="a-1"))
"""
    (line,) = _stderr(code)
    assert "request_id=a-1" in line
    assert "OSError ENOSPC at " in line
    assert "caused by ValueError at " in line
    assert " fail < " in line
    assert "secret" not in line
    assert "secret" not in str(_json(code))
    assert "caused by ValueError" in str(_json(code)["exception"])


def test_what_nobody_catches_is_logged_without_its_text() -> None:
    uncaught = _stderr("fail()", status=1)
    threads = _stderr("threading.Thread(target=fail).start()")
    unraisable = _stderr("type('Late', (), {'__del__': lambda self: fail()})()")
    for lines in (uncaught, threads, unraisable):
        assert len(lines) == 1
        assert "ValueError at " in lines[0]
        assert "secret" not in lines[0]


def test_asyncio_tells_no_reprs() -> None:
    code = """
async def main():
    task = asyncio.create_task(asyncio.to_thread(fail))
    await asyncio.wait([task])
    del task
    asyncio.get_running_loop().call_soon(int, SECRET)
    await asyncio.sleep(0)

asyncio.run(main())
"""
    lines = _stderr(code)
    assert sorted(line.split(" asyncio ")[1].split(" exception=")[0] for line in lines) == [
        "Exception in",
        "Task exception was never retrieved",
    ]
    assert "secret" not in "".join(lines)


def test_a_line_that_cannot_be_written_is_not_printed_with_its_arguments() -> None:
    assert _stderr("logger.info('%d', SECRET)") == []


def test_a_child_logs_as_its_parent_does() -> None:
    code = "logger.critical('%s', fields(child=logs.child_arguments() == tuple(sys.argv[1:])))"
    for level in ("debug", "info", "warning", "error"):
        for log_format in ("text", "json"):
            (line,) = _stderr(code, level, log_format)
            assert "True" in line or "true" in line
