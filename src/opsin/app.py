"""The composition root: the only place that knows concrete classes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from importlib.metadata import version

from opsin import __version__, tenancy
from opsin.cache.keys import FeatureKeys
from opsin.cache.loading import CachedLoader
from opsin.cache.rendering import CachedRenderer
from opsin.caching import Caches, caches_of
from opsin.choosing import Chosen, chosen_engine, maker_of
from opsin.core.errors import ConfigError, OpsinError
from opsin.core.stages import Stage
from opsin.core.together import together
from opsin.engine.api import Capabilities, Engine, InputKind
from opsin.engine.replicas.engine import ReplicatedEngine
from opsin.gateway.admission import Admission
from opsin.gateway.chat import ChatService
from opsin.gateway.config import GatewayConfig
from opsin.gateway.count import Counter, CountService, MessageCounter, PromptCounter
from opsin.gateway.erasing import Eraser
from opsin.gateway.fitting import MessageFitter
from opsin.gateway.intake import Intake, Reading
from opsin.gateway.names import ModelNames
from opsin.gateway.plan_check import PlanCheck
from opsin.gateway.prepare import MessagePreparer, Preparer, Renderer, TokenPreparer
from opsin.gateway.readiness import ReadinessLog
from opsin.gateway.routes import Gateway
from opsin.gateway.served import Served, ServedModels
from opsin.gateway.uploads import Uploads
from opsin.local_model import LocalModel, fitter_of, max_model_len_of
from opsin.media.confine import Level
from opsin.media.dns import Lookup, system_lookup
from opsin.media.encoding import encoding_of
from opsin.media.loader import MediaLoader
from opsin.media.pool import RenderPool
from opsin.models.added_tokens import read_added_tokens
from opsin.models.card import GenerationDefaults
from opsin.models.hub import resolve
from opsin.prompt.guard import OnSpecialTokens, TextGuard
from opsin.prompt.special_tokens import known_special_tokens, special_tokens_of
from opsin.reloading import Changes, changes_between, name_of
from opsin.settings import Settings
from opsin.telemetry.logs import fields
from opsin.telemetry.metrics import Metrics
from opsin.tenants.lanes import Lanes
from opsin.testing.delays import DelayedEngine, DelayedLoader, DelayedRenderer
from opsin.upstream_model import (
    CountedModel,
    context_length,
    found_model,
    stated_model,
    tell,
)

logger = logging.getLogger(__name__)

_RETIRE_S = 0.5
"""Between two looks at a model that is served no more."""


@dataclass(frozen=True, slots=True)
class Application:
    """A built server: what to start and close, and what the routes need."""

    settings: Settings
    gateway: Gateway
    media: _Media
    models: list[_Model]
    readiness: ReadinessLog
    _retiring: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    @property
    def renderer(self) -> RenderPool:
        """Where pictures are decoded."""
        return self.media.pool

    @property
    def caches(self) -> Caches:
        """What is kept of pictures."""
        return self.media.caches

    async def start(self) -> None:
        """Starts workers and engine.

        Raises:
            ConfigError: the model cannot be served.
            EngineError: the engine did not become ready.
        """
        await self.gateway.auth.start()
        await self.renderer.start()
        await self.caches.start(self.gateway.eraser.apply)
        _log_isolation(self.renderer.level)
        times_s = await together(model.start() for model in self.models)
        if told := [time_s for time_s in times_s if time_s is not None]:
            self.gateway.metrics.load_time.set(max(told))
        self.readiness.start()

    async def close(self) -> None:
        """Ends everything that start() began; safe after a failed start."""
        await self.readiness.close()
        for task in self._retiring:
            task.cancel()
        if self._retiring:
            await asyncio.wait(self._retiring)
        await together(model.served.engine.close() for model in self.models)
        await self.renderer.close()
        await self.gateway.auth.close()
        await self.gateway.admission.close()
        await self.caches.close()

    async def reload(self, settings: Settings) -> None:
        """Changes replicas and models of upstreams to what ``settings`` say, and drops no request.

        The log says what cannot change while opsin runs. What cannot be started leaves everything of its name as it is.
        Cancelled, it has changed nothing.
        """
        changes = changes_between(self.settings, [model.settings for model in self.models], settings)
        for text in changes.refused:
            logger.warning("reload: not changed, as it needs a restart: %s", text)
        before = {name_of(model.settings): model for model in self.models}
        now = {name: model for name, model in before.items() if name not in changes.ended}
        async with AsyncExitStack() as unless_served:
            begun = {name_of(one): await self._begun(one, unless_served) for one in changes.begun}
            now |= {name: model for name, model in begun.items() if model is not None}
            if not now:
                logger.error("reload: not changed, as nothing would be served")
                return
            unless_served.pop_all()
        for one in changes.moved:
            now[name_of(one)] = now[name_of(one)].moved(one)
        order = [name for name in changes.order if name in now]
        self._serve([now[name] for name in dict.fromkeys((*order, *now))])
        names = {name: model.served.names.default for name, model in (before | now).items()}
        _log_reload(changes, [name for name, model in begun.items() if model is None], names, now)

    def _serve(self, models: list[_Model]) -> None:
        """These from now on; what is served no more is closed when its last request has ended."""
        kept = [model.served.chat for model in models]
        for model in self.models:
            if model.served.chat not in kept:
                task = asyncio.create_task(_closed_when_idle(model.served))
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)
        self.models[:] = models
        self.gateway.models.replace(tuple(model.served for model in models))

    async def _begun(self, settings: Settings, unless_served: AsyncExitStack) -> _Model | None:
        """None where it cannot be started; else ``unless_served`` ends it."""
        chosen = chosen_engine(settings)
        try:
            model = await asyncio.to_thread(_model, chosen, self.media, self.gateway.metrics)
            await model.start()
        except BaseException as error:
            await chosen.engine.close()
            if not isinstance(error, OpsinError):
                raise
            logger.error("reload: %s could not be started: %s", name_of(settings), error.message)
            return None
        unless_served.push_async_callback(chosen.engine.close)
        return model


def _log_reload(changes: Changes, failed: Collection[str], names: Mapping[str, str], now: Iterable[str]) -> None:
    """``names`` are those that the models are served under; one that never was served has none there."""

    def told(models: Iterable[str]) -> str | None:
        return ",".join(names.get(model, model) for model in models) or None

    begun = [name for name in map(name_of, changes.begun) if name not in failed]
    moved = told(map(name_of, changes.moved))
    line = fields(
        event="reloaded",
        begun=told(begun),
        moved=moved,
        ended=told(changes.ended),
        failed=told(failed),
        serves=told(now),
    )
    logger.info("%s", line)


def _log_isolation(level: Level) -> None:
    """How far the processes are confined that decode strangers' pictures; less than by seccomp is worth a warning."""
    logger.log(logging.INFO if level >= Level.SECCOMP else logging.WARNING, "%s", fields(sandbox=level.label))


