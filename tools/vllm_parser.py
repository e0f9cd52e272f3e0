"""vLLM's own parser of ``vllm serve``, for a test that opsin's commands are ones that it takes.

Run by the Python of an environment that holds vLLM, so it imports nothing of opsin:

    /venv/bin/python tools/vllm_parser.py --dump       prints one line for every flag: its names, and what it takes
    /venv/bin/python tools/vllm_parser.py serve MODEL --flag …     prints what the parser made of it, as JSON
"""

from __future__ import annotations

import json
import sys

from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser


def _parser() -> FlexibleArgumentParser:
    top = FlexibleArgumentParser(prog="vllm")
    commands = top.add_subparsers(dest="subparser", required=True)
    make_arg_parser(commands.add_parser("serve"))
    return top


def _dump() -> None:
    serve = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    for action in serve._actions:
        if action.option_strings:
            takes = "nothing" if action.nargs == 0 else {"+": "several", "*": "several"}.get(action.nargs, "one")
            print(f"{' '.join(action.option_strings)}\t{takes}")


def main() -> None:
    """See the module."""
    if sys.argv[1:] == ["--dump"]:
        _dump()
        return
    args = _parser().parse_args()
    validate_parsed_serve_args(args)
    print(json.dumps(dict(vars(args)), default=str))


if __name__ == "__main__":
    main()
