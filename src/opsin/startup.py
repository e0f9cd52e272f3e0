"""All that forbids a start and can be known before it: judged together, told together.

A folder is judged before anything is built, a hub model once its small files are here, before its weights are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from ssl import SSLError
from typing import TypeVar

from opsin.core.errors import ConfigError
from opsin.core.problems import Problem
from opsin.engine.local import refusals
from opsin.engine.upstream.config import UpstreamConfig
from opsin.gateway.auth import check_exposure
from opsin.gateway.config import GatewayConfig
from opsin.gateway.tls import tls_problems
from opsin.media.config import ACCEPTED_BY_DEFAULT, MediaConfig
from opsin.media.fetch import trust
from opsin.media.plugins import is_installed
from opsin.media.types import ImageFormat
from opsin.models.added_tokens import read_added_tokens
from opsin.models.card import ModelCard, load_card
from opsin.models.chat_template import read_template
from opsin.models.hub import is_folder_name, resolve
from opsin.models.quantization import check_quantization
from opsin.prompt.template import ChatTemplate
from opsin.settings import Configuration, EngineKind, Settings
from opsin.vision.registry import native_family_for

T = TypeVar("T")

_MISSING_DECODERS = {
    ImageFormat.HEIC: "its decoder is missing; pip install 'opsin[heif]'",
    ImageFormat.AVIF: "this Pillow was built without its decoder; pip install --force-reinstall pillow",
}

_ONLY_LOCAL = ("model", "revision", "chat_template", "max_model_len", "hub.", "local.")
"""Settings, and sections, of a model that runs here."""


def problems(configuration: Configuration, *, listens: bool = True) -> list[Problem]:
    """Everything that is wrong, of the address too if it ``listens``. What rests on a wrong value is not judged."""
    wrong = {path for problem in configuration.problems for path in problem.settings}
    of_gateway = _of_gateway(configuration.settings.gateway) if listens else ()
    of_media = _of_media(configuration.settings.media)
    of_engine = _of_engine(configuration.settings) if "engine" not in wrong else ()
    found = (problem for problem in (*of_gateway, *of_media, *of_engine) if not _rests_on(problem, wrong))
    return [*configuration.problems, *found]


def notices(configuration: Configuration) -> Iterator[str]:
    """What works otherwise than somebody may expect."""
    settings = configuration.settings
    yield from configuration.notices
    yield from _about_fetching(configuration)
    if settings.engine is EngineKind.LOCAL:
        yield from refusals.notices(settings.local)
        return
    rare = sorted(set(settings.media.formats) - set(ACCEPTED_BY_DEFAULT))
    if rare and settings.engine is EngineKind.UPSTREAM:
        yield f"--media-formats {' '.join(rare)}: the upstream gets such pictures as they came and has to read them"
    idle = [given.name for path, given in configuration.given.items() if path.startswith(_ONLY_LOCAL)]
    if idle:
        yield f"no effect with engine {settings.engine}, which runs no model here: {', '.join(dict.fromkeys(idle))}"


def is_local(settings: Settings) -> bool:
    """Whether the model is a folder, there or not."""
    return _is_folder(settings.model_location)


def _is_folder(location: str) -> bool:
    return Path(location).expanduser().is_dir() or is_folder_name(location)


def model_problems(settings: Settings, card: ModelCard) -> Iterator[Problem]:
    """What forbids to serve a checkpoint."""
    yield from _raised(lambda: native_family_for(card), "model")
    yield from _raised(lambda: check_quantization(card, settings.local.quantization), "model", "local.quantization")
    if card.own_code and not settings.local.trust_remote_code:
        text = (
            f"model {card.model_id} brings code of its own ({', '.join(card.own_code)}), which would run with your "
            "rights; read it, then start with --trust-remote-code"
        )
        yield Problem(text, ("model", "local.trust_remote_code"))


def template_of(settings: Settings, card: ModelCard) -> ChatTemplate:
    """The operator's template, or the model's own. Raises ConfigError."""
    source = read_template(settings.chat_template) if settings.chat_template else card.chat_template
    return ChatTemplate(source, card.special_tokens)


def _of_gateway(config: GatewayConfig) -> Iterator[Problem]:
    yield from _raised(lambda: check_exposure(config), "gateway.host", "gateway.api_key", "gateway.no_auth")
    yield from tls_problems(config)
    if config.metrics_port and config.metrics_port == config.port:
        text = f"--metrics-port {config.metrics_port}: the same as --port, where /metrics stays behind the key"
        yield Problem(text, ("gateway.port", "gateway.metrics_port"))


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


def _of_engine(settings: Settings) -> Iterator[Problem]:
    match settings.engine:
        case EngineKind.UPSTREAM:
            yield from _of_upstream(settings.upstream)
        case EngineKind.LOCAL:
            for refusal in refusals.refusals(settings.local):
                yield Problem(refusal.text, tuple(f"local.{name}" for name in refusal.settings))
            yield from _of_template(settings)
            yield from _of_folder(settings)
        case _:
            pass


def _of_upstream(config: UpstreamConfig | None) -> Iterator[Problem]:
    if config is None:
        yield Problem("engine upstream: --upstream URL is missing", ("engine", "upstream.url"))
    elif (stated := config.tokenizer) is not None and _is_folder(stated):
        yield from _raised(lambda: read_added_tokens(resolve(stated).path), "upstream.tokenizer")


def _of_template(settings: Settings) -> Iterator[Problem]:
    if (stated := settings.chat_template) is not None:
        yield from _raised(lambda: ChatTemplate(read_template(stated), {}), "chat_template")


def _of_folder(settings: Settings) -> Iterator[Problem]:
    """Of a model that is there already; a hub model has to be asked for first."""
    if not is_local(settings):
        return
    try:
        card = load_card(resolve(settings.model_location, settings.revision))
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
