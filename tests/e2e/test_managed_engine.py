"""``opsin serve --engine vllm``, a scripted program in vLLM's place: what operator and clients see of it."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from opsin.cli.main import main
from opsin.testing.server_process import ServerProcess
from tests.e2e.subjects import Subject, body_of, connections, until
from tests.e2e.test_lifecycle import check_gone, family, free_port, listens

PROGRAM = shlex.join([sys.executable, "-m", "opsin.testing.scripted_engine"])


def arguments(*more: str) -> Sequence[str]:
    return ("org/model", "--engine", "vllm", "--engine-program", PROGRAM, "--revision", "a" * 40, *more)


def serving(tmp_path: Path, *more: str) -> ServerProcess:
    return ServerProcess(*arguments(*more), environment={"TMPDIR": str(tmp_path)})


def scripted(server: ServerProcess) -> list[psutil.Process]:
    """The program and what it started."""
    return [one for keeper in server.gateway().children() for one in keeper.children(recursive=True)]


async def test_slow_start_log_answer_and_clean_end(tmp_path: Path) -> None:
    port = free_port()
    reasons: set[str] = set()
    with serving(tmp_path, "--port", str(port), "--scripted-load-s", "1.5", "--scripted-child") as server:
        subject = Subject("managed", server, f"http://127.0.0.1:{port}", tmp_path)
        async with connections() as http:
            await until(lambda: listens(subject, http))

            async def is_ready() -> bool:
                async with http.get(f"{subject.url}/ready") as response:
                    reasons.add((await response.json()).get("reason", ""))
                    return response.status == 200

            await until(is_ready)
            reply = await subject.send(http, body_of(subject.question(), stream=False))
            assert (reply.status, reply.text) == (200, "A red circle is left of a blue square.")
            async with http.get(f"{subject.url}/v1/models") as response:
                assert [model["id"] for model in (await response.json())["data"]] == ["org/model"]
        children = family(server)
        assert len(scripted(server)) == 2
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        check_gone(children)
    assert "vllm is starting: waiting for its list of models" in reasons
    assert not any("scripted" in reason for reason in reasons)  # its log is the operator's
    assert "opsin.engine.managed.engine vllm | scripted engine" in server.log
    assert "serving org/model on" in server.log


async def test_sigkill_of_opsin_leaves_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, "--scripted-child", "--scripted-stubborn") as server:
        server.until_ready()
        children = family(server)
        assert len(scripted(server)) == 2
        server.signal(signal.SIGKILL)
        server.wait()
        check_gone(children, within_s=60)


async def test_a_killed_program_is_back_and_every_request_answered(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        subject = Subject("killed engine", server, server.until_ready(), tmp_path)
        async with connections() as http:
            for process in scripted(server):
                process.kill()

            async def answers() -> bool:
                reply = await subject.send(http, body_of(subject.question(), stream=True))
                assert (reply.status, reply.code) in ((200, None), (503, "engine_unavailable"), (503, "engine_died"))
                return reply.status == 200 and reply.code is None

            await until(answers)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


async def test_sigterm_while_it_starts_ends_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, "--scripted-load-s", "600") as server:

        async def has_started() -> bool:
            return "scripted engine" in server.log

        await until(has_started)
        children = family(server)
        server.signal(signal.SIGTERM)
        assert server.wait(30) == 0
        check_gone(children)


def test_the_command_is_printed_without_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--print-command", "--uds", "/x", "--brand-new", "7", "--enforce_eager"]
    assert main(["serve", "org/model", "--engine", "vllm", *flags]) == 0
    printed = capsys.readouterr()
    words = shlex.split(printed.out)
    assert "VLLM_API_KEY=<secret>" in words
    assert words[-3:] == ["--brand-new", "7", "--enforce-eager"]
    assert "--uds: not given to vllm" in printed.err
    assert "is not pinned" in printed.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["org/model", "--engine", "vllm", "--engine-program", "/no/vllm"], "no program /no/vllm; pip install vllm"),
        (["--engine", "sglang", "--print-command"], "engine sglang needs a model, said before its flags"),
        (["org/model", "--engine", "llama.cpp", "--revision", "abc", "--print-command"], "--revision: llama-server"),
        (["--print-command"], "engine local is no program that opsin starts"),
    ],
)
def test_what_cannot_start_says_why(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words]) == 1
    assert told in capsys.readouterr().err


def test_an_unknown_flag_is_an_error_where_no_engine_gets_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "demo", "--brand-new", "7"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --brand-new 7" in capsys.readouterr().err
