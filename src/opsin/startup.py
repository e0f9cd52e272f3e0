"""All that forbids a start and can be known before it: judged together, told together.

A folder is judged before anything is built, a hub model once its small files are here, before its weights are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from ssl import SSLError
from typing import TypeVar

from opsin import managing, tenancy, vllm_flags
from opsin.core.errors import ConfigError
from opsin.core.problems import Problem
from opsin.engine import apis
from opsin.engine.local.installed import check_installed
from opsin.engine.triton import engine as triton
from opsin.engine.upstream.config import UpstreamConfig, is_grpc
from opsin.gateway.auth import check_exposure
from opsin.gateway.tls import tls_problems
from opsin.media.config import ACCEPTED_BY_DEFAULT, MediaConfig
from opsin.media.fetch import trust
from opsin.media.plugins import is_installed
from opsin.media.types import ImageFormat
from opsin.models.added_tokens import read_added_tokens
from opsin.models.card import ModelCard, load_card
from opsin.models.chat_template import read_template
from opsin.models.countable import find_countable
from opsin.models.hub import ResolvedModel, is_folder_name, resolve
from opsin.models.quantization import check_quantization
from opsin.prompt.template import ChatTemplate
from opsin.settings import Configuration, EngineKind, Settings
from opsin.vision.bounds import configured
from opsin.vision.registry import family_for, native_family_for

T = TypeVar("T")

_MISSING_DECODERS = {
    ImageFormat.HEIC: "its decoder is missing; pip install 'opsin[heif]'",
    ImageFormat.AVIF: "this Pillow was built without its decoder; pip install --force-reinstall pillow",
}

_NO_VIDEOS = "videos are not served yet: send their frames as pictures"

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

_ONLY_LOCAL = ("chat_template", "local.")
"""Settings, and sections, of a model that runs here."""

_OF_ONE_MODEL = re.compile(r"(model|revision|served_model_name|engine)$|upstream\.")
"""What is said of a model where there is only one."""

_OF_MODEL = ("revision", "chat_template", "max_model_len", "mm_processor_kwargs.", "local.")
"""Of these an engine of others heeds only some."""


def problems(configuration: Configuration, *, listens: bool = True, starts: bool = True) -> list[Problem]:
    """Everything that is wrong, of the address too if it ``listens``, and of installed programs if it ``starts``.

    What rests on a wrong value is not judged.
    """
    wrong = {path for problem in configuration.problems for path in problem.settings}
    of_gateway = _of_gateway(configuration) if listens else ()
    of_media = _of_media(configuration.settings.media)
    of_engine = _of_engines(configuration, starts=starts) if "engine" not in wrong else ()
    found = (
        problem
        for problem in (*_of_videos(configuration), *of_gateway, *of_media, *of_engine)
        if not _rests_on(problem, wrong)
    )
    return [*configuration.problems, *found]


def notices(configuration: Configuration) -> Iterator[str]:
    """What works otherwise than somebody may expect."""
    settings = configuration.settings
    yield from configuration.notices
    yield from _about_fetching(configuration)
    yield from vllm_flags.notices(_about_server(configuration))
    if settings.engine.is_managed:
        yield from _about_managed(configuration)
        return
    if settings.engine is EngineKind.LOCAL:
        yield from vllm_flags.notices(_about_engine(configuration))
        if settings.gateway.offload:
            yield "no effect with engine local, which gets pixels and no files: --offload"
        return
    rare = sorted(set(settings.media.formats) - set(ACCEPTED_BY_DEFAULT))
    if rare and settings.engine is EngineKind.UPSTREAM:
        yield f"--media-formats {' '.join(rare)}: an upstream of a kind that opsin does not know has to read them"
    idle_paths = tuple(path for path in _ONLY_LOCAL if (settings.engine, path) != (EngineKind.TRITON, "chat_template"))
    idle = [given.name for path, given in configuration.given.items() if path.startswith(idle_paths)]
    idle += [stated.name for stated in _about_engine(configuration)]
    if idle:
        yield f"no effect with engine {settings.engine}, which runs no model here: {', '.join(dict.fromkeys(idle))}"


def _about_managed(configuration: Configuration) -> Iterator[str]:
    settings = configuration.settings
    yield from managing.notices(settings)
    if settings.media.limit_mm_per_prompt.video:
        yield f"--limit-mm-per-prompt: {_NO_VIDEOS}; {settings.engine} is told 0"
    heeds = tuple(managing.program_of(settings).heeds)
    idle = [
        given.name
        for path, given in configuration.given.items()
        if path.startswith((*_OF_MODEL, "upstream.")) and not path.startswith(heeds)
    ]
    if idle:
        yield f"no effect with engine {settings.engine}: {', '.join(dict.fromkeys(idle))}"


def is_local(settings: Settings) -> bool:
    """Whether the model is a folder, there or not."""
    return _is_folder(settings.model_location)


def _is_folder(location: str) -> bool:
    return Path(location).expanduser().is_dir() or is_folder_name(location)


def card_of(settings: Settings, resolved: ResolvedModel) -> ModelCard:
    """What a checkpoint says about itself. Raises ConfigError that names the model as the operator did."""
    try:
        return load_card(resolved)
    except ConfigError as error:
        raise ConfigError(f"model {settings.model}: {error.message}") from error


def model_problems(settings: Settings, card: ModelCard) -> Iterator[Problem]:
    """What forbids to serve a checkpoint."""
    yield from _raised(
        lambda: configured(native_family_for(card), settings.mm_processor_kwargs), "model", "mm_processor_kwargs"
    )
    yield from _raised(lambda: check_quantization(card, settings.local.quantization), "model", "local.quantization")
    yield from _raised(lambda: _check_length(settings, card), "model", "max_model_len")
    if card.own_code and not settings.local.trust_remote_code:
        text = (
            f"model {card.model_id} brings code of its own ({', '.join(card.own_code)}), which would run with your "
            "rights; read it, then start with --trust-remote-code"
        )
        yield Problem(text, ("model", "local.trust_remote_code"))


def _check_length(settings: Settings, card: ModelCard) -> None:
    wanted, most = settings.max_model_len, card.max_model_len
    if wanted and most and wanted > most:
        raise ConfigError(f"--max-model-len {wanted}: {settings.model} has positions for {most} tokens")


def template_of(settings: Settings, card: ModelCard) -> ChatTemplate:
    """The operator's template, or the model's own. Raises ConfigError."""
    source = read_template(settings.chat_template) if settings.chat_template else card.chat_template
    return ChatTemplate(source, card.special_tokens)


def _about_engine(configuration: Configuration) -> list[vllm_flags.Stated]:
    return [stated for stated in configuration.vllm if stated.flag.of_engine]


def _about_server(configuration: Configuration) -> list[vllm_flags.Stated]:
    return [stated for stated in configuration.vllm if not stated.flag.of_engine]


def _of_gateway(configuration: Configuration) -> Iterator[Problem]:
    config = configuration.settings.gateway
    yield from vllm_flags.problems(_about_server(configuration))
    yield from _raised(lambda: _check_last_key(configuration), "gateway.api_key")
    yield from _raised(lambda: check_exposure(config), "gateway.host", "gateway.api_key", "gateway.no_auth")
    yield from tenancy.problems(configuration.settings)
    yield from tls_problems(config)
    if config.metrics_port and config.metrics_port == config.port:
        text = f"--metrics-port {config.metrics_port}: the same as --port, where /metrics stays behind the key"
        yield Problem(text, ("gateway.port", "gateway.metrics_port"))


def _of_videos(configuration: Configuration) -> Iterator[Problem]:
    """An engine that opsin starts is only told of none, as vLLM's own commands allow what nobody will send."""
    path = "media.limit_mm_per_prompt.video"
    settings = configuration.settings
    if settings.media.limit_mm_per_prompt.video and not settings.engine.is_managed:
        given = configuration.given.get(path)
        name = given.name if given else path
        yield Problem(f"{name}: {_NO_VIDEOS}, and state 0 or nothing here", (path,))


