"""What is asked of an engine, and the command that asks it. Knows no program and no settings.

``Serving`` is in opsin's words; an :class:`EngineProgram` says it in those of one program, and :func:`launch` puts the
operator's own words behind that, without the flags that opsin has to keep in its own hands.
"""

from __future__ import annotations

import re
import secrets
import shlex
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from pydantic import SecretStr

from opsin.engine.upstream.dialect import UpstreamKind

_FLAG = re.compile(r"-(-|[^\d\s.-])\S*(=.*)?", re.DOTALL)

LOOPBACK = "127.0.0.1"

NOWHERE = "opsin.invalid"
"""A host that never exists (RFC 2606): an allow-list of it allows nothing, where an empty one would allow all."""

OWN_SERVER = "opsin alone reaches the engine, by HTTP on a loopback port"
OWN_FLAG = "say it as opsin's own flag"
FETCHES_NOTHING = "opsin fetches pictures, and the engine nothing"
READS_NO_FILES = "opsin reads pictures, and the engine no file"
ONE_KEY = "opsin makes a key for every start and gives it by the environment"

GPU_SETTINGS = frozenset(
    {
        "chat_template",
        "max_model_len",
        "mm_processor_kwargs.",
        "revision",
        "local.dtype",
        "local.gpu_memory_utilization",
        "local.max_num_seqs",
        "local.quantization",
        "local.trust_remote_code",
    }
)
"""What engines made for GPUs heed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One model as an engine shall serve it. None leaves a value to the engine.

    ``names`` are those that requests may send, the first one is opsin's. ``max_pixels`` and the like are in
    ``mm_processor_kwargs``, as the family's own processor reads them.
    """

    model: str
    names: tuple[str, ...]
    num_images: int  # per request; 0 is none
    revision: str | None = None
    download_dir: str | None = None
    offline: bool = False
    hub_token: SecretStr | None = None
    chat_template: str | None = None  # a file, or the template itself
    trust_remote_code: bool = False
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_image_tokens: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    device_memory_share: float | None = None
    num_threads: int | None = None
    in_container: bool = False
    mm_processor_kwargs: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    """A flag of the operator's own, with the words behind it, exactly as the engine gets them."""

    name: str
    behind: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """As on a command line."""
        return (self.name, *self.behind) if self.name else self.behind


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgram:
    """One engine as data, and the one function in which its command line differs.

    ``arguments`` gets the port and what the operator passes, so that a flag stated there is not stated twice.
    ``overruled`` are the operator's flags that never reach it, with why. ``heeds`` are the settings that mean
    something to it, and ``problems`` what it can never be asked.
    """

    name: str
    kind: UpstreamKind
    program: tuple[str, ...]
    install: str
    arguments: Callable[[Serving, int, Sequence[Passed]], Sequence[str]]
    overruled: Mapping[str, str]
    heeds: frozenset[str]
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    key_variable: str | None = None  # takes the key from there; None: it takes keys on its command line only
    problems: Callable[[Serving], Iterable[str]] = lambda _: ()

    def refusals(self, passed: Iterable[Passed]) -> Iterator[tuple[Passed, str]]:
        """What of the operator's words stays behind, and why."""
        for one in passed:
            why = self.overruled.get(one.name.partition(".")[0].partition("=")[0])
            if why is not None:
                yield one, why


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One start: the words of the program, what stands in its environment besides ours, where it will listen."""

    words: tuple[str, ...]
    environment: Mapping[str, SecretStr]
    port: int
    key: SecretStr | None
    kind: UpstreamKind

    @property
    def url(self) -> str:
        """Where to reach it."""
        return f"http://{LOOPBACK}:{self.port}"


def launch(engine: EngineProgram, serving: Serving, program: Sequence[str], arguments: Sequence[str]) -> Launch:
    """A start on a port that is free now, with a key that nobody has had before."""
    port = _free_port()
    refused = {one for one, _ in engine.refusals(passed_in(arguments))}
    passed = [one for one in passed_in(arguments) if one not in refused]
    key = SecretStr(secrets.token_hex(16)) if engine.key_variable else None
    environment = {name: SecretStr(value) for name, value in engine.environment.items()}
    if engine.key_variable and key:
        environment[engine.key_variable] = key
    if serving.hub_token:
        environment["HF_TOKEN"] = serving.hub_token
    if serving.offline:
        environment["HF_HUB_OFFLINE"] = SecretStr("1")
    words = (*(program or engine.program), *engine.arguments(serving, port, passed))
    return Launch(words=words, environment=environment, port=port, key=key, kind=engine.kind)


def passed_in(arguments: Iterable[str]) -> list[Passed]:
    """Words grouped by the flags before them. Neither a negative number nor a word with spaces is a flag."""
    found: list[Passed] = []
    for word in arguments:
        if _FLAG.fullmatch(word):
            found.append(Passed(word, ()))
        elif found:
            found[-1] = Passed(found[-1].name, (*found[-1].behind, word))
        else:
            found.append(Passed("", (word,)))
    return found


def names_in(passed: Iterable[Passed]) -> set[str]:
    """The flags among them, without the keys behind a point."""
    return {one.name.partition("=")[0].partition(".")[0] for one in passed}


def words_of(passed: Iterable[Passed]) -> tuple[str, ...]:
    """As on a command line."""
    return tuple(word for one in passed for word in one.words)


def flag(name: str, value: object | None) -> tuple[str, ...]:
    """``--name value``; nothing for None and False, and no value for True."""
    if value is None or value is False:
        return ()
    return (name,) if value is True else (name, str(value))


def shown(started: Launch, secret: frozenset[str]) -> str:
    """The command as a shell takes it. In the place of ``secret`` variables stands what they are."""
    environment = [
        f"{name}={shlex.quote('<secret>' if name in secret else value.get_secret_value())}"
        for name, value in started.environment.items()
    ]
    return " ".join([*environment, shlex.join(started.words)])


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as taken:
        return int(taken.getsockname()[1])
