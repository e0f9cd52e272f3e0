"""The engine process: ``python -m opsin.engine.local.worker --fd N --parent PID --log LEVEL FORMAT``.

A reader thread takes messages off the socket and answers what needs only the feature cache, so that Reserve never
waits for a step; the main thread loads the model and then steps. The process ends with its parent: at end of file on
the socket, and by the kernel's parent-death signal where there is one. Knows no asyncio and no text.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from typing import BinaryIO

from opsin.core.allocator import give_back_pages, keep_large_blocks
from opsin.core.errors import ConfigError, OpsinError
from opsin.core.garbage import settle
from opsin.engine.local import openmp
from opsin.engine.local.config import LocalEngineConfig, check_supported
from opsin.engine.local.core import EngineCore
from opsin.engine.local.faults import FaultyRunner
from opsin.engine.local.feature_cache import FeatureCache
from opsin.engine.local.limits import limits_for
from opsin.engine.local.messages import (
    HEADER_BYTES,
    Cancel,
    FromWorker,
    Load,
    LoadFailed,
    Progress,
    Purge,
    Purged,
    Ready,
    Release,
    Reserve,
    Reserved,
    Shutdown,
    Submit,
    ToWorker,
    body_length,
    decode_to_worker,
    error_to_wire,
    to_frame,
)
from opsin.engine.local.prefix_cache import PrefixCache
from opsin.engine.local.runner_api import Runner
from opsin.engine.local.scheduler import ContinuousScheduler
from opsin.engine.local.warm_up import warm_up
from opsin.telemetry import logs

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
EXPIRY_INTERVAL_S = 30.0
"""How often what is too old is erased; no lookup finds it meanwhile."""


class Channel:
    """Frames over a connected socket. ``send`` may be called by several threads, ``receive`` by one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._input: BinaryIO = connection.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: FromWorker) -> None:
        """Raises OSError when the parent is gone."""
        frame = to_frame(message)
        with self._lock:
            self._connection.sendall(frame)

    def receive(self) -> ToWorker | None:
        """The next message, None at end of file."""
        header = self._input.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return None
        body = self._input.read(length := body_length(header))
        return decode_to_worker(body) if len(body) == length else None


class Reader(threading.Thread):
    """Answers cache messages at once and queues the others for the main thread."""

    def __init__(self, channel: Channel, feature_cache: FeatureCache, inbox: queue.SimpleQueue[ToWorker]) -> None:
        super().__init__(name="reader", daemon=True)
        self._channel = channel
        self._feature_cache = feature_cache
        self._inbox = inbox

    def run(self) -> None:
        """Until end of file, which means that nobody is left to work for."""
        try:
            while (message := self._channel.receive()) is not None:
                self._take(message)
        except Exception:
            logger.exception("the connection to the parent broke")
        # Not sys.exit: the main thread may be deep inside a kernel, and no state outlives this process.
        os._exit(0)

    def _take(self, message: ToWorker) -> None:
        match message:
            case Reserve():
                leased = self._feature_cache.reserve(message.request_id, message.keys)
                self._channel.send(Reserved(message.serial, tuple(leased)))
            case Release():
                self._feature_cache.release(message.request_id)
            case _:
                self._inbox.put(message)


