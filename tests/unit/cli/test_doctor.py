"""``opsin doctor``: findings about this very machine, and an exit status that scripts can use."""

from __future__ import annotations

import asyncio
import fcntl
import json
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from huggingface_hub import constants

from opsin import doctor
from opsin.cli.main import main
from opsin.engine.local.config import LocalOptions
from opsin.engine.local.probe import Machine, probe
from opsin.engine.local.quantized_linear import can_quantize
from opsin.testing.scripted_upstream import ScriptedUpstream
from opsin.testing.scripted_upstream import serve as scripted
from tests.hubs import refusing_hub, serving_hub
from tests.redis_server import needs_redis, redis_server


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def findings(capsys: pytest.CaptureFixture[str], *words: str, status: int) -> dict[str, list[dict[str, Any]]]:
    """By area."""
    assert main(["doctor", "--json", *words, *(() if "--port" in words else ("--port", "0"))]) == status
    by_area: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(capsys.readouterr().out):
        by_area.setdefault(finding["area"], []).append(finding)
    return by_area


def test_the_demo_model_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys, "--device", "cpu", "--dtype", "bfloat16", status=0)
    assert list(found) == ["settings", "model", "engine", "device", "port", "sandbox", "redis"]
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


@needs_redis
def test_redis_is_asked_whether_it_answers_and_what_it_evicts(capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str, status: int = 0) -> tuple[str, str]:
        (finding,) = findings(capsys, "--engine", "fake", *words, status=status)["redis"]
        return finding["status"], finding["text"]

    with redis_server("--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl") as server:
        url = ("--redis-url", server.url)
        assert told(*url) == ("ok", "answers, and evicts no keys")
        with server.client() as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        assert told(*url)[0] == "warning"
    for words in ((), ("--api-keys-in-redis",)):
        status, text = told(*url, *words, status=1)
        assert status == "problem"
        assert text.startswith("--redis-url: Redis cannot be used (unreachable: ")


def test_the_folder_of_the_caches(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def told(folder: Path, status: int) -> str:
        (finding,) = findings(capsys, "--engine", "fake", "--cache-dir", str(folder), status=status)["cache"]
        return finding["text"]

    assert told(tmp_path / "new" / "cache", 0).endswith("can be written")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    assert told(tmp_path / "file" / "cache", 1).endswith(f"{tmp_path / 'file'} is no folder")
    if sys.platform == "linux":
        assert "/proc cannot be written: " in told(Path("/proc/cache"), 1)
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "in use by another process" in told(tmp_path, 1)
    assert told(tmp_path, 0).endswith("can be written")


def test_a_program_that_serve_would_start(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("org/model", "--engine", "vllm", "--revision", "a" * 40, "--brand-new", "--engine-program")
    (finding,) = findings(capsys, *words, "env vllm", status=0)["engine"]
    assert finding["text"].endswith("/env; opsin serve starts it")
    (finding,) = findings(capsys, *words, "/no/vllm", status=1)["engine"]
    assert "there is no program /no/vllm" in finding["text"]


def test_problems_are_found_at_once_and_fail(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys, "./absent", "--host", "0.0.0.0", "--device", "mps", "-tp", "2", status=1)
    texts = [finding["text"] for finding in found["settings"] if finding["status"] == "problem"]
    assert len(texts) == 2
    assert [finding["text"] for finding in found["model"]] == ["model ./absent: there is no such folder"]
    if sys.platform == "linux":
        assert "device 'mps' was asked for; this machine has" in found["engine"][0]["text"]


def test_an_arithmetic_that_the_cpu_does_not_have_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys, "--device", "cpu", "--vision-dtype", "int8", status=0 if can_quantize() else 1)
    assert found["engine"][0]["text"].startswith("local: torch" if can_quantize() else "vision_dtype int8 needs")


@pytest.mark.parametrize(("has_int8", "told"), [(True, ", int8: yes (VNNI), "), (False, ", int8: no, ")])
def test_the_device_says_whether_it_has_int8(
    has_int8: bool, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = probe(LocalOptions(device="cpu"), None)
    assert machine.has_int8 == can_quantize()

    def found(options: LocalOptions, checkpoint_dtype: str | None) -> Machine:
        return msgspec.structs.replace(machine, has_int8=has_int8)

    monkeypatch.setattr(doctor, "probe", found)
    assert told in findings(capsys, status=0)["device"][0]["text"]


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also saves the seconds that loading it takes."""
    monkeypatch.setitem(sys.modules, "torch", None)


def test_a_hub_model_is_looked_up_and_not_downloaded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_torch: None
) -> None:
    def model(*words: str) -> tuple[str, str]:
        words = ("owner/name", "--download-dir", str(tmp_path / "cache"), *words)
        (finding,) = findings(capsys, *words, status=1)["model"]
        return finding["status"], finding["text"]

    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.json").write_text("{}")
    with serving_hub(tmp_path / "there") as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        text = "owner/name is not completely in the local cache; opsin serve downloads it"
        assert model() == ("warning", text)
    assert not (tmp_path / "cache").exists()
    text = "model owner/name: the Hub cannot be reached, and it is not completely in the local cache"
    assert model() == ("problem", text)
    with refusing_hub(404, "RepoNotFound") as endpoint:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        assert "no such repository on the Hub" in model()[1]
    assert "offline forbids a download" in model("--offline")[1]


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        (finding,) = findings(capsys, "--engine", "fake", "--port", port, status=1)["port"]
    assert finding["text"] == f"cannot listen on 127.0.0.1 port {port}: Address already in use"


def test_what_is_not_installed(capsys: pytest.CaptureFixture[str], no_torch: None) -> None:
    found = findings(capsys, status=1)
    assert [finding["status"] for finding in found["model"]] == ["ok"]
    (finding,) = found["engine"]
    assert "pip install 'opsin[local]'" in finding["text"]


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
