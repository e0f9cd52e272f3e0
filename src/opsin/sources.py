"""Where settings come from: a file, the environment, flags. Merges them, and says of each value who stated it.

Works on any pydantic model of sections and fields; knows no setting by name and reads no environment by itself.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Generic, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from opsin.core.problems import Problem

M = TypeVar("M", bound=BaseModel)

ENV_PREFIX = "OPSIN_"
ENV_DELIMITER = "__"
_MAX_SHOWN = 60
_EXPECTED = {
    "missing": "is missing",
    "tuple_type": 'should be a list, as JSON: ["one", "two"]',
    "dict_type": 'should be an object, as JSON: {"name": 1}',
    "int_parsing": "should be an integer",
    "float_parsing": "should be a number",
    "bool_parsing": "should be true or false",
    "model_type": 'should be a section, or an object as JSON: {"name": 1}',
}
"""In the words of operators, where pydantic speaks of Python."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that an operator can state, by its dotted path."""

    path: str
    field: FieldInfo

    @property
    def description(self) -> str:
        """What it is for."""
        return self.field.description or ""

    @property
    def default(self) -> Any:
        """None also where a value is required."""
        default = self.field.get_default(call_default_factory=True)
        return None if default is PydanticUndefined else default

    @property
    def is_section(self) -> bool:
        """Whether it is several settings, to be stated together as JSON."""
        return section_of(self.field) is not None

    @property
    def types(self) -> tuple[Any, ...]:
        """What it may be, without None."""
        return tuple(one for one in _alternatives(self.field.annotation) if one is not type(None))

    @property
    def is_secret(self) -> bool:
        """Whether its value must never be shown."""
        return any(SecretStr in (one, *get_args(one)) for one in self.types)


@dataclass(frozen=True, slots=True)
class Given:
    """A value as somebody stated it. ``source`` says where, ``name`` what was typed there."""

    value: Any
    source: str
    name: str


Layer = dict[str, Given]
"""What one source states, by dotted path. A later layer wins over an earlier one: ``file | environment | flags``."""


@dataclass(frozen=True, slots=True)
class Loaded(Generic[M]):
    """A model and where its values come from. A wrong value is a problem, and its default stands in the model."""

    settings: M
    given: Layer
    problems: tuple[Problem, ...]