@dataclass(frozen=True, slots=True)
class _Model:
    """One model of the server, with its settings as if it were alone, and what is still to be learned of it."""

    settings: Settings
    served: Served
    adoption: _Adoption | None = None
    replicated: ReplicatedEngine | None = None

    def moved(self, settings: Settings) -> _Model:
        """The same model on the replicas of other settings."""
        assert self.replicated is not None and settings.upstream is not None, "only upstreams move"
        self.replicated.change(maker_of(settings.upstream), settings.upstream.servers, settings.upstream.draining)
        return replace(self, settings=settings)

    async def start(self) -> float | None:
        """Starts the engine; returns the seconds that its model took to load, if it tells. Raises as Engine.start."""
        await self.served.engine.start()
        capabilities = self.served.engine.capabilities()
        if self.adoption is not None:
            self.adoption.settle(capabilities, self.served.names)
        return capabilities.load_time_s


@dataclass(frozen=True, slots=True)
class _Adoption:
    """What is known of an engine's model only once the engine runs."""

    settings: Settings
    stated: CountedModel | None
    fitter: MessageFitter

    def settle(self, capabilities: Capabilities, names: ModelNames) -> None:
        """Takes the upstream's name over, and counts from now on if the model is known. Raises ConfigError."""
        model = self.stated or found_model(self.settings, capabilities)
        max_model_len = context_length(self.settings, capabilities, model)
        if capabilities.model_name is not None:
            names.adopt(capabilities.model_name, revision=capabilities.model_revision, max_model_len=max_model_len)
        self.fitter.max_model_len = max_model_len
        _check_offload(self.settings.gateway, capabilities, countable=model is not None)
        if model is not None:
            self.fitter.plan_with(model.planner(self.settings.gateway, max_model_len))
        tell(self.settings, model, max_model_len)


