"""Flags shared by the commands; names follow vLLM where the meaning is the same.

Each flag's destination is the dotted path of its setting, and an absent flag leaves no trace, so that environment and
file can speak.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from opsin.core.stages import Stage


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """What is loaded and how."""
    group = parser.add_argument_group("model")
    _add(group, "--revision", "revision", metavar="COMMIT", help="commit of a hub model; pin it in production")
    _add(group, "--max-model-len", "max_model_len", type=int, metavar="N", help="tokens of prompt and output")
    _add(group, "--dtype", "local.dtype", choices=["auto", "bfloat16", "float16", "float32"])
    _add(group, "--device", "local.device", choices=["auto", "cpu", "cuda", "mps"])
    _add(group, "--attn-implementation", "local.attn_implementation", choices=["sdpa", "eager"])
    _add(group, "--max-num-seqs", "local.max_num_seqs", type=int, metavar="N", help="requests in one batch")
    _add(
        group,
        "--limit-mm-per-prompt",
        "media.limit_images",
        type=_image_limit,
        metavar="JSON",
        help="pictures per request, as vLLM has it: '{\"image\": 4}'",
    )


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Where it listens and who may ask."""
    group = parser.add_argument_group("server")
    _add(group, "--host", "gateway.host", metavar="ADDRESS", help="default 127.0.0.1")
    _add(group, "--port", "gateway.port", type=int, metavar="N", help="default 8000; 0 takes a free one")
    _add(group, "--api-key", "gateway.api_key", metavar="KEY", help="clients must send it as a bearer token")
    _add(group, "--no-auth", "gateway.no_auth", action="store_true", help="serve strangers without a key, on purpose")
    _add(
        group, "--served-model-name", "served_model_name", nargs="+", metavar="NAME",
        help="names under which clients may ask for the model",
    )  # fmt: skip
    _add(group, "--max-requests", "gateway.max_requests", type=int, metavar="N", help="requests in progress")
    _add(group, "--max-body-bytes", "gateway.max_body_bytes", type=int, metavar="N")
    _add(group, "--log-level", "log_level", choices=["debug", "info", "warning", "error"])


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Which engine answers."""
    group = parser.add_argument_group("engine")
    _add(group, "--engine", "engine", choices=["local", "upstream", "fake"], help="default local")
    _add(
        group, "--upstream", "upstream.url", metavar="URL",
        help="attach to an OpenAI-compatible server instead of loading a model",
    )  # fmt: skip
    _add(group, "--upstream-model", "upstream.model", metavar="NAME")
    _add(group, "--upstream-api-key", "upstream.api_key", metavar="KEY")
    _add(
        group,
        "--inject-delay",
        "inject_delay_s",
        type=_delays,
        metavar="STAGE=SECONDS",
        help="fault injection: slow a stage down, e.g. prefill=0.5,queue=1",
    )


def nested(args: argparse.Namespace) -> dict[str, Any]:
    """Only the settings that the user typed, nested as Settings is."""
    settings: dict[str, Any] = {}
    for path, value in vars(args).items():
        if path == "command" or path.startswith("_"):
            continue
        *outer, name = path.split(".")
        target = settings
        for step in outer:
            target = target.setdefault(step, {})
        target[name] = value
    if "upstream" in settings:
        settings.setdefault("engine", "upstream")
    return settings


def _add(group: argparse._ArgumentGroup, flag: str, path: str, **options: Any) -> None:  # pyright: ignore[reportPrivateUsage] argparse names no public type
    group.add_argument(flag, dest=path, default=argparse.SUPPRESS, **options)


def _image_limit(text: str) -> int:
    try:
        limits = json.loads(text)
        return int(limits["image"])
    except (ValueError, KeyError, TypeError):
        raise argparse.ArgumentTypeError(f"expected JSON such as '{{\"image\": 4}}', got {text!r}") from None


def _delays(text: str) -> dict[Stage, float]:
    try:
        pairs = [pair.split("=") for pair in text.split(",")]
        return {Stage(name): float(seconds) for name, seconds in pairs}
    except ValueError:
        names = ", ".join(Stage)
        raise argparse.ArgumentTypeError(f"expected STAGE=SECONDS with a stage of {names}, got {text!r}") from None
