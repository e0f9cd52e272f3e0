"""What would work on this machine with these settings, and what would not: the findings of ``opsin doctor``.

Looks where it can instead of believing: a render worker is started, torch is loaded, an upstream is asked. Downloads
nothing.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path

from opsin import managing, startup
from opsin.cache.disk import check_folder
from opsin.cache.redis_link import RedisLink
from opsin.cache.tier import TierError
from opsin.core.errors import ConfigError, OpsinError
from opsin.core.problems import Problem
from opsin.engine.local.config import LocalOptions
from opsin.engine.local.probe import probe
from opsin.engine.triton.engine import TritonEngine
from opsin.engine.upstream.config import UpstreamConfig
from opsin.engine.upstream.probe import choose_model, fetch_models
from opsin.gateway.listener import bind
from opsin.media.config import MediaConfig
from opsin.media.confine import Level
from opsin.media.sandbox import observe
from opsin.models.card import ModelCard
from opsin.models.hub import fetch_weights, look_up, resolve
from opsin.settings import Configuration, EngineKind, Settings
from opsin.upstream_model import written_model

_REDIS_TIMEOUT_S = 2.0


class Status(StrEnum):
    """What a finding means for a start."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line."""

    area: str
    status: Status
    text: str


async def examine(configuration: Configuration) -> AsyncIterator[Finding]:
    """Findings as they come: settings, model, engine and device, port, sandbox, Redis, the caches' folder."""
    settings = configuration.settings
    found: dict[str, list[Problem]] = {"settings": [], "model": [], "engine": []}
    for problem in startup.problems(configuration):
        found[_area(problem)].append(problem)
    for finding in _of_settings(configuration, found["settings"]):
        yield finding
    engine = [Finding("engine", Status.PROBLEM, problem.text) for problem in found["engine"]]
    for one in settings.each_model:
        async for finding in _of_engine(one, found["model"], engine):
            yield finding
    yield _of_port(configuration)
    yield await _of_sandbox(settings.media)
    yield await _of_redis(settings)
    if settings.cache.dir is not None:
        yield _of_cache_dir(settings.cache.dir)


async def _of_engine(settings: Settings, wrong: list[Problem], engine: list[Finding]) -> AsyncIterator[Finding]:
    """``wrong`` is with the model, ``engine`` with the engine."""
    match settings.engine:
        case EngineKind.LOCAL:
            findings, card = _of_model(settings, wrong)
            for finding in (*findings, *(engine or await asyncio.to_thread(_of_machine, settings.local, card))):
                yield finding
        case EngineKind.UPSTREAM:
            for server in settings.upstream.servers.values() if settings.upstream else ():
                yield await _of_upstream(server)
            for finding in engine if settings.upstream is None else ():
                yield finding
        case _:
            for finding in engine or [await _of_other(settings)]:
                yield finding


async def _of_redis(settings: Settings) -> Finding:
    """Without it a server starts all the same, unless its keys are there; but not as it was asked to."""
    if settings.redis_url is None:
        return Finding("redis", Status.OK, "not configured: limits, pictures and files are this gateway's own")
    try:
        link = RedisLink(settings.redis_url.get_secret_value(), _REDIS_TIMEOUT_S)
    except ConfigError as error:
        return Finding("redis", Status.PROBLEM, error.message)
    try:
        problem = await link.policy_problem()
    except TierError as error:
        return Finding("redis", Status.PROBLEM, f"--redis-url: Redis cannot be used ({error.reason})")
    finally:
        await link.close()
    return Finding("redis", Status.WARNING if problem else Status.OK, problem or "answers, and evicts no keys")


def _of_cache_dir(folder: Path) -> Finding:
    try:
        check_folder(folder)
    except ConfigError as error:
        return Finding("cache", Status.PROBLEM, error.message)
    return Finding("cache", Status.OK, f"--cache-dir {folder} can be written")


def _area(problem: Problem) -> str:
    return next((area for area in ("model", "engine") if area in problem.settings), "settings")


def _of_settings(configuration: Configuration, problems: list[Problem]) -> Iterator[Finding]:
    for problem in problems:
        yield Finding("settings", Status.PROBLEM, problem.text)
    for notice in startup.notices(configuration):
        yield Finding("settings", Status.WARNING, notice)
    if not problems:
        stated = ", ".join(dict.fromkeys(given.name for given in configuration.given.values()))
        yield Finding("settings", Status.OK, f"stated: {stated or 'none'}; the rest are defaults")


def _of_model(settings: Settings, problems: list[Problem]) -> tuple[list[Finding], ModelCard | None]:
    """What is there of the model, and its card if it can be served."""
    if problems:
        return _all_problems(problems), None
    hub = settings.hub.model_copy(update={"offline": True})
    try:
        resolved = resolve(settings.model_location, settings.revision, hub=hub)
        fetch_weights(resolved, with_code=settings.local.trust_remote_code, hub=hub)
    except ConfigError as error:
        if startup.is_local(settings) or settings.hub.offline:
            return [Finding("model", Status.PROBLEM, error.message)], None
        return [_of_hub(settings)], None
    try:
        card = startup.card_of(settings, resolved)
    except ConfigError as error:
        return [Finding("model", Status.PROBLEM, error.message)], None
    if problems := list(startup.model_problems(settings, card)):
        return _all_problems(problems), None
    facts = (card.model_type, f"{card.max_model_len} tokens", card.dtype, card.quantization or "not quantized")
    text = f"{settings.model} at {card.revision}: {', '.join(str(fact) for fact in facts if fact)}"
    return [Finding("model", Status.OK, text)], card


