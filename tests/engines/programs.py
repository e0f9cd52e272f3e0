"""How each real engine is started. None is a dependency of ours: an environment variable names it, or the PATH has it.

Without it the tests that need it are skipped, and say which variable to set. docs/engines.md tells how to install them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import opsin.demo
from tests.engines.processes import Command

HERE = Path(__file__).parent
CHECKPOINT = Path(opsin.demo.__file__).parent / "model"
MAX_MODEL_LEN = 4096
MAX_NUM_SEQS = 4
_STUB = "triton_python_backend_stub"
MARKER = "<__media__>"
"""Pinned, as our template for llama.cpp has to know it. In production it is random, so that no text can spell it."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Names of an engine's own metrics."""

    running: str
    prompt_tokens: str
    output_tokens: str


VLLM = Counters("vllm:num_requests_running", "vllm:prompt_tokens_total", "vllm:generation_tokens_total")
LLAMA_CPP = Counters("llamacpp:requests_processing", "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total")


def vllm() -> Command:
    """vLLM with the demo checkpoint; ``OPSIN_TEST_VLLM_FLAGS`` are added, as ``--dtype float32``."""
    program = find("OPSIN_TEST_VLLM", "vllm")
    port = free_port()
    return Command(
        words=(
            *(str(program), "serve", str(CHECKPOINT), "--served-model-name", "demo"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS)),
            *("--limit-mm-per-prompt", '{"image": 4, "video": 0, "audio": 0}', "--enable-prompt-tokens-details"),
            "--enable-per-request-metrics",
            "--enforce-eager",  # the demo model is small: compiling it takes longer than all these tests
            *shlex.split(os.environ.get("OPSIN_TEST_VLLM_FLAGS", "")),
        ),
        port=port,
        ready="/health",
        environment={
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        },
    )


def llama_cpp(folder: Path) -> Command:
    """llama.cpp's server with the demo checkpoint, which its own converter writes into ``folder``."""
    program = find("OPSIN_TEST_LLAMA_SERVER", "llama-server")
    _convert(folder)
    port = free_port()
    return Command(
        words=(
            *(str(program), "--model", str(folder / "demo.gguf"), "--mmproj", str(folder / "mmproj.gguf")),
            *("--alias", "demo", "--host", "127.0.0.1", "--port", str(port), "--metrics", "--no-webui"),
            *("--ctx-size", str(MAX_MODEL_LEN * MAX_NUM_SEQS), "--parallel", str(MAX_NUM_SEQS)),
            *("--chat-template-file", str(HERE / "demo.jinja")),
            *("--threads", "1"),  # more wait for each other in a loop, which costs most where others want the cores
        ),
        port=port,
        ready="/health",
        environment={"LLAMA_MEDIA_MARKER": MARKER},
    )


def _convert(folder: Path) -> None:
    source = folder_of("OPSIN_TEST_LLAMA_CPP", holding="convert_hf_to_gguf.py")
    subprocess.run(
        [sys.executable, str(HERE / "demo_gguf.py"), str(source), str(CHECKPOINT), str(folder)],
        check=True,
        capture_output=True,
    )


def triton(folder: Path) -> Command:
    """Triton with the models beside this file; ``OPSIN_TEST_TRITON`` is the folder ``pytriton/tritonserver``."""
    wheel = folder_of("OPSIN_TEST_TRITON", holding="bin/tritonserver").resolve()
    packages = wheel.parents[1]
    backend = folder / "backends" / "python"
    shutil.copytree(wheel / "backends" / "python", backend)
    shutil.copy(wheel / "python_backend_stubs" / packages.parent.name.removeprefix("python") / _STUB, backend)
    port, grpc_port, metrics_port = free_port(), free_port(), free_port()
    return Command(
        words=(
            *(str(wheel / "bin" / "tritonserver"), "--model-repository", str(HERE / "triton")),
            *("--backend-directory", str(backend.parent), "--backend-config", "python,stub-timeout-seconds=300"),
            *("--http-address", "127.0.0.1", "--http-port", str(port), "--grpc-address", "127.0.0.1"),
            *("--grpc-port", str(grpc_port), "--metrics-address", "127.0.0.1", "--metrics-port", str(metrics_port)),
        ),
        port=port,
        ready="/v2/health/ready",
        grpc_port=grpc_port,
        environment={
            # The stub ignores PYTHONPATH and finds numpy beside the first python3 of the PATH.
            "PATH": f"{packages.parents[2] / 'bin'}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(packages / "nvidia_pytriton.libs"),
        },
    )


def find(variable: str, name: str) -> Path:
    """The program; skips the test when there is none."""
    named = os.environ.get(variable)
    found = shutil.which(named or name)
    if found is None:
        where = f"{variable}={named} is no program" if named else f"no {name} on the PATH; set {variable}"
        pytest.skip(f"{where} (docs/engines.md)")
    return Path(found)


def folder_of(variable: str, *, holding: str) -> Path:
    """The folder with that file; skips the test when there is none."""
    named = os.environ.get(variable)
    if named is None or not (Path(named) / holding).exists():
        pytest.skip(f"{variable} has to name a folder with {holding} (docs/engines.md)")
    return Path(named)


def free_port() -> int:
    """Free a moment ago: an engine that is started again has to come back on the same one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