def _of_media(config: MediaConfig) -> Iterator[Problem]:
    for image_format in config.formats:
        if not is_installed(image_format):
            yield Problem(f"--media-formats {image_format}: {_MISSING_DECODERS[image_format]}", ("media.formats",))
    folder = config.allowed_local_media_path
    if folder is not None and not folder.is_dir():
        yield Problem(
            f"--allowed-local-media-path {folder}: there is no such folder", ("media.allowed_local_media_path",)
        )
    if (certificates := config.fetch.ca_file) is not None:
        try:
            trust(certificates)
        except OSError as error:
            why = "holds no PEM certificates" if isinstance(error, SSLError) else f"cannot be read: {error.strerror}"
            yield Problem(f"--media-ca-file {certificates}: {why}", ("media.fetch.ca_file",))


def _about_fetching(configuration: Configuration) -> Iterator[str]:
    fetch = configuration.settings.media.fetch
    stated = [given.name for path, given in configuration.given.items() if path.startswith("media.fetch.")]
    if stated and not fetch.enabled:
        names = ", ".join(dict.fromkeys(stated))
        yield f"no effect without --allowed-media-domains or --allow-public-https, as nothing is fetched: {names}"
    elif fetch.proxy is not None:
        yield "--media-proxy: the proxy resolves the hosts of pictures, so it has to refuse private addresses itself"


def _check_last_key(configuration: Configuration) -> None:
    """``--api-key KEY MODEL`` makes the model a key that everybody knows."""
    given = configuration.given.get("gateway.api_key")
    if given is None or given.name != "--api-key" or "model" in configuration.given:
        return
    *others, last = [key.get_secret_value() for key in configuration.settings.gateway.api_key] or [""]
    if others and (_HUB_ID.fullmatch(last) or Path(last).is_dir()):
        raise ConfigError(
            "--api-key takes all words up to the next flag, and the last of them looks like a model: "
            "say the model first, or with --model"
        )


