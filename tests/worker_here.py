"""The engine's worker without a process of its own: real core, caches and runner on the loop of the test."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.core import EngineCore
from opsin.engine.local.feature_cache import FeatureCache
from opsin.engine.local.limits import limits_for
from opsin.engine.local.messages import FromWorker, Purge, Purged, Ready, Release, Reserve, Reserved, Submit, ToWorker
from opsin.engine.local.prefix_cache import PrefixCache
from opsin.engine.local.runner import TransformersRunner
from opsin.engine.local.scheduler import ContinuousScheduler


class WorkerHere:
    """In place of ``WorkerProcess``; a request is run to its end as soon as it is sent.

    ``submits`` and ``tokens`` are what came and went in all of them, and ``features`` and ``prefixes`` what the newest
    one keeps, for tests to look at.
    """

    pid = os.getpid()
    submits: list[Submit]
    tokens: list[int]
    features: FeatureCache
    prefixes: PrefixCache

    def __init__(self) -> None:
        self._out: asyncio.Queue[FromWorker | None] = asyncio.Queue()

    @classmethod
    async def spawn(cls) -> WorkerHere:
        """Starts nothing."""
        cls.submits, cls.tokens = [], []
        return cls()

    async def load(self, config: LocalEngineConfig, progress: Callable[[str], None]) -> Ready:
        """Loads the model into this process."""
        runner = TransformersRunner(config)
        loaded = runner.load(progress)
        limits = limits_for(config, loaded)
        runner.set_kv_capacity(limits.kv_capacity_tokens)
        features = FeatureCache(config.feature_cache_bytes)
        prefixes = PrefixCache(config.prefix_cache_bytes, loaded.kv_bytes_per_token)
        self._core = EngineCore(config, runner, ContinuousScheduler(limits), features, prefixes)
        WorkerHere.features, WorkerHere.prefixes = features, prefixes
        return Ready(0.0, loaded.device, loaded.dtype, limits.max_num_seqs)

    def send(self, message: ToWorker) -> None:
        """Does what it asks for at once."""
        match message:
            case Reserve():
                leased = self.features.reserve(message.request_id, message.keys)
                self._out.put_nowait(Reserved(message.serial, tuple(leased)))
            case Release():
                self.features.release(message.request_id)
            case Submit():
                self.submits.append(message)
                self._core.submit(message)
                self._run()
            case Purge():
                erased = self._core.purge(message.scope, message.origin)
                self._out.put_nowait(Purged(message.serial, erased, self._core.stats()))
            case _:
                pass  # a cancel comes after the end of every request, too

    def _run(self) -> None:
        while self._core.has_work:
            output = self._core.step()
            self.tokens += [token.token_id for token in output.tokens]
            self._out.put_nowait(output)

    async def receive(self) -> FromWorker | None:
        """The next message."""
        return await self._out.get()

    async def stop(self) -> None:
        """Nothing runs."""

    async def kill(self) -> None:
        """Nothing runs."""
