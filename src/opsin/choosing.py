"""Which engine the settings ask for: built, not started."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from opsin import managing
from opsin.core.errors import ConfigError
from opsin.engine.api import Engine, InputKind
from opsin.engine.apis import ApiEngine
from opsin.engine.fake import FakeEngine
from opsin.engine.local.config import ENGINE_STAGES, LocalEngineConfig, PictureShape
from opsin.engine.local.engine import LocalEngine
from opsin.engine.managed.engine import ManagedEngine
from opsin.engine.replicas.engine import ReplicatedEngine
from opsin.engine.triton.engine import TritonEngine
from opsin.engine.upstream.config import UpstreamConfig
from opsin.engine.upstream.engine import UpstreamEngine
from opsin.local_model import LocalModel, load_local_model, max_model_len_of
from opsin.prompt.tokenizer import Detokenizer
from opsin.settings import EngineKind, Settings
from opsin.telemetry.logs import fields
from opsin.upstream_model import guarded_by_own_tokens, written_model
from opsin.vision.normalization import normalization_of
from opsin.vision.plan import VisionPlan, typical_plans

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Chosen:
    """An engine, not started, and the settings with what it adds to them. ``local``: a model whose template is ours."""

    settings: Settings
    engine: Engine
    local: LocalModel | None = None


def chosen_engine(settings: Settings) -> Chosen:
    """The engine of one model.

    Raises:
        ConfigError: the engine needs what is not stated, or the model cannot be served.
    """
    match settings.engine:
        case EngineKind.LOCAL:
            return _local(settings)
        case EngineKind.UPSTREAM:
            if settings.upstream is None:
                raise ConfigError("engine 'upstream' needs --upstream URL")
            upstream = settings.upstream
            servers, draining = tuple(upstream.servers), upstream.draining
            return Chosen(settings, ReplicatedEngine(maker_of(upstream), servers, settings.routing, draining=draining))
        case EngineKind.TRITON:
            if settings.upstream is None:
                raise ConfigError("engine 'triton' needs --upstream grpc://HOST:PORT")
            model = written_model(settings)
            engine = TritonEngine(settings.upstream, model.prompt, model.max_model_len)
            return Chosen(guarded_by_own_tokens(settings), engine)
        case EngineKind.API:
            return Chosen(settings, ApiEngine(settings.model, settings.api))
        case EngineKind.VLLM | EngineKind.SGLANG | EngineKind.LLAMA_CPP | EngineKind.RAMALAMA:
            sees = settings.media.limit_mm_per_prompt.image > 0
            engine = ManagedEngine(settings.engine, managing.launcher_of(settings), settings.managed, sees=sees)
            return Chosen(managing.capped(settings), engine)
        case EngineKind.FAKE:
            return Chosen(settings, FakeEngine(settings.fake.model_copy(update={"input": InputKind.MESSAGES})))


def maker_of(upstream: UpstreamConfig) -> Callable[[str], Engine]:
    """Makes the engine of one of its servers."""
    servers = upstream.servers
    return lambda url: UpstreamEngine(servers[url])


def _local(settings: Settings) -> Chosen:
    model = load_local_model(settings)
    card = model.card
    logger.info("%s", fields(model=settings.model, revision=card.revision, quantization=card.quantization))
    normalization = normalization_of(card)
    config = LocalEngineConfig(
        **settings.local.model_dump(),
        model_path=card.path,
        model_type=card.model_type,
        image_token_id=model.image_token_id,
        eos_token_ids=card.eos_token_ids,
        image_mean=normalization.mean,
        image_std=normalization.std,
        max_model_len=max_model_len_of(settings, card),
        tombstone_ttl_s=settings.cache.tombstone_ttl_s,
        warm_up_pictures=tuple(_shape(plan) for plan in typical_plans(model.family)),
        delays={stage: seconds for stage, seconds in settings.inject_delay_s.items() if stage in ENGINE_STAGES},
        step_delay_s=settings.inject_step_delay_s,
        out_of_memory=settings.inject_out_of_memory,
    )
    return Chosen(settings, LocalEngine(config, lambda: Detokenizer(model.tokenizer)), model)


def _shape(plan: VisionPlan) -> PictureShape:
    tile = plan.recipe.tile
    return PictureShape(
        num_tiles=plan.num_tiles,
        width=tile.width,
        height=tile.height,
        image_tokens=plan.image_tokens,
        original=(plan.original.width, plan.original.height),
    )
