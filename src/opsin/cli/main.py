"""``opsin``: the entry point."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator, Sequence, Set

from opsin import __version__
from opsin.cli import ask, bench, config, doctor, doctor_media, doctor_model, keys, preprocess, serve, tokens
from opsin.cli.flags import add_flags, add_model_argument, add_unknown_flags, add_vllm_flags, read, unknown_words
from opsin.cli.output import OutputError, guarded
from opsin.core.errors import OpsinError
from opsin.names import LOADING, MEDIA, MODEL, SERVE, Flag, Group

_DOCTOR_MEDIA = "doctor media"
_DOCTOR_MODEL = "doctor model"
_DETAILS = ("auto", "low", "high", "original")

_RUNNING = Group(
    "a running server, in place of a model",
    (Flag("upstream.url", ("--url",)), Flag("upstream.api_key", ("--api-key",))),
)
_LIMITS = Group(
    "what may not be exceeded",
    (
        Flag("max_model_len"),
        Flag("gateway.max_image_tiles"),
        Flag("gateway.max_image_tokens"),
        Flag("gateway.max_request_image_tokens"),
        Flag("gateway.over_budget"),
        Flag("mm_processor_kwargs"),
    ),
)

_UPSTREAM = "--upstream"

_NEAR = 0.83
"""Of difflib's ratio: what a typing error leaves (--prot is this near), and not what only looks like it."""


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The whole command line. Where an engine may know them, it takes what ``words`` hold of unknown flags too."""
    top = argparse.ArgumentParser(
        prog="opsin", description="Serve vision-language models: safe, cached, measured.", allow_abbrev=False
    )
    top.add_argument("--version", action="version", version=f"opsin {__version__}")
    commands = top.add_subparsers(dest="_command", required=True, metavar="COMMAND")
    serve_help = "serve a model over an OpenAI-compatible API"
    served = _command(commands.add_parser("serve", help=serve_help), "[MODEL]")
    served.add_argument(
        "--print-command",
        "--dry-run",
        dest="_print_command",
        action="store_true",
        help="print the command and environment of the engine that would be started, and start nothing",
    )
    _add_serve(served, words)
    _add_ask(_command(commands.add_parser("ask", help="ask one question about pictures"), "PICTURE… QUESTION"))
    tokens_help = "visual tokens of pictures, from their headers or sizes alone"
    _add_tokens(_command(commands.add_parser("tokens", help=tokens_help), "[PICTURE…]"))
    made_ready = "pictures scaled and written for a model, before they are sent"
    preprocess.add(_command(commands.add_parser("preprocess", help=made_ready), "FILE…"))
    bench.add(_command(commands.add_parser("bench", help="measure a server under a load of pictures"), "URL"))
    doctor_help = "what would work on this machine with serve's flags"
    _add_doctor(_command(commands.add_parser("doctor", help=doctor_help), "[MODEL]"), words)
    attacks_help = "the policy on pictures in effect, and attacks on it; a folder of this name is ./media"
    attacks = commands.add_parser(_DOCTOR_MEDIA, help=attacks_help, description=attacks_help)
    _add_doctor(_command(attacks, "[MODEL]"), words)
    parity_help = "a model's token counts and pixels beside its own processor's; a folder of this name is ./model"
    parity = commands.add_parser(_DOCTOR_MODEL, help=parity_help, description=parity_help)
    _add_doctor_model(_command(parity, "[MODEL]"))
    keys.add(commands.add_parser("keys", help="API keys of many tenants"))
    of_config = commands.add_parser("config", help="settings and where they come from")
    show = of_config.add_subparsers(dest="_what", required=True, metavar="COMMAND")
    _add_config_show(
        _command(show.add_parser("show", help="every setting, its value and its source"), "[MODEL]"), words
    )
    return top


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The words as typed, or the process's own. Exits with 2 on a flag that does not exist; vLLM's ``_`` is a ``-``."""
    words = [_as_vllm_reads(word) for word in (sys.argv[1:] if words is None else words)]
    words = list(_each_upstream(words))
    top = parser(words)
    if (both := " ".join(words[:2])) in (_DOCTOR_MEDIA, _DOCTOR_MODEL):
        words[:2] = [both]  # argparse knows no commands below one that takes a word of its own
    args, unknown = top.parse_known_args(words)
    foreign = unknown_words(args)
    near = _near_misses(args._parser, [*unknown, *foreign], {_name(word) for word in foreign})
    if unknown or (foreign and not read(args).settings.engine.is_managed):
        hint = f" (did you mean {' '.join(near.values())}?)" if near else ""
        args._parser.error(f"unrecognized arguments: {' '.join([*unknown, *foreign])}{hint}")
    for word, meant in near.items():
        print(f"opsin: {word} is no flag of opsin's and goes to the engine; did you mean {meant}?", file=sys.stderr)
    return args


