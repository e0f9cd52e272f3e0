"""RamaLama's dry run: the command it would start is llama.cpp's server. opsin itself is not asked yet."""

from __future__ import annotations

import shlex
import subprocess

from tests.engines.programs import find


def test_a_dry_run_names_a_llama_server_on_the_asked_port() -> None:
    program = find("OPSIN_TEST_RAMALAMA", "ramalama")
    words = [str(program), "--nocontainer", "--dryrun", "serve", "--port", "8181", "smolvlm:256m"]
    command = shlex.split(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    assert command[0] == "llama-server"
    assert command[command.index("--port") + 1] == "8181"
    assert command[command.index("--host") + 1] == "127.0.0.1"