class Worker:
    """The main thread: load, then take messages and step until Shutdown."""

    def __init__(self, config: LocalEngineConfig, channel: Channel) -> None:
        self._config = config
        self._channel = channel
        self._inbox: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
        self._expired_at = time.monotonic()
        self._feature_cache = FeatureCache(config.feature_cache_bytes, config.cache_ttl_s)

    def run(self) -> None:
        """Returns after Shutdown or a failed load."""
        Reader(self._channel, self._feature_cache, self._inbox).start()
        try:
            core = self._load()
        except OpsinError as error:
            self._channel.send(LoadFailed(error_to_wire(error)))
            return
        while self._take_messages(core):
            if core.has_work:
                self._channel.send(core.step(self._channel.send))
        logger.debug("feature cache %s", logs.fields(hits=self._feature_cache.hits, misses=self._feature_cache.misses))

    def _load(self) -> EngineCore:
        started = time.monotonic()
        cpus = openmp.move()
        runner = self._build_runner()
        bound = openmp.move(cpus)  # loading starts threads of its own
        loaded = runner.load(lambda step: self._channel.send(Progress(step)))
        if loaded.device == "cpu":
            openmp.move(bound)
        limits = limits_for(self._config, loaded)
        runner.set_kv_capacity(limits.kv_capacity_tokens)
        if self._config.warm_up_s:
            self._channel.send(Progress("warming up"))
            warm_up(self._config, runner, limits)
        runner = self._with_faults(runner)
        settle()
        self._channel.send(
            Ready(
                load_time_s=time.monotonic() - started,
                device=loaded.device,
                dtype=loaded.dtype,
                max_num_seqs=limits.max_num_seqs,
            )
        )
        prefix_cache = PrefixCache(
            self._config.prefix_cache_bytes, loaded.kv_bytes_per_token, ttl_s=self._config.cache_ttl_s
        )
        return EngineCore(self._config, runner, ContinuousScheduler(limits), self._feature_cache, prefix_cache)

    def _build_runner(self) -> Runner:
        check_supported(self._config)
        self._channel.send(Progress("importing torch and transformers"))
        try:
            from opsin.engine.local.runner import TransformersRunner
        except ImportError as error:
            logger.exception("import failed: %s", error)
            raise ConfigError("the local engine needs torch and transformers: pip install 'opsin[local]'") from error
        return TransformersRunner(self._config)

    def _with_faults(self, runner: Runner) -> Runner:
        config = self._config
        if config.delays or config.step_delay_s or config.out_of_memory:
            return FaultyRunner(runner, config.delays, config.out_of_memory, config.step_delay_s)
        return runner

    def _take_messages(self, core: EngineCore) -> bool:
        """All that wait; blocks while there is nothing to do. False after Shutdown."""
        self._expire(core)
        while not core.has_work or not self._inbox.empty():
            try:
                message = self._inbox.get(timeout=EXPIRY_INTERVAL_S)
            except queue.Empty:
                self._expire(core)
                continue
            if not self._take(core, message):
                return False
        return True

    def _expire(self, core: EngineCore) -> None:
        now = time.monotonic()
        if now - self._expired_at >= EXPIRY_INTERVAL_S:
            self._expired_at = now
            core.expire()
            give_back_pages()

    def _take(self, core: EngineCore, message: ToWorker) -> bool:
        match message:
            case Submit():
                core.submit(message)
            case Cancel():
                core.cancel(message.request_id)
            case Purge():
                erased = core.purge(message.scope, message.origin)
                self._channel.send(Purged(message.serial, erased, core.stats()))
            case Shutdown():
                return False
            case Load() | Reserve() | Release():
                raise AssertionError(f"{type(message).__name__} is not for the main thread")
        return True


def die_with(parent: int) -> None:
    """Asks the kernel to kill this process when its parent dies; where it cannot, end of file on the socket must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os._exit(0)


def main() -> None:
    """Entry point of the engine process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="connected Unix socket to the parent")
    parser.add_argument("--parent", type=int, required=True, help="process id of the parent")
    parser.add_argument("--log", nargs=2, required=True, help="level and format of log lines")
    args = parser.parse_args()
    logs.configure(*args.log)
    die_with(args.parent)
    keep_large_blocks()
    channel = Channel(socket.socket(fileno=args.fd))
    first = channel.receive()
    if isinstance(first, Load):
        config = LocalEngineConfig.model_validate_json(first.config_json)
        os.environ.update(openmp.settings(config.num_threads, os.environ))
        Worker(config, channel).run()
    # No teardown: torch's takes seconds, the reader still holds the socket, and no state outlives this process.
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
