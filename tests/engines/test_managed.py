"""Engines that opsin starts itself: their own parsers take the commands, and vLLM answers behind one.

``OPSIN_TEST_VLLM`` and ``OPSIN_TEST_RAMALAMA`` name the programs, or the PATH has them.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from opsin.testing.server_process import ServerProcess
from tests.conftest import client_of
from tests.e2e.test_lifecycle import check_gone
from tests.seeds.test_vllm_lines import EVERY_LINE, words

PARSER = Path(__file__).parents[2] / "tools" / "vllm_parser.py"
RECORDED = Path(__file__).parents[1] / "unit" / "engine_managed" / "vllm-0.32.0-flags.txt"
PICTURE = Path(__file__).parents[2] / "src" / "opsin" / "demo" / "examples" / "number_47.png"
START_TIMEOUT_S = 900.0


def program(variable: str, name: str) -> str:
    found = os.environ.get(variable) or shutil.which(name)
    if found is None:
        pytest.skip(f"{variable} names no {name}, and the PATH has none")
    return found


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def vllms_parser(*arguments: str) -> str:
    python = Path(program("OPSIN_TEST_VLLM", "vllm")).parent / "python"
    return run(str(python), str(PARSER), *arguments)


def printed(*arguments: str) -> list[str]:
    """The words of the program that ``opsin serve`` would start."""
    command = run(sys.executable, "-m", "opsin", "serve", *arguments, "--print-command")
    return [word for word in shlex.split(command) if not word.partition("=")[0].isupper()]


@pytest.mark.parametrize("line", EVERY_LINE)
def test_vllm_takes_every_command_of_the_documents(line: str) -> None:
    name, *arguments = printed(*words(line)[1:], "--engine", "vllm")
    assert name == "vllm"
    parsed = json.loads(vllms_parser(*arguments).splitlines()[-1])
    assert parsed["model_tag"] == next(word for word in words(line) if "/" in word)
    assert parsed["host"] == "127.0.0.1"
    assert parsed["allowed_media_domains"] == ["opsin.invalid"]
    assert parsed["limit_mm_per_prompt"]["image"] >= 4
    assert parsed["limit_mm_per_prompt"]["video"] == parsed["limit_mm_per_prompt"]["audio"] == 0
    assert parsed["enable_prompt_tokens_details"]


def test_the_recorded_flags_are_vllms() -> None:
    assert vllms_parser("--dump") == RECORDED.read_text()


def test_ramalama_takes_the_command_and_gives_it_to_llama_server() -> None:
    ramalama = program("OPSIN_TEST_RAMALAMA", "ramalama")
    _, *arguments = printed("smolvlm:256m", "--engine", "ramalama", "--max-model-len", "8192", "--seed", "3")
    command = shlex.split(run(ramalama, "--dryrun", *arguments))
    assert command[0] == "llama-server"
    assert command[command.index("--ctx-size") + 1] == "8192"
    assert {"--jinja", "--no-webui", "--no-slots"} <= set(command)
    assert "smolvlm:256m" in command  # the last alias wins


def test_vllm_behind_opsin_answers_and_leaves_nothing() -> None:
    vllm = program("OPSIN_TEST_VLLM", "vllm")
    environment = {
        "PATH": f"{Path(vllm).parent}:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    }
    arguments = ("demo", "--engine", "vllm", "--engine-program", shlex.quote(vllm), "--max-model-len", "4096")
    with ServerProcess(*arguments, "--max-num-seqs", "4", "--enforce-eager", environment=environment) as server:
        url = server.until_ready(START_TIMEOUT_S)
        assert "47" in ask(url)
        children = psutil.Process(server.pid).children(recursive=True)
    assert server.wait() == 0, server.log
    check_gone(children, within_s=5)


def ask(url: str) -> str:
    data = base64.b64encode(PICTURE.read_bytes()).decode()
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        {"type": "text", "text": "What number is it?"},
    ]
    done = client_of(url).chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": content}],  # pyright: ignore[reportArgumentType] plain JSON
        temperature=0.0,
    )
    return done.choices[0].message.content or ""
