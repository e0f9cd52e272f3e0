"""A scripted upstream that starts as an engine's program does: its command line, its key, its log, its slow start.

    opsin serve demo --engine vllm --engine-program "python -m opsin.testing.scripted_engine" --scripted-load-s 2

Takes the command line of any engine, of which it reads the port and the name of the model. ``--scripted-…`` flags,
which reach it because opsin passes unknown ones on, say how it shall misbehave.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from opsin.testing.script import MODES, End, Failure, Script
from opsin.testing.scripted_upstream import ScriptedUpstream, serve

_KEYS = ("VLLM_API_KEY", "LLAMA_API_KEY")
_DYING_S = 1.5
_DIED = Failure(message="EngineCore encountered an issue.", type="InternalServerError", code=500)
_NO_PICTURES = Failure(message="it is no multimodal model", type="BadRequestError", code=400)


def main(words: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM, or as the flags say."""
    args, _ = _parser().parse_known_args(words)
    print(f"scripted engine {os.getpid()} on port {args.port}", flush=True)  # noqa: T201 - an engine's log
    if args.scripted_exit is not None and _is_due(args.scripted_runs):
        return args.scripted_exit
    if args.scripted_stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.scripted_child:
        child = [sys.executable, "-c", "import time; time.sleep(600)"]
        print("child", subprocess.Popen(child, start_new_session=True).pid, flush=True)  # noqa: S603, T201
    for number in range(args.scripted_lines):
        print(f"line {number}")  # noqa: T201
    sys.stdout.flush()
    time.sleep(args.scripted_load_s)
    try:
        asyncio.run(_serve(args))
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m opsin.testing.scripted_engine", allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", "--alias", nargs="+", default=["scripted"], dest="names")
    parser.add_argument("--scripted-load-s", type=float, default=0.0, help="from the start to the first connection")
    parser.add_argument("--scripted-lines", type=int, default=0, help="lines of the log before that")
    parser.add_argument("--scripted-child", action="store_true", help="start a process that outlives this one")
    parser.add_argument("--scripted-stubborn", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--scripted-blind", action="store_true", help="refuse the second request, the picture")
    parser.add_argument("--scripted-hang", action="store_true", help="never finish the third request")
    parser.add_argument("--scripted-dying", action="store_true", help="say in the third answer that it died, then end")
    parser.add_argument("--scripted-exit", type=int, default=None, help="end at once with this status")
    parser.add_argument(
        "--scripted-runs", type=Path, default=None, help="file that counts starts: the first one goes well after all"
    )
    return parser


def _is_due(runs: Path | None) -> bool:
    """Whether this start shall fail: every one, or every one but the first."""
    if runs is None:
        return True
    with runs.open("a") as file:
        file.write("x")
    return runs.stat().st_size > 1


async def _serve(args: argparse.Namespace) -> None:
    key = next((os.environ[name] for name in _KEYS if name in os.environ), None)
    upstream = ScriptedUpstream(model=args.names[0], api_key=key)
    if args.scripted_blind:
        upstream.queue(Script(), Script(status=400, failure=_NO_PICTURES))
    if args.scripted_hang:
        upstream.queue(Script(), Script(), MODES["hang"])
    if args.scripted_dying:
        upstream.queue(Script(), Script(), Script(end=End.ERROR, end_after_chunks=1, failure=_DIED))
    stop = asyncio.Event()
    if not args.scripted_stubborn:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with serve(upstream, port=args.port):
        if args.scripted_dying:
            await _until_third(upstream)
            await asyncio.sleep(_DYING_S)
        else:
            await stop.wait()


async def _until_third(upstream: ScriptedUpstream) -> None:
    while len(upstream.received) < 3:  # noqa: ASYNC110 - one event tells of any request
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
