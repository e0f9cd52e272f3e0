"""An engine that is somebody else's OpenAI-compatible server: vLLM, SGLang, TensorRT-LLM, llama-server, an API.

Always streams, always asks for usage. The upstream applies its own template; how it differs from others is a row of
:mod:`opsin.engine.upstream.dialect`. Of its stages it tells some or none, and what is left of its time is shown as one.
Knows no URL of a picture, and keeps of a request the names of its pictures at most.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import aiohttp

from opsin.core.errors import ConfigError, EngineError, OpsinError
from opsin.engine.api import Capabilities, EngineStats, GenerationRequest, InputKind, PurgeReport, Reservation
from opsin.engine.remote import RemoteEngine
from opsin.engine.upstream.answer import ChatAnswer
from opsin.engine.upstream.body import Addressee
from opsin.engine.upstream.call import Call
from opsin.engine.upstream.config import UpstreamConfig
from opsin.engine.upstream.dialect import Dialect, UpstreamKind, dialect_of
from opsin.engine.upstream.known import MAX_NAMES, KnownPictures
from opsin.engine.upstream.metrics_page import StageHistograms, fetch_page, total
from opsin.engine.upstream.probe import ServedModel, choose_model, fetch_models, wait_for_models
from opsin.engine.upstream.session import open_session
from opsin.telemetry.logs import fields

logger = logging.getLogger(__name__)

_SEVERAL = 2
_UNKNOWN = "none that opsin knows; if it is vLLM behind something else, say --upstream-kind vllm"


class UpstreamEngine(RemoteEngine[ChatAnswer]):
    """Implements :class:`opsin.engine.api.Engine`. ``program`` names the one that opsin has started there itself."""

    def __init__(self, config: UpstreamConfig, program: str | None = None) -> None:
        super().__init__()
        self._config = config
        self._program = program
        self._session: aiohttp.ClientSession | None = None
        self._model: ServedModel | None = None
        self._dialect = dialect_of(config.kind, None)
        self._known = KnownPictures(MAX_NAMES if config.exclusive else 0)
        self._leases: dict[str, frozenset[str]] = {}
        self._scopes: set[str] = set()  # one of them, or two: then there are several
        self._waiting = 0
        self._gone_since: float | None = None  # time.monotonic() of the first look in a row that found nobody
        self._histograms = StageHistograms(self._dialect.kind, self._dialect.histograms)

    async def start(self) -> None:
        """Waits for ``/v1/models``.

        Raises:
            ConfigError: key, url or model name are wrong, or ``exclusive`` asks what this engine cannot do.
            EngineError: it was not there in time.
        """
        self._model = choose_model(await wait_for_models(self._config, self._program), self._config.model)
        self._dialect = dialect_of(self._config.kind, self._model.owned_by)
        _check_exclusive(self._config, self._dialect)
        logger.info("%s", fields(upstream=self._dialect.kind, owned_by=self._model.owned_by))
        self._histograms = StageHistograms(self._dialect.kind, self._dialect.histograms)
        await self._read_metrics()
        self._session = open_session(self._config)
        self._watch_every(self._config.health_interval_s)

    def capabilities(self) -> Capabilities:
        """``max_model_len`` is what the upstream says, None when it does not."""
        return Capabilities(
            input=InputKind.MESSAGES,
            max_model_len=self._model.max_model_len if self._model else None,
            model_name=self._model.name if self._model else None,
            model_root=self._model.root if self._model else None,
            model_revision=self._model.revision if self._model else None,
            max_num_seqs=None,
            stages=frozenset(),
            reports_cache=self._config.exclusive,
            reports_kv=False,
            relays=True,
            picture_formats=self._dialect.formats,
            ignores_orientation=self._dialect.ignores_orientation,
        )

    async def reserve(self, request_id: str, keys: Sequence[str]) -> Reservation:
        """What an upstream caches it does not tell, but one that nobody else asks has what it was sent."""
        leased = self._known.among(keys)
        if leased:
            self._leases[request_id] = leased
        return Reservation(leased=leased, missing=frozenset(keys) - leased)

    async def release(self, request_id: str) -> None:
        """See Engine."""
        self._leases.pop(request_id, None)

    async def purge(self, scope: str, origin: str | None) -> PurgeReport:
        """Nobody will ask by these names for what is there and cannot be erased."""
        self._known.clear()
        return await super().purge(scope, origin)

    async def stats(self) -> EngineStats:
        """So many of the requests wait as the upstream said at the last look, or none. Its stages are as of then."""
        running = len(self._answers)
        waiting = min(self._waiting, running)
        return EngineStats(running=running - waiting, waiting=waiting, stage_sums=self._histograms.sums())

    def _ask(self, request: GenerationRequest) -> ChatAnswer:
        if self._session is None or self._model is None:
            raise EngineError("the upstream engine is not started or is closed")
        call = Call(self._session, f"{self._config.url}/chat/completions")
        leased = self._leases.get(request.id, frozenset())
        return ChatAnswer(call, request, self._addressee(request.scope, self._model), leased, self._known)

    def _addressee(self, scope: str, model: ServedModel) -> Addressee:
        if len(self._scopes) < _SEVERAL:
            self._scopes.add(scope)
        return Addressee(model=model.name, dialect=self._dialect, is_shared=len(self._scopes) >= _SEVERAL)

    async def _look(self) -> str | None:
        try:
            await fetch_models(self._config)
        except OpsinError as error:
            self._known.clear()  # whoever comes back may have started anew
            self._waiting = 0
            self._give_up_silent(nobody_listens=error.not_begun)
            return error.message
        self._gone_since = None
        await self._read_metrics()
        return None

    def _give_up_silent(self, *, nobody_listens: bool) -> None:
        """vLLM that is told to end closes its port and its engine, and may leave streams open that nothing follows on.

        One that others end well in the same way goes on to speak on them, so two looks have to find nobody.
        """
        if not nobody_listens:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = time.monotonic()
        else:
            for answer in self._answers.values():
                answer.give_up_if_silent(self._gone_since)

    async def _read_metrics(self) -> None:
        if self._dialect.waiting is None:
            return
        page = await fetch_page(self._config)
        self._waiting = round(total(page, self._dialect.waiting) or 0)
        self._histograms.take(page)

    async def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _check_exclusive(config: UpstreamConfig, dialect: Dialect) -> None:
    if config.exclusive and not dialect.names_pictures:
        raise ConfigError(
            f"--upstream-exclusive needs an engine that takes names for pictures, which is vLLM; this one is "
            f"{_UNKNOWN if dialect.kind is UpstreamKind.AUTO else dialect.kind}"
        )
