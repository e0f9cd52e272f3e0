"""``opsin``: the entry point."""

from __future__ import annotations

import argparse
import sys

from opsin import __version__
from opsin.cli import ask, serve, tokens
from opsin.cli.flags import add_engine_flags, add_model_flags, add_server_flags, nested
from opsin.core.errors import OpsinError


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog="opsin", description="Serve vision-language models: safe, cached, measured.")
    top.add_argument("--version", action="version", version=f"opsin {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve_parser = commands.add_parser("serve", help="serve a model over an OpenAI-compatible API")
    _add_model_argument(serve_parser)
    for add in (add_model_flags, add_server_flags, add_engine_flags):
        add(serve_parser)
    ask_parser = commands.add_parser("ask", help="ask one question about pictures")
    ask_parser.add_argument("_words", nargs="+", metavar="PICTURE… QUESTION", help="picture files, then the question")
    ask_parser.add_argument("--model", dest="model", default=argparse.SUPPRESS, help="folder or hub id; default demo")
    ask_parser.add_argument(
        "--url", dest="upstream.url", default=argparse.SUPPRESS, help="ask a running server instead of loading a model"
    )
    ask_parser.add_argument("--api-key", dest="upstream.api_key", default=argparse.SUPPRESS, help="key for that server")
    ask_parser.add_argument("--detail", dest="_detail", default="auto", choices=["auto", "low", "high", "original"])
    ask_parser.add_argument("--max-tokens", dest="_max_tokens", type=int, default=256)
    ask_parser.add_argument("--json", dest="_json", action="store_true", help="print the whole answer as JSON")
    add_model_flags(ask_parser)
    tokens_parser = commands.add_parser("tokens", help="visual tokens of pictures, from their headers alone")
    tokens_parser.add_argument("_pictures", nargs="+", metavar="PICTURE")
    tokens_parser.add_argument(
        "--model", dest="model", default=argparse.SUPPRESS, help="folder or hub id; default demo"
    )
    tokens_parser.add_argument("--revision", dest="revision", default=argparse.SUPPRESS)
    tokens_parser.add_argument("--detail", dest="_detail", default="auto", choices=["auto", "low", "high", "original"])
    tokens_parser.add_argument("--json", dest="_json", action="store_true")
    return top


def _add_model_argument(serve_parser: argparse.ArgumentParser) -> None:
    serve_parser.add_argument(
        "model", nargs="?", default=argparse.SUPPRESS, metavar="MODEL", help="folder, hub id, or 'demo' (the default)"
    )


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0 done, 1 failed with a message, 130 interrupted."""
    args = parser().parse_args(argv)
    commands = {"serve": serve.run, "ask": ask.run, "tokens": tokens.run}
    try:
        return commands[args.command](args, nested(args))
    except OpsinError as error:
        print(f"opsin: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
