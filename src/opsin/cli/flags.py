"""Flags: each one is a setting that can be typed. Names follow vLLM where the meaning is the same.

A flag's type, choices and help are those of its setting, and an absent flag leaves no trace, so that environment and
file can speak. Values are judged by the settings, not by the parser, so that all that is wrong is told at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from opsin.settings import Configuration, Settings, configuration
from opsin.sources import Layer, Setting, from_text, setting_at


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting by its dotted path. The flag is called as the path's last word, unless ``names`` says otherwise."""

    setting: str
    names: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        """All of its names; the first one is used in messages."""
        return self.names or ("--" + self.setting.rpartition(".")[2].replace("_", "-"),)


@dataclass(frozen=True, slots=True)
class Group:
    """Flags that ``--help`` shows together."""

    title: str
    flags: tuple[Flag, ...]


MODEL = Group(
    "model",
    (
        Flag("model"),
        Flag("revision"),
        Flag("hub.token", ("--hf-token",)),
        Flag("hub.offline"),
        Flag("hub.download_dir"),
    ),
)
LOADING = Group(
    "how the model runs",
    (
        Flag("max_model_len"),
        Flag("chat_template"),
        Flag("local.device"),
        Flag("local.dtype"),
        Flag("local.attn_implementation"),
        Flag("local.max_num_seqs"),
        Flag("local.gpu_memory_utilization"),
        Flag("local.enable_prefix_caching"),
        Flag("local.quantization", ("--quantization", "-q")),
        Flag("local.trust_remote_code"),
        Flag("media.limit_mm_per_prompt"),
    ),
)
SERVER = Group(
    "server",
    (
        Flag("gateway.host"),
        Flag("gateway.port"),
        Flag("gateway.api_key"),
        Flag("gateway.no_auth"),
        Flag("served_model_name"),
        Flag("media.allowed_media_domains"),
        Flag("gateway.allowed_origins"),
        Flag("gateway.root_path"),
        Flag("gateway.ssl_certfile"),
        Flag("gateway.ssl_keyfile"),
        Flag("gateway.ssl_keyfile_password"),
        Flag("gateway.metrics_port"),
        Flag("gateway.max_requests"),
        Flag("gateway.max_body_bytes"),
        Flag("log_level"),
    ),
)
ENGINE = Group(
    "engine",
    (
        Flag("engine"),
        Flag("upstream.url", ("--upstream",)),
        Flag("upstream.model", ("--upstream-model",)),
        Flag("upstream.api_key", ("--upstream-api-key",)),
        Flag("inject_delay_s", ("--inject-delay",)),
    ),
)
BEYOND = Group(
    "vLLM's, beyond the local engine; a refusal says what to do instead",
    (
        Flag("local.tensor_parallel_size", ("--tensor-parallel-size", "-tp")),
        Flag("local.mm_encoder_tp_mode"),
        Flag("local.enable_expert_parallel"),
        Flag("local.kv_cache_dtype"),
    ),
)
SERVE = (MODEL, LOADING, SERVER, ENGINE, BEYOND)


def add_flags(parser: argparse.ArgumentParser, *groups: Group) -> None:
    """Adds ``--config`` and the flags of some groups."""
    parser.add_argument(
        "--config", dest="_config", type=Path, default=None, metavar="FILE", help="TOML file; default: ./opsin.toml"
    )
    for group in groups:
        into = parser.add_argument_group(group.title)
        for flag in group.flags:
            into.add_argument(*flag.spellings, **_options(flag))


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """The model without a flag, as ``vllm serve`` has it."""
    setting = setting_at(Settings, "model")
    parser.add_argument(
        "model", nargs="?", default=argparse.SUPPRESS, metavar="MODEL", help=setting.field.description
    )  # fmt: skip


def given(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Layer:
    """The settings that the user typed."""
    names = dict(_names(parser))
    layer: Layer = {}
    for path, value in vars(args).items():
        if path in names:
            layer |= from_text(Settings, path, value, f"flag {names[path]}", names[path])
    return layer


def read(args: argparse.Namespace) -> Configuration:
    """Settings and their sources, for a command whose parser was set up by ``add_flags``."""
    return configuration(given(args._parser, args), args._config)


def _names(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Destinations that are settings, with what to call them; the flag wins over the word without one."""
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage] argparse lists them nowhere else
        if not action.dest.startswith("_") and action.default is argparse.SUPPRESS and action.dest != "help":
            yield action.dest, action.option_strings[0] if action.option_strings else str(action.metavar)


def _options(flag: Flag) -> dict[str, Any]:
    """What argparse is told; types other than text are the settings' to judge."""
    setting = setting_at(Settings, flag.setting)
    options: dict[str, Any] = {"dest": flag.setting, "default": argparse.SUPPRESS, "help": _help(setting)}
    if bool in setting.types:
        plain = flag.spellings[0].startswith("--no-")
        return options | {"action": "store_true" if plain else argparse.BooleanOptionalAction}
    if any(get_origin(one) is tuple for one in setting.types):
        options["nargs"] = "+"
    return options | {"metavar": _metavar(setting)}


def _help(setting: Setting) -> str:
    default = setting.default
    stated = "" if default in (None, (), "", False, {}) or setting.is_section else f" (default {default})"
    return f"{setting.description}{stated}".replace("%", "%%")


def _metavar(setting: Setting) -> str:
    if setting.is_section:
        return "JSON"
    if choices := choices_of(setting):
        return f"{{{','.join(choices)}}}"
    if any(get_origin(one) is dict for one in setting.types):
        return "NAME=NUMBER"
    if any(one in (int, float) for one in setting.types):
        return "N"
    return setting.path.replace(".", "_").rpartition("_")[2].upper()


def choices_of(setting: Setting) -> tuple[str, ...]:
    """The words that a setting takes, if it takes only some."""
    for one in setting.types:
        if get_origin(one) is Literal:
            return get_args(one)
        if isinstance(one, type) and issubclass(one, StrEnum):
            return tuple(one)
    return ()