def _of_hub(settings: Settings) -> Finding:
    """A model that would have to be downloaded."""
    try:
        look_up(settings.model_location, settings.revision, settings.hub)
    except ConfigError as error:
        return Finding("model", Status.PROBLEM, f"{error.message}, and it is not completely in the local cache")
    text = f"{settings.model} is not completely in the local cache; opsin serve downloads it"
    return Finding("model", Status.WARNING, text)


def _all_problems(problems: list[Problem]) -> list[Finding]:
    return [Finding("model", Status.PROBLEM, problem.text) for problem in problems]


def _of_machine(options: LocalOptions, card: ModelCard | None) -> list[Finding]:
    try:
        machine = probe(options, card.dtype if card else None)
    except ConfigError as error:
        return [Finding("engine", Status.PROBLEM, error.message)]
    memory = f"{_gib(machine.free_bytes)} of {_gib(machine.total_bytes)} free"
    int8 = "int8: yes (VNNI)" if machine.has_int8 else "int8: no"
    device = f"{machine.device} ({machine.device_name}), {machine.dtype}, {int8}, {machine.threads} threads, {memory}"
    return [
        Finding("engine", Status.OK, f"local: torch {machine.torch}, transformers {machine.transformers}"),
        Finding("device", Status.OK, device),
    ]


async def _of_upstream(config: UpstreamConfig) -> Finding:
    try:
        model = choose_model(await fetch_models(config), config.model)
    except OpsinError as error:
        return Finding("engine", Status.PROBLEM, f"upstream {config.url}: {error.message}")
    length = f", {model.max_model_len} tokens" if model.max_model_len else ""
    return Finding("engine", Status.OK, f"upstream {config.url} serves {model.name}{length}")


async def _of_other(settings: Settings) -> Finding:
    """Of an engine that is neither here nor an OpenAI-compatible server."""
    match settings.engine:
        case EngineKind.TRITON:
            return await _of_triton(settings)
        case EngineKind.API:
            text = f"api: {settings.model} through LiteLLM {version('litellm')}; the first request asks it"
            return Finding("engine", Status.OK, text)
        case EngineKind.FAKE:
            return Finding("engine", Status.OK, "the fake engine answers with a fixed text and needs nothing")
        case _:
            return _of_managed(settings)


async def _of_triton(settings: Settings) -> Finding:
    """That its model is there and ready, and which kind it is."""
    assert settings.upstream is not None, "startup.problems has looked"
    config = settings.upstream.model_copy(update={"ready_timeout_s": 0})
    try:
        model = await asyncio.to_thread(written_model, settings)
        engine = TritonEngine(config, model.prompt, model.max_model_len)
        try:
            await engine.start()
        finally:
            await engine.close()
    except OpsinError as error:
        return Finding("engine", Status.PROBLEM, f"triton {config.url}: {error.message}")
    return Finding("engine", Status.OK, f"triton {config.url} serves {engine.capabilities().model_name}")


def _of_managed(settings: Settings) -> Finding:
    """That the program is there; whether it takes its flags, only a start can tell."""
    words = settings.managed.program_words or managing.program_of(settings).program
    return Finding("engine", Status.OK, f"{settings.engine}: {shutil.which(words[0])}; opsin serve starts it")


def _of_port(configuration: Configuration) -> Finding:
    """A default port may be that of the very server that somebody looks after, and is only worth a word."""
    config = configuration.settings.gateway
    try:
        bind(config.host, config.port).close()
    except ConfigError as error:
        stated = {"gateway.host", "gateway.port"} & configuration.given.keys()
        return Finding("port", Status.PROBLEM if stated else Status.WARNING, error.message)
    return Finding(
        "port", Status.OK, f"{config.host} port {config.port} is free" if config.port else "any that is free"
    )


async def _of_sandbox(config: MediaConfig) -> Finding:
    try:
        sandbox = await observe(config)
    except ConfigError as error:
        return Finding("sandbox", Status.PROBLEM, error.message)
    limit = sandbox.memory_limit_bytes
    means = {
        "own process": True,
        f"address space up to {_gib(limit)}" if limit is not None else "memory limit": limit is not None,
        "no core dumps": not sandbox.core_dumps,
        "system call filter": sandbox.seccomp,
        "own network": sandbox.own_network,
    }
    there = ", ".join(name for name, is_there in means.items() if is_there)
    absent = ", ".join(name for name, is_there in means.items() if not is_there)
    text = f"level {sandbox.level.label}: {there}" + (f"; not: {absent}" if absent else "")
    return Finding("sandbox", Status.OK if sandbox.level >= Level.SECCOMP else Status.WARNING, text)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