def variable_of(path: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + path.replace(".", ENV_DELIMITER).upper()


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    """Every setting, in the order of declaration."""
    for name, field in model.model_fields.items():
        section = section_of(field)
        if section is None:
            yield Setting(prefix + name, field)
        else:
            yield from settings_of(section, f"{prefix}{name}.")


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a field that is a section, also an optional one."""
    models = (one for one in _alternatives(field.annotation) if isinstance(one, type) and issubclass(one, BaseModel))
    return next(models, None)


def from_file(model: type[BaseModel], path: Path) -> Layer:
    """What a TOML file states. Raises OSError, and ValueError when it is not TOML."""
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    return {at: Given(value, path.name, f"{at} in {path.name}") for at, value in flatten(model, values)}


def from_environment(model: type[BaseModel], environment: Mapping[str, str]) -> Layer:
    """``OPSIN_GATEWAY__PORT=80`` is ``gateway.port``; what is not a plain value is JSON."""
    layer: Layer = {}
    for variable, text in environment.items():
        if variable.upper().startswith(ENV_PREFIX):
            path = variable[len(ENV_PREFIX) :].lower().replace(ENV_DELIMITER, ".")
            layer |= from_text(model, path, text, f"env {variable}", variable)
    return layer


def from_text(model: type[BaseModel], path: str, value: Any, source: str, name: str) -> Layer:
    """What a flag or variable states about a setting, or about a whole section as JSON."""
    if _is_structured(model, path):
        value = _decoded(value)
    section = _find(model, path)
    inside = section_of(section) if section else None
    if inside is None or not isinstance(value, dict):
        return {path: Given(value, source, name)}
    leaves = flatten(inside, cast("dict[str, Any]", value), f"{path}.")
    return {at: Given(one, source, name) for at, one in leaves}


def flatten(model: type[BaseModel], values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths of nested values, as deep as the model has sections."""
    for name, value in values.items():
        field = model.model_fields.get(name)
        section = section_of(field) if field else None
        if section and isinstance(value, dict):
            yield from flatten(section, cast("dict[str, Any]", value), f"{prefix}{name}.")
        else:
            yield prefix + name, value


def load(model: type[M], given: Layer) -> Loaded[M]:
    """Validates all values. Takes the wrong ones out and tries again, so that the right ones can still be judged."""
    rest = dict(given)
    problems: list[Problem] = []
    while True:
        try:
            return Loaded(model.model_validate(_nested(rest)), given, tuple(problems))
        except ValidationError as error:
            wrong = error.errors(include_url=False)
            problems += [_problem(model, rest, details) for details in wrong]
            doomed = {path for details in wrong for path in _about(rest, details)}
            if not doomed:  # the defaults themselves are wrong
                raise
            rest = {path: stated for path, stated in rest.items() if path not in doomed}


def closest(model: type[BaseModel], path: str) -> str | None:
    """The setting or section that was probably meant by a path that does not exist."""
    paths = {setting.path for setting in settings_of(model)}
    paths |= {path.rpartition(".")[0] for path in paths if "." in path}
    last = path.rpartition(".")[2]
    same_word = sorted(known for known in paths if known.rpartition(".")[2] == last)
    near = same_word or difflib.get_close_matches(path, paths, n=1) or difflib.get_close_matches(last, paths, n=1)
    return near[0] if near else None


def _problem(model: type[BaseModel], given: Layer, details: ErrorDetails) -> Problem:
    path = _path(given, details)
    stated = given.get(path)
    name = stated.name if stated else path
    if stated is not None and (table := _table_of(_find(model, path))) is not None:
        inside = details["loc"][path.count(".") + 1 :]
        if inside:
            return _problem_in_table(table, stated.name, path, inside, details)
    if details["type"] == "extra_forbidden":
        meant = closest(model, path)
        hint = f"; did you mean {meant}?" if meant else ""
        return Problem(f"{name}: there is no setting {path}{hint}", (path,))
    text = _EXPECTED.get(details["type"]) or details["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if stated is not None and details["type"] in ("model_type", "dict_type"):
        text = text.replace('{"name": 1}', _as_object(stated.value) or '{"name": 1}')
    setting = next((one for one in settings_of(model) if one.path == path), None)
    is_missing = details["type"] == "missing"
    if setting is not None and not setting.is_secret and _table_of(setting.field) is None and not is_missing:
        text += f"; got {_shown(stated.value if stated else details['input'])}"
    return Problem(f"{name}: {text}", (path, *_about(given, details)))


def _problem_in_table(
    table: type[BaseModel], name: str, path: str, inside: tuple[int | str, ...], details: ErrorDetails
) -> Problem:
    """As if the table were settings of its own, with its number in front: ``models.0.upstream.url in opsin.toml``."""
    number, *steps = map(str, inside)
    place, within = ".".join((path, number, *steps)), ".".join(steps)
    layer = {} if details["type"] == "missing" or not steps else {within: Given(details["input"], "", within)}
    _, _, complaint = _problem(table, layer, {**details, "loc": tuple(steps)}).text.partition(": ")
    where = name.replace(path, place, 1) if path in name else f"{name}: {place}"
    return Problem(f"{where}: {complaint}", (path,))


def _table_of(field: FieldInfo | None) -> type[BaseModel] | None:
    """The model of a field that is a list of tables."""
    arguments = get_args(field.annotation) if field and get_origin(field.annotation) is tuple else ()
    first = arguments[0] if arguments else None
    return first if isinstance(first, type) and issubclass(first, BaseModel) else None


def _as_object(value: Any) -> str | None:
    """``image=4`` as JSON, for the message."""
    pairs = [pair.partition("=") for pair in value.split(",")] if isinstance(value, str) else []
    if not pairs or not all(name and number.isdecimal() for name, _, number in pairs):
        return None
    return json.dumps({name: int(number) for name, _, number in pairs})


def _path(given: Layer, details: ErrorDetails) -> str:
    """The stated value that an error is about; the error may point into it."""
    steps = [str(step) for step in details["loc"]]
    for end in range(len(steps), 0, -1):
        if (path := ".".join(steps[:end])) in given:
            return path
    return ".".join(steps)


def _about(given: Layer, details: ErrorDetails) -> Iterator[str]:
    """What to take out for an error: the stated value, or all of a section in which something is missing."""
    path = _path(given, details)
    section = path.rpartition(".")[0] if details["type"] == "missing" else path
    while section and not any(f"{one}.".startswith(f"{section}.") for one in given):
        section = section.rpartition(".")[0]  # what is wrong was stated by another setting of the section
    return (one for one in given if f"{one}.".startswith(f"{section}."))


def _nested(given: Layer) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for path, stated in given.items():
        *outer, name = path.split(".")
        target: dict[str, Any] | None = values
        for step in outer:
            inner: Any = target.setdefault(step, {}) if target is not None else None
            target = cast("dict[str, Any]", inner) if isinstance(inner, dict) else None
        if target is not None:
            target[name] = stated.value
    return values


def setting_at(model: type[BaseModel], path: str) -> Setting:
    """A setting, or a section that is stated as a whole. Raises KeyError."""
    field = _find(model, path)
    if field is None:
        raise KeyError(path)
    return Setting(path, field)


def _find(model: type[BaseModel], path: str) -> FieldInfo | None:
    """The field of a setting or section."""
    first, _, rest = path.partition(".")
    field = model.model_fields.get(first)
    if field is None or not rest:
        return field
    section = section_of(field)
    return _find(section, rest) if section else None


def _is_structured(model: type[BaseModel], path: str) -> bool:
    field = _find(model, path)
    if field is None:
        return False
    kinds = (get_origin(one) or one for one in _alternatives(field.annotation))
    return section_of(field) is not None or any(kind in (dict, tuple, list) for kind in kinds)


def _decoded(value: Any) -> Any:
    """JSON where it is JSON; the model says what else is wrong. A list of one may be a whole list, as in vLLM."""
    text: Any = value
    if isinstance(value, list) and len(words := cast("list[Any]", value)) == 1:
        text = words[0]
    if not isinstance(text, str) or not text.lstrip().startswith(("{", "[")):
        return cast("Any", value)
    try:
        return json.loads(text)
    except ValueError:
        return cast("Any", value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
