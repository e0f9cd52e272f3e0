"""``opsin doctor``: findings about this very machine, and an exit status that scripts can use."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from opsin.cli.main import main
from opsin.testing.scripted_upstream import ScriptedUpstream
from opsin.testing.scripted_upstream import serve as scripted


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def findings(capsys: pytest.CaptureFixture[str], *words: str, status: int) -> dict[str, list[dict[str, Any]]]:
    """By area."""
    assert main(["doctor", "--json", *words]) == status
    by_area: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(capsys.readouterr().out):
        by_area.setdefault(finding["area"], []).append(finding)
    return by_area


def test_the_demo_model_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys, "--device", "cpu", "--dtype", "bfloat16", status=0)
    assert list(found) == ["settings", "model", "engine", "device", "sandbox", "redis"]
    assert {finding["status"] for area in found.values() for finding in area} == {"ok"}
    assert "idefics3, 8192 tokens" in found["model"][0]["text"]
    assert "torch 2." in found["engine"][0]["text"]
    assert "cpu" in found["device"][0]["text"]
    assert "bfloat16" in found["device"][0]["text"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel is not asked")
def test_the_sandbox_is_what_the_kernel_says(capsys: pytest.CaptureFixture[str]) -> None:
    (finding,) = findings(capsys, "--engine", "fake", status=0)["sandbox"]
    assert "address space up to" in finding["text"]
    assert "no core dumps" in finding["text"]


def test_problems_are_found_at_once_and_fail(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys, "./absent", "--host", "0.0.0.0", "--device", "mps", "-tp", "2", status=1)
    texts = [finding["text"] for finding in found["settings"] if finding["status"] == "problem"]
    assert len(texts) == 2
    assert [finding["text"] for finding in found["model"]] == ["model ./absent: there is no such folder"]
    if sys.platform == "linux":
        assert "device 'mps' was asked for; this machine has" in found["engine"][0]["text"]


def test_a_hub_model_is_not_downloaded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("owner/name", "--download-dir", str(tmp_path), "--device", "cpu")
    (finding,) = findings(capsys, *words, status=0)["model"]
    assert finding["status"] == "warning"
    assert finding["text"] == "owner/name is not completely in the local cache; opsin serve downloads it"
    (finding,) = findings(capsys, *words, "--offline", status=1)["model"]
    assert "offline forbids a download" in finding["text"]


def test_what_works_otherwise_than_expected_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys, "--engine", "fake", "--dtype", "half", "--max-media-redirects", "1", status=0)
    assert [finding["status"] for finding in found["settings"]] == ["warning", "warning", "ok"]


async def test_an_upstream_is_asked(capsys: pytest.CaptureFixture[str]) -> None:

    async with scripted(ScriptedUpstream()) as url:
        found = await asyncio.to_thread(findings, capsys, "--upstream", url, status=0)
    assert f"upstream {url}" in found["engine"][0]["text"]
    found = await asyncio.to_thread(findings, capsys, "--upstream", "http://127.0.0.1:9", status=1)
    assert "the upstream cannot be reached" in found["engine"][0]["text"]


def test_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--engine", "fake"]) == 0
    assert "not configured" in capsys.readouterr().out
