"""``llama-server`` out of the wheel ``xllamacpp``, which has the same C++ server ready built, as a class.

A program for the wheel's own environment. It takes those flags that the tests here give.
"""

from __future__ import annotations

import argparse
import importlib
import signal
from pathlib import Path
from typing import Any

ENDS = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    options = _flags().parse_args()
    xllamacpp: Any = importlib.import_module("xllamacpp")  # not in the environment that checks types
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # before the server has threads, which inherit it
    server = xllamacpp.Server(_params(xllamacpp, options))
    print("listening on", server.listening_address, flush=True)
    signal.sigwait(ENDS)


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llama-server", description=__doc__)
    for flag in ("--model", "--mmproj", "--alias", "--host"):
        parser.add_argument(flag, required=True)
    for flag in ("--port", "--ctx-size", "--parallel", "--threads"):
        parser.add_argument(flag, type=int, required=True)
    parser.add_argument("--chat-template-file", type=Path, required=True)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--no-webui", dest="webui", action="store_false")
    return parser


def _params(xllamacpp: Any, options: argparse.Namespace) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path, params.mmproj.path, params.model_alias = options.model, options.mmproj, {options.alias}
    params.hostnames, params.port = [options.host], options.port
    params.n_ctx, params.n_parallel = options.ctx_size, options.parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.chat_template, params.use_jinja = options.chat_template_file.read_text(), True
    params.endpoint_metrics, params.ui = options.metrics, options.webui
    return params


if __name__ == "__main__":
    main()