def each_model(configuration: Configuration) -> list[Configuration]:
    """The configuration of each model as if it were served alone."""
    if not configuration.settings.models:
        return [configuration]
    rest = {path: given for path, given in configuration.given.items() if not _OF_ONE_MODEL.match(path)}
    return [
        replace(
            configuration,
            settings=settings,
            given=rest if settings.stated_model is None else {**rest, "model": configuration.given["models"]},
        )
        for settings in configuration.settings.each_model
    ]


def _of_engines(configuration: Configuration, *, starts: bool) -> Iterator[Problem]:
    if not configuration.settings.models:
        yield from _of_engine(configuration, starts=starts)
        return
    stated = [given.name for path, given in configuration.given.items() if _OF_ONE_MODEL.match(path)]
    if stated:
        yield Problem(f"{', '.join(stated)}: there are several [[models]], and each says this for itself", ("models",))
    for one in each_model(configuration):
        for problem in _of_engine(one, starts=starts):
            yield Problem(f"model {one.settings.served_model_name[0]}: {problem.text}", ("models",))


def _of_engine(configuration: Configuration, *, starts: bool) -> Iterator[Problem]:
    settings = configuration.settings
    match settings.engine:
        case EngineKind.UPSTREAM:
            yield from _of_upstream(settings.upstream)
            if settings.stated_model is not None and Path(settings.model_location).expanduser().is_dir():
                yield from _raised(lambda: _check_countable(settings), "model", "revision", "mm_processor_kwargs")
        case EngineKind.TRITON:
            yield from _raised(triton.check_installed, "engine")
            yield from _of_triton(settings)
        case EngineKind.API:
            yield from _raised(apis.check_installed, "engine")
            yield from _raised(lambda: apis.check_model(settings.model), "model")
            yield from _raised(lambda: apis.check_key(settings.api), "api.key")
        case EngineKind.LOCAL:
            yield from _raised(check_installed, "engine")
            yield from vllm_flags.problems(_about_engine(configuration))
            yield from _of_template(settings)
            yield from _of_folder(settings)
        case engine if engine.is_managed:
            yield from _of_managed(configuration, starts=starts)
        case _:
            pass


def _of_managed(configuration: Configuration, *, starts: bool) -> Iterator[Problem]:
    settings = configuration.settings
    if "model" not in configuration.given:
        how = f"opsin serve MODEL --engine {settings.engine}"
        text = f"engine {settings.engine} needs a model, said before its flags: {how}"
        yield Problem(text, ("engine",))
    yield from (Problem(text, ("engine",)) for text in managing.problems(settings))
    missing = managing.missing_program(settings) if starts else None
    if missing is not None:
        yield Problem(missing, ("engine", "managed.program"))


def _of_upstream(config: UpstreamConfig | None) -> Iterator[Problem]:
    if config is None:
        yield Problem("engine upstream: --upstream URL is missing", ("engine", "upstream.url"))
    elif any(map(is_grpc, config.servers)):
        yield Problem(
            "engine upstream: grpc:// is a Triton's, and alone; leave --engine out", ("engine", "upstream.url")
        )
    elif (stated := config.tokenizer) is not None and _is_folder(stated):
        yield from _raised(lambda: read_added_tokens(resolve(stated).path), "upstream.tokenizer")


def _of_triton(settings: Settings) -> Iterator[Problem]:
    """Its prompts are written here, if a model is named for that: then its template has to be good."""
    if settings.upstream is None or not is_grpc(settings.upstream.url):
        yield Problem("engine triton: --upstream grpc://HOST:PORT is missing", ("engine", "upstream.url"))
    elif settings.upstream.replicas:
        yield Problem("engine triton: takes one server; several need a balancer before them", ("upstream.replicas",))
    yield from _of_template(settings)
    if settings.stated_model is not None and Path(settings.model_location).expanduser().is_dir():
        yield from _raised(lambda: _check_countable(settings), "model", "revision", "mm_processor_kwargs")


def _check_countable(settings: Settings) -> None:
    """A folder that is named for an upstream is there for counting, so it has to be good for that."""
    countable = find_countable(settings.model_location, settings.revision, settings.hub)
    configured(family_for(countable.vision), settings.mm_processor_kwargs)


def _of_template(settings: Settings) -> Iterator[Problem]:
    if (stated := settings.chat_template) is not None:
        yield from _raised(lambda: ChatTemplate(read_template(stated), {}), "chat_template")


def _of_folder(settings: Settings) -> Iterator[Problem]:
    """Of a model that is there already; a hub model has to be asked for first."""
    if not is_local(settings):
        return
    try:
        card = card_of(settings, resolve(settings.model_location, settings.revision))
    except ConfigError as error:
        yield Problem(error.message, ("model", "revision"))
        return
    yield from model_problems(settings, card)


def _raised(check: Callable[[], object], *settings: str) -> Iterator[Problem]:
    try:
        check()
    except ConfigError as error:
        yield Problem(error.message, settings)


def _rests_on(problem: Problem, wrong: set[str]) -> bool:
    return any(path == one or path.startswith(f"{one}.") for path in problem.settings for one in wrong)
