"""A file of results can be read back, even one whose run was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsin.bench.record import SCHEMA_VERSION, End, Kind, Line, Writer, read
from opsin.core.errors import ConfigError
from tests.unit.bench.records import a_header, a_level, a_record


def written(path: Path, *lines: Line) -> Path:
    writer = Writer(path.open("wb"))
    for line in lines:
        writer.write(line)
    writer.close()
    return path


def test_lines_come_back_as_they_were(tmp_path: Path) -> None:
    lines = (
        a_header(),
        a_record(kind=Kind.WARMUP),
        a_record(events=[(5, 2), (6, None)]),
        a_level(),
        End(reason="complete"),
    )
    results = read(written(tmp_path / "r.jsonl", *lines))
    assert (results.header, *results.records, *results.levels, results.end) == lines


def test_every_line_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    writer = Writer(path.open("wb"))
    writer.write(a_header())
    writer.write(a_record())
    assert len(read(path).records) == 1
    writer.close()


def test_a_killed_run_has_no_end_and_maybe_half_a_line(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", a_header(), a_record())
    with path.open("ab") as file:
        file.write(b'{"type":"request","id":1')
    results = read(path)
    assert len(results.records) == 1
    assert (results.end.reason, results.end.message) == ("failed", "the file has no end: the run was killed")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected results of opsin bench, version 1, found no header"),
        ('{"type":"end","reason":"complete"}\n', "expected results of opsin bench, version 1, found no header"),
        ("not json\n", r"line 1: JSON is malformed"),
    ],
)
def test_other_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read(path)


def test_another_version(tmp_path: Path) -> None:
    header = a_header()
    header.schema = SCHEMA_VERSION + 1
    with pytest.raises(ConfigError, match="version 1, found version 2"):
        read(written(tmp_path / "r.jsonl", header))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "absent.jsonl")