def _check_offload(config: GatewayConfig, capabilities: Capabilities, *, countable: bool) -> None:
    if not config.offload:
        return
    if not countable:
        raise ConfigError(
            "--offload: nobody knows at which size this model sees pictures; say which one it is: --model"
        )
    encoding, formats = encoding_of(config.offload_format), capabilities.picture_formats
    if formats is not None and encoding.format not in formats:
        raise ConfigError(f"--offload-format {encoding.name}: the engine does not read {encoding.format.written}")


@dataclass(frozen=True, slots=True)
class _Media:
    """What takes pictures in: their bytes and their pixels, and what is kept of both."""

    loader: CachedLoader
    renderer: CachedRenderer
    pool: RenderPool
    caches: Caches


@dataclass(frozen=True, slots=True)
class _Serving:
    """What prepares and counts the requests of one model, and how they are sampled by default."""

    preparer: Preparer
    counter: Counter
    defaults: GenerationDefaults


def build(settings: Settings, *, lookup: Lookup = system_lookup) -> Application:
    """Composes a server; nothing is started yet. ``lookup`` resolves the hosts of pictures.

    Raises:
        ConfigError: the settings or the model do not allow a start.
    """
    chosen = [chosen_engine(one) for one in settings.each_model]
    metrics = _metrics([one.engine for one in chosen])
    media = _media(settings, metrics, lookup)
    caches = media.caches
    models = [_model(one, media, metrics) for one in chosen]
    served = ServedModels(tuple(model.served for model in models))
    eraser = Eraser(
        scopes=caches.scopes,
        tombstones=caches.tombstones,
        store=caches.store,
        files=caches.files,
        urls=caches.urls,
        models=served,
        metrics=metrics,
        others=caches.journal,
    )
    gateway = Gateway(
        models=served,
        auth=tenancy.auth(settings),
        admission=Admission(
            settings.gateway.max_requests, tenancy.quotas(settings), shared=settings.gateway.has_key_store
        ),
        metrics=metrics,
        intake=Intake(settings.media, served, max_text_bytes=settings.gateway.max_text_bytes),
        config=settings.gateway,
        scopes=caches.scopes,
        eraser=eraser,
        uploads=Uploads(caches.files, media.renderer, eraser, settings.media),
    )
    return Application(settings, gateway, media, models, ReadinessLog(served))


def _media(settings: Settings, metrics: Metrics, lookup: Lookup) -> _Media:
    """Raises ConfigError."""
    caches = caches_of(settings.cache, metrics, secret=tenancy.server_secret(settings), url=settings.redis_url)
    pool = RenderPool(settings.media)
    loader = CachedLoader(MediaLoader(settings.media, lookup), settings.media, caches.files, caches.urls)
    identity = (__version__, version("pillow"), settings.media.render_mode)
    return _Media(loader, CachedRenderer(pool, caches.store, identity), pool, caches)


async def _closed_when_idle(served: Served) -> None:
    """A request may have found it and not have begun yet, hence the first pause."""
    try:
        await asyncio.sleep(_RETIRE_S)
        while served.chat.in_progress:  # noqa: ASYNC110 - seldom, and nobody else has to be told
            await asyncio.sleep(_RETIRE_S)
    finally:
        await served.engine.close()


def _model(chosen: Chosen, media: _Media, metrics: Metrics) -> _Model:
    if chosen.local is not None:
        return _model_of_tokens(chosen, chosen.local, media, metrics)
    return _model_of_messages(chosen, media, metrics)


def _model_of_tokens(chosen: Chosen, model: LocalModel, media: _Media, metrics: Metrics) -> _Model:
    settings, card = chosen.settings, model.card
    engine = _delayed_engine(settings, chosen.engine)
    identity = (
        card.model_id,
        card.revision or "unknown",
        card.processor_fingerprint,
        settings.local.dtype,
        settings.local.vision_dtype,
        card.quantization or "unquantized",
        version("transformers"),
        settings.media.render_mode,
    )
    fitter = fitter_of(settings, model)
    preparer = TokenPreparer(
        fitter=fitter,
        keys=FeatureKeys(identity),
        scopes=media.caches.scopes,
        engine=engine,
        renderer=_delayed_renderer(settings, media.renderer),
        builder=model.builder,
        metrics=metrics,
    )
    names = ModelNames(
        settings.served_model_name or (settings.model,),
        root=settings.model,
        revision=card.revision,
        max_model_len=max_model_len_of(settings, card),
    )
    serving = _Serving(preparer, PromptCounter(fitter, model.builder), card.generation)
    return _Model(settings, _served(settings, engine, names, serving, media, metrics))