def main(words: list[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0 done, 1 failed with a message, 130 interrupted."""
    args = parse(words)
    commands = {
        "serve": serve.run,
        "ask": ask.run,
        "tokens": tokens.run,
        "preprocess": preprocess.run,
        "bench": bench.run,
        "doctor": doctor.run,
        _DOCTOR_MEDIA: doctor_media.run,
        _DOCTOR_MODEL: doctor_model.run,
        "keys": keys.run,
        "config": config.show,
    }
    try:
        with guarded():
            return commands[args._command](args)
    except OutputError as error:
        if reason := str(error):
            print(f"opsin: standard output: {reason}", file=sys.stderr)
        return 1
    except OpsinError as error:
        print(f"opsin: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _command(command: argparse.ArgumentParser, words: str) -> argparse.ArgumentParser:
    """A command that knows its own flags. They have to be typed in full, so that new ones break nobody's scripts."""
    command.usage = " ".join(filter(None, (command.prog, words, "[flags, see --help]")))
    command.allow_abbrev = False
    command.set_defaults(_parser=command)
    return command


def _add_serve(command: argparse.ArgumentParser, words: Sequence[str]) -> None:
    add_model_argument(command)
    add_flags(command, *SERVE)
    add_vllm_flags(command)
    add_unknown_flags(command, words)
    command.epilog = (
        "vLLM's other flags are taken too: what has no effect here is said at the start, and what is out of reach is "
        "refused with what to do instead. An engine that opsin starts (--engine vllm) gets them as they stand, and all "
        "that opsin does not know: say the model first."
    )


def _add_ask(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "_words",
        nargs="+",
        metavar="PICTURE… QUESTION",
        help="pictures (files, or URLs that are allowed), then the question",
    )
    command.add_argument("--detail", dest="_detail", default="auto", choices=_DETAILS)
    longest = "tokens of the answer at most; default: what the context leaves, or the server's own"
    command.add_argument("--max-tokens", dest="_max_tokens", type=int, metavar="N", help=longest)
    command.add_argument("--json", dest="_json", action="store_true", help="print the whole answer as JSON")
    add_flags(command, _RUNNING, MODEL, LOADING, MEDIA)


def _add_tokens(command: argparse.ArgumentParser) -> None:
    command.add_argument("_pictures", nargs="*", metavar="PICTURE", help="files, or URLs that are allowed")
    command.add_argument(
        "--size", dest="_sizes", action="append", default=[], type=tokens.size, metavar="WxH",
        help="a picture of this size, as 1920x1080; several are in one request",
    )  # fmt: skip
    command.add_argument("--detail", dest="_detail", choices=_DETAILS, help="of all pictures (default auto)")
    command.add_argument(
        "--request", dest="_request", metavar="FILE", help="the body of a chat request; - is standard input"
    )
    command.add_argument(
        "--estimate", dest="_estimate", action="store_true", help="guess, and say so, for a model type without a rule"
    )
    command.add_argument(
        "--json", dest="_json", action="store_true",
        help="print what POST /v1/tokens would answer, the name of each picture, and without --url what the counts "
        "rest on (source) and whether somebody has checked it (verified)",
    )  # fmt: skip
    command.epilog = (
        "Ends with status 1 where the pictures or the request do not fit; the counts are printed all the same. "
        "At least one token of --max-model-len is kept for the answer."
    )
    add_flags(command, _RUNNING, MODEL, _LIMITS, MEDIA)


def _add_doctor(command: argparse.ArgumentParser, words: Sequence[str]) -> None:
    command.add_argument("--json", dest="_json", action="store_true", help="print findings as JSON")
    _add_serve(command, words)


def _add_doctor_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", dest="_json", action="store_true", help="print comparisons as JSON")
    add_model_argument(command)
    add_flags(command, MODEL)


def _add_config_show(command: argparse.ArgumentParser, words: Sequence[str]) -> None:
    command.add_argument("--json", dest="_json", action="store_true", help="print values and sources as JSON")
    _add_serve(command, words)


def _each_upstream(words: Sequence[str]) -> Iterator[str]:
    """``--upstream URL URL MODEL`` with the flag before each URL: if it took all words, it would take the model too."""
    before, is_among_urls = "", False
    for word in words:
        is_among_urls = before == _UPSTREAM or (is_among_urls and "://" in word) or word.startswith(f"{_UPSTREAM}=")
        if is_among_urls and before != _UPSTREAM and not word.startswith("-"):
            yield _UPSTREAM
        yield word
        before = word


def _as_vllm_reads(word: str) -> str:
    """``--enforce_eager`` too; what stands behind a point is a key, not a name."""
    name, equals, value = word.partition("=")
    if not name.startswith("--"):
        return word
    flag, point, key = name.partition(".")
    return f"{flag.replace('_', '-')}{point}{key}{equals}{value}"


def _near_misses(command: argparse.ArgumentParser, words: Sequence[str], foreign: Set[str]) -> dict[str, str]:
    """By name what was probably meant; ``foreign`` names are the parser's only because somebody typed them."""
    known = command._option_string_actions.keys() - foreign  # pyright: ignore[reportPrivateUsage] as in flags
    names = dict.fromkeys(_name(word) for word in words if word.startswith("--"))
    near = {name: difflib.get_close_matches(name, known, n=1, cutoff=_NEAR) for name in names}
    return {name: hints[0] for name, hints in near.items() if hints}


def _name(word: str) -> str:
    return word.partition("=")[0]
