"""``ramalama serve``, whose runtime here is llama-server. Flags are those of RamaLama 0.25.

The model is whatever RamaLama calls one: a short name, ``hf://…``, ``ollama://…``, ``file://…``. As a process of this
machine it needs a llama-server beside it; in a container it brings one along.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from opsin.engine.managed.launch import LOOPBACK, OWN_SERVER, EngineProgram, Passed, Serving, flag, words_of
from opsin.engine.managed.llama_cpp import SETTINGS, safe_arguments
from opsin.engine.upstream.dialect import UpstreamKind

_KEY = "LLAMA_API_KEY"
_RUNTIME_ARGS = "--runtime-args"


def _arguments(serving: Serving, port: int, passed: Sequence[Passed]) -> Sequence[str]:
    runtime = ["--alias", ",".join(serving.names), *safe_arguments(serving)]
    if serving.max_num_seqs:
        runtime += ["--parallel", str(serving.max_num_seqs)]
    theirs = [one for one in passed if one.name.partition("=")[0] == _RUNTIME_ARGS]
    context = (serving.max_model_len or 0) * (serving.max_num_seqs or 1)
    return (
        *flag("--nocontainer", not serving.in_container),
        "serve",
        *("--host", LOOPBACK, "--port", str(port)),
        *("--webui", "off"),
        *flag("--ctx-size", context or None),
        *flag("--threads", serving.num_threads),
        *(("--env", _KEY) if serving.in_container else ()),  # a process of this machine has it anyway
        f"{_RUNTIME_ARGS}={' '.join([shlex.join(runtime), *map(_value, theirs)])}",
        *words_of(one for one in passed if one not in theirs),
        serving.model,
    )


def _value(one: Passed) -> str:
    return " ".join(one.behind) or one.name.partition("=")[2]


def _problems(serving: Serving) -> Iterator[str]:
    if serving.revision:
        yield "--revision: RamaLama takes a model by its name alone; pull the commit and name its file"


RAMALAMA = EngineProgram(
    name="ramalama",
    kind=UpstreamKind.LLAMA_CPP,
    program=("ramalama",),
    install="pip install ramalama",
    arguments=_arguments,
    key_variable=_KEY,
    heeds=SETTINGS,
    overruled={
        "--host": OWN_SERVER,
        "--port": OWN_SERVER,
        "-p": OWN_SERVER,
        "--webui": OWN_SERVER,
        "--detach": "opsin has to see the engine end",
        "-d": "opsin has to see the engine end",
        "--nocontainer": "say --engine-container or --no-engine-container, which are opsin's own",
        "--rag": "opsin serves the model alone",
        "--models-max": "opsin serves one model",
    },
    problems=_problems,
)
