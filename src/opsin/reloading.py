"""What other settings mean for a server that runs: which of its models change, and what cannot. Changes nothing itself.

Replicas of an upstream come, go and drain. A model that is an upstream comes, goes, or is replaced by one of the same
name. Everything else needs a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pydantic import BaseModel

from opsin.settings import MODEL_LIMITS, EngineKind, ModelTable, Settings
from opsin.sources import settings_of

_OF_A_MODEL = frozenset(ModelTable.model_fields) | {"served_model_name", "models"}
_NO_SERVERS = {"url": "", "replicas": (), "draining": ()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Settings of models as if each were alone, and names. ``order`` is that in which they are to be served."""

    moved: tuple[Settings, ...]  # to other replicas
    begun: tuple[Settings, ...]  # also in the place of one of the same name
    ended: tuple[str, ...]
    refused: tuple[str, ...]  # in words
    order: tuple[str, ...]


def name_of(settings: Settings) -> str:
    """Of a model alone: the first name that the operator gave it, if any."""
    return next(iter(settings.served_model_name), "the model")


def changes_between(start: Settings, running: Sequence[Settings], wanted: Settings) -> Changes:
    """``start`` are the settings that the server was started with, ``running`` its models."""
    possible = _with_rest_of(start, wanted)
    before = {name_of(one): one for one in running}
    after = {name_of(one): one for one in possible.each_model}
    refused = _differing(possible, wanted)
    moved, begun = list[Settings](), list[Settings]()
    for name, one in after.items():
        old = before.get(name)
        if one == old:
            continue
        if not all(_is_upstream(each) for each in (one, old) if each is not None):
            refused.append(f"model {name}, which is no upstream")
        elif old is not None and _without_servers(one) == _without_servers(old):
            moved.append(one)
        else:
            begun.append(one)
    gone = [name for name in before if name not in after]
    refused += [f"model {name}, which is no upstream" for name in gone if not _is_upstream(before[name])]
    ended = tuple(name for name in gone if _is_upstream(before[name]))
    return Changes(moved=tuple(moved), begun=tuple(begun), ended=ended, refused=tuple(refused), order=tuple(after))


def _is_upstream(settings: Settings) -> bool:
    return settings.engine is EngineKind.UPSTREAM


def _without_servers(settings: Settings) -> Settings:
    upstream = settings.upstream
    return settings.model_copy(update={"upstream": upstream.model_copy(update=_NO_SERVERS) if upstream else None})


def _with_rest_of(start: Settings, wanted: Settings) -> Settings:
    """The models of ``wanted``, and all that is no model's as it was."""
    rest = {name: getattr(start, name) for name in Settings.model_fields if name not in _OF_A_MODEL}
    for section, limits in MODEL_LIMITS.items():
        of_wanted = getattr(wanted, section)
        rest[section] = rest[section].model_copy(update={name: getattr(of_wanted, name) for name in limits})
    return wanted.model_copy(update=rest)


def _differing(one: Settings, other: Settings) -> list[str]:
    paths = (setting.path for setting in settings_of(Settings))
    return [path for path in paths if _value(one, path) != _value(other, path)]


def _value(settings: BaseModel, path: str) -> object:
    return reduce(lambda inner, step: getattr(inner, step, None), path.split("."), settings)
