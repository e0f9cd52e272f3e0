"""Flags on the command line; what they are called stands in :mod:`opsin.names`.

A flag's type, choices and help are those of its setting, and an absent flag leaves no trace, so that environment and
file can speak. Values are judged by the settings, not by the parser, so that all that is wrong is told at once.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin

from opsin.names import Flag, Group
from opsin.settings import Configuration, Settings, configuration
from opsin.sources import Layer, Setting, from_text, section_of, setting_at, settings_of
from opsin.vllm_flags import BY_NAME, FLAGS, Fate, Stated, Takes, VllmFlag, unknown

_HIDDEN = argparse.SUPPRESS

_NUMBER = re.compile(r"-\d|-\.\d")
"""What argparse takes for a value."""


def add_flags(parser: argparse.ArgumentParser, *groups: Group) -> None:
    """Adds ``--config`` and the flags of some groups."""
    parser.add_argument(
        "--config", dest="_config", type=Path, default=None, metavar="FILE", help="TOML file; default: ./opsin.toml"
    )
    for group in groups:
        into = parser.add_argument_group(group.title)
        for flag in group.flags:
            into.add_argument(*flag.spellings, **_options(flag))
            for inner in _inside(flag):
                hidden = _options(inner)
                hidden["help"] = _HIDDEN
                into.add_argument(*inner.names, **hidden)


def add_vllm_flags(parser: argparse.ArgumentParser) -> None:
    """vLLM's flags that are no settings, so that each takes its own words; ``--help`` would drown in them."""
    parser.set_defaults(_vllm=())
    for flag in FLAGS:
        negative = [f"--no-{flag.names[0].removeprefix('--')}"] if flag.takes is Takes.NOTHING else []
        _add_vllm_flag(parser, flag, *flag.names, *negative)


def add_unknown_flags(parser: argparse.ArgumentParser, words: Iterable[str]) -> None:
    """What ``words`` hold of flags that the parser does not have: parts of vLLM's, as ``--hf-overrides.key``, and any.

    So they are collected in their order with those that it has, each with all words up to the next flag.
    """
    known = parser._option_string_actions  # pyright: ignore[reportPrivateUsage] argparse lists them nowhere else
    short = tuple(name for name in known if not name.startswith("--"))
    for name in (word.partition("=")[0] for word in words):
        is_flag = name.startswith("--") or (name.startswith("-") and not _NUMBER.match(name))
        if is_flag and name.strip("-") and name not in known and (name[1] == "-" or not name.startswith(short)):
            _add_vllm_flag(parser, BY_NAME.get(name.partition(".")[0]) or unknown(name), name)


def unknown_words(args: argparse.Namespace) -> list[str]:
    """Words of flags that neither opsin nor its table of vLLM's has."""
    return [word for stated in getattr(args, "_vllm", ()) if stated.flag.fate is Fate.UNKNOWN for word in stated.words]


def _add_vllm_flag(parser: argparse.ArgumentParser, flag: VllmFlag, *names: str) -> None:
    nargs = {Takes.NOTHING: 0, Takes.ONE: None, Takes.SEVERAL: "+", Takes.ANYTHING: "*"}[flag.takes]
    parser.add_argument(
        *names, action=_VllmAction, flag=flag, nargs=nargs, dest="_vllm", default=argparse.SUPPRESS, help=_HIDDEN
    )


class _VllmAction(argparse.Action):
    """Collects what was typed."""

    def __init__(self, *words: Any, flag: VllmFlag, **options: Any) -> None:
        super().__init__(*words, **options)
        self._flag = flag

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        behind = (values,) if isinstance(values, str) else tuple(values)
        value = " ".join(behind) if behind else not option_string.startswith("--no-")
        namespace._vllm = (*namespace._vllm, Stated(self._flag, option_string, value, behind))


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """The model without a flag, as ``vllm serve`` has it."""
    description = setting_at(Settings, "model").description
    parser.add_argument("model", nargs="?", default=argparse.SUPPRESS, metavar="MODEL", help=description)


def given(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Layer:
    """The settings that the user typed."""
    names = dict(_names(parser))
    layer: Layer = {}
    for path, value in vars(args).items():
        if path in names:
            layer |= from_text(Settings, path, _said(path, value), f"flag {names[path]}", names[path])
    return layer


def _said(path: str, value: Any) -> Any:
    """The word itself where a flag that may be said several times was said once."""
    if not isinstance(value, list) or any(get_origin(one) is tuple for one in setting_at(Settings, path).types):
        return cast("Any", value)
    words = cast("list[Any]", value)
    return words[0] if len(words) == 1 else words


def read(args: argparse.Namespace) -> Configuration:
    """Settings and their sources, for a command whose parser was set up by ``add_flags``."""
    return configuration(given(args._parser, args), args._config, getattr(args, "_vllm", ()))


def _names(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Destinations that are settings, with what to call them; the flag wins over the word without one."""
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage] argparse lists them nowhere else
        if not action.dest.startswith("_") and action.default is argparse.SUPPRESS and action.dest != "help":
            yield action.dest, action.option_strings[0] if action.option_strings else str(action.metavar)


def _inside(flag: Flag) -> Iterator[Flag]:
    """``--limit-mm-per-prompt.image 4``, as vLLM takes the parts of an object."""
    section = section_of(setting_at(Settings, flag.setting).field)
    for inner in settings_of(section) if section else ():
        yield Flag(f"{flag.setting}.{inner.path}", tuple(f"{name}.{inner.path}" for name in flag.spellings))


def _options(flag: Flag) -> dict[str, Any]:
    """What argparse is told; types other than text are the settings' to judge."""
    setting = setting_at(Settings, flag.setting)
    options: dict[str, Any] = {"dest": flag.setting, "default": argparse.SUPPRESS, "help": _help(setting)}
    if bool in setting.types:
        plain = flag.spellings[0].startswith("--no-")
        return options | {"action": "store_true" if plain else argparse.BooleanOptionalAction}
    if flag.repeated:
        options["action"] = "append"
    elif any(get_origin(one) is tuple for one in setting.types):
        options["nargs"] = "+"
    return options | {"metavar": _metavar(setting)}


def _help(setting: Setting) -> str:
    default = setting.default
    shown = " ".join(map(str, cast("tuple[object, ...]", default))) if isinstance(default, tuple) else default
    stated = "" if default in (None, (), "", False, {}) or setting.is_section else f" (default {shown})"
    return f"{setting.description}{stated}".replace("%", "%%")


def _metavar(setting: Setting) -> str:
    if setting.is_section:
        return "JSON"
    if choices := _choices(setting):
        return f"{{{','.join(choices)}}}"
    if any(get_origin(one) is dict for one in setting.types):
        return "NAME=NUMBER"
    if any(one in (int, float) for one in setting.types):
        return "N"
    return setting.path.replace(".", "_").rpartition("_")[2].upper()


def _choices(setting: Setting) -> tuple[str, ...]:
    for one in setting.types:
        if get_origin(one) is Literal:
            return get_args(one)
        if isinstance(one, type) and issubclass(one, StrEnum):
            return tuple(one)
    return ()