def _model_of_messages(chosen: Chosen, media: _Media, metrics: Metrics) -> _Model:
    settings = chosen.settings
    engine = _delayed_engine(settings, chosen.engine)
    fitter = MessageFitter(_text_guard(settings))
    preparer = MessagePreparer(
        fitter=fitter,
        scopes=media.caches.scopes,
        engine=engine,
        renderer=_delayed_renderer(settings, media.renderer),
        metrics=metrics,
        offload=encoding_of(settings.gateway.offload_format) if settings.gateway.offload else None,
    )
    names = ModelNames(settings.served_model_name, root=settings.engine, revision=None, max_model_len=None)
    serving = _Serving(preparer, MessageCounter(fitter), GenerationDefaults())
    served = _served(settings, engine, names, serving, media, metrics)
    replicated = chosen.engine if isinstance(chosen.engine, ReplicatedEngine) else None
    return _Model(settings, served, _Adoption(settings, stated_model(settings), fitter), replicated)


def _text_guard(settings: Settings) -> TextGuard:
    """Raises ConfigError when the named tokenizer cannot be read."""
    upstream = settings.upstream
    if upstream is None:
        return TextGuard(known_special_tokens(), OnSpecialTokens.BREAK)
    allowed = upstream.allowed_special_tokens
    if upstream.tokenizer is None:
        tokens = known_special_tokens(allowed)
    else:
        tokens = special_tokens_of(read_added_tokens(resolve(upstream.tokenizer, hub=settings.hub).path), allowed)
    return TextGuard(tokens, upstream.special_tokens_in_text)


def _served(
    settings: Settings, engine: Engine, names: ModelNames, serving: _Serving, media: _Media, metrics: Metrics
) -> Served:
    load_delay = settings.inject_delay_s.get(Stage.MEDIA_LOAD)
    own = media.loader.under(settings.media.limit_mm_per_prompt)
    loader = DelayedLoader(own, load_delay) if load_delay else own
    chat = ChatService(
        engine=engine,
        loader=loader,
        preparer=serving.preparer,
        scopes=media.caches.scopes,
        defaults=serving.defaults,
        metrics=metrics,
        plan_check=PlanCheck(names, settings.engine, metrics),
        lanes=_lanes(settings, engine),
    )
    capabilities = engine.capabilities()
    return Served(
        names=names,
        chat=chat,
        counts=CountService(loader, serving.counter),
        engine=engine,
        reading=Reading(keep_base64=capabilities.input is InputKind.MESSAGES, relay=capabilities.relays),
    )


def _lanes(settings: Settings, engine: Engine) -> Lanes:
    config, max_num_seqs = settings.gateway, engine.capabilities().max_num_seqs
    max_running = config.max_running
    if max_running is None and max_num_seqs is not None:
        max_running = max_num_seqs + -(-max_num_seqs // 2)  # pictures are rendered while a full batch runs
    return Lanes(max_running, config.max_queue_s)


def _metrics(engines: Sequence[Engine]) -> Metrics:
    """What one engine can tell is shown."""
    told = [engine.capabilities() for engine in engines]
    return Metrics(
        stages=frozenset[Stage]().union(*(one.stages for one in told)),
        cache=any(one.reports_cache for one in told),
        kv=any(one.reports_kv for one in told),
    )


def _delayed_engine(settings: Settings, engine: Engine) -> Engine:
    delay = settings.inject_delay_s.get(Stage.QUEUE)
    return DelayedEngine(engine, delay) if delay else engine


def _delayed_renderer(settings: Settings, renderer: CachedRenderer) -> Renderer:
    delay = settings.inject_delay_s.get(Stage.PREPROCESS)
    return DelayedRenderer(renderer, delay) if delay else renderer
