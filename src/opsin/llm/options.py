"""Keyword arguments of ``LLM`` and the settings that they mean: the flags of ``opsin serve``, and whole sections."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterable, Mapping
from typing import cast

from opsin import startup
from opsin.core.problems import raise_all
from opsin.names import CACHE, ENGINE, LOADING, MEDIA, MODEL
from opsin.settings import Settings, configuration
from opsin.sources import Layer, from_text
from opsin.vllm_flags import BY_KEYWORD, Stated

logger = logging.getLogger(__name__)

NAMES = {
    **{name: name for name in Settings.model_fields},
    **{flag.keyword: flag.setting for group in (MODEL, LOADING, MEDIA, CACHE, ENGINE) for flag in group.flags},
}
"""Keyword → dotted path of its setting, or of a section such as ``media``."""

BYTES_PER_PIXEL = 5
"""No PNG of 8-bit colours with alpha is larger."""


def to_settings(options: Mapping[str, object]) -> Settings:
    """Settings from keywords, over the environment, over ``opsin.toml``.

    Raises:
        TypeError: a keyword is no option; names those that it may stand for.
        ConfigError: values are wrong or cannot be honoured; names them all.
    """
    _refuse_unknown(options.keys() - NAMES.keys() - BY_KEYWORD.keys())
    given: Layer = {}
    for name, value in options.items():
        if name in NAMES:
            given |= from_text(Settings, NAMES[name], _plain(value), "LLM", name)
    vllm = tuple(Stated.of_keyword(name, value) for name, value in options.items() if name not in NAMES)
    stated = configuration(given, vllm=vllm)
    raise_all(startup.problems(stated, listens=False))
    for notice in startup.notices(stated):
        logger.warning("%s", notice)
    return _room_for_pixels(stated.settings)


def _plain(value: object) -> object:
    """A path as settings have it."""
    return os.fspath(cast("os.PathLike[str]", value)) if isinstance(value, os.PathLike) else value


def _refuse_unknown(names: Iterable[str]) -> None:
    told: list[str] = []
    for name in sorted(names):
        near = difflib.get_close_matches(name, NAMES, n=2)
        told.append(f"{name!r} (did you mean {' or '.join(near)}?)" if near else repr(name))
    if told:
        raise TypeError(f"LLM has no option {', '.join(told)}")


def _room_for_pixels(settings: Settings) -> Settings:
    """The byte limit stops strangers' uploads; here a photograph may come as pixels, which need more bytes than a JPEG.

    Limits on pixels hold all the same, and an operator's own byte limit too.
    """
    media = settings.media
    if "max_image_bytes" in media.model_fields_set:
        return settings
    room = max(media.max_image_bytes, BYTES_PER_PIXEL * media.max_image_pixels)
    return settings.model_copy(update={"media": media.model_copy(update={"max_image_bytes": room})})
