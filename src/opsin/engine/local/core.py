"""The engine's step: schedule → encode → prefill → decode → emit.

Keeps the books of every request: admission, features, tokens, finish reasons, stage times, errors. Knows no torch (the
runner is given), no process and no socket.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from opsin.core.errors import Code, ContextLengthExceeded, EngineError, EngineFault, EngineOutOfMemory, OpsinError
from opsin.core.stages import Stage
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.feature_cache import FeatureCache
from opsin.engine.local.messages import (
    CoreStats,
    Ended,
    EndReason,
    Failed,
    PictureData,
    StepOutput,
    Submit,
    Token,
    error_to_wire,
)
from opsin.engine.local.runner_api import Encoded, OutOfMemory, Runner
from opsin.engine.local.scheduler import Scheduler
from opsin.engine.local.sequence import Sequence, StageClock
from opsin.telemetry.logs import Fields, fields

logger = logging.getLogger(__name__)


class EngineCore:
    """All requests of one model. Not thread-safe; only the feature cache is shared with another thread."""

    def __init__(
        self, config: LocalEngineConfig, runner: Runner, scheduler: Scheduler, feature_cache: FeatureCache
    ) -> None:
        self._config = config
        self._eos_token_ids = frozenset(config.eos_token_ids)
        self._runner = runner
        self._scheduler = scheduler
        self._feature_cache = feature_cache
        self._tokens: list[Token] = []
        self._ended: list[Ended] = []
        self._failed: list[Failed] = []

    @property
    def has_work(self) -> bool:
        """Whether a step would do or tell anything."""
        return bool(len(self._scheduler) or self._tokens or self._ended or self._failed)

    def submit(self, submit: Submit) -> None:
        """Queues a request, or fails it in the next step's output."""
        try:
            self._scheduler.add(self._admitted(submit))
        except OpsinError as error:
            self._feature_cache.release(submit.request_id)
            self._failed.append(Failed(submit.request_id, error_to_wire(error)))

    def cancel(self, request_id: str) -> None:
        """Ends a request as cancelled. Unknown ids are fine."""
        sequence = self._remove(request_id)
        if sequence is not None:
            sequence.clock.charge(Stage.DECODE if sequence.output_ids else Stage.QUEUE)
            self._ended.append(_ended(sequence, "cancelled"))

    def purge(self, scope: str, key: str | None) -> int:
        """Erases features, and keeps those that requests of this moment are about to compute out of the cache."""
        for sequence in self._scheduler:
            if sequence.scope == scope:
                sequence.forget(key)
        return self._feature_cache.purge(scope, key)

    def step(self) -> StepOutput:
        """One picture or one token for every sequence that is scheduled."""
        work = self._scheduler.schedule()
        self._each(work.encode, self._encode)
        self._each(work.prefill, self._prefill)
        self._decode(work.decode)
        return self._emit()

    def stats(self) -> CoreStats:
        """Gauges of this moment."""
        prefilled = [sequence for sequence in self._scheduler if sequence.kv_tokens]
        return CoreStats(
            kv_tokens=sum(sequence.kv_tokens for sequence in prefilled),
            kv_image_tokens=sum(sequence.image_tokens for sequence in prefilled),
            cache_bytes=self._feature_cache.size_bytes,
            device_memory_bytes=self._runner.memory_bytes(),
        )

    def _each(self, sequences: Iterable[Sequence], action: Callable[[Sequence], None]) -> None:
        for sequence in sequences:
            self._guarded((sequence,), lambda sequence=sequence: action(sequence))

    def _encode(self, sequence: Sequence) -> None:
        """Takes what the cache has, then encodes at most one picture: a cancellation is seen between two."""
        self._take_cached(sequence)
        if sequence.next_stage is not Stage.VISION_ENCODE:
            return
        picture = sequence.next_picture
        if picture.tiles is None:
            raise EngineError(
                "the reserved picture features are gone, because the engine restarted; send the request again",
                code=Code.ENGINE_FEATURES_LOST,
            )
        sequence.clock.charge(Stage.QUEUE)
        (encoded,) = self._runner.encode((picture,))
        sequence.clock.charge(Stage.VISION_ENCODE)
        _check_features(sequence, picture, encoded)
        sequence.encoded_pictures_s.append(encoded.seconds)
        sequence.encoded_tiles += encoded.num_tiles
        sequence.features.append(encoded.features)
        if picture.key not in sequence.uncached_keys:
            self._feature_cache.store(sequence.id, sequence.scope, picture.key, encoded.features)
        self._take_cached(sequence)

    def _take_cached(self, sequence: Sequence) -> None:
        while sequence.next_stage is Stage.VISION_ENCODE:
            features = self._feature_cache.take(sequence.id, sequence.next_picture.key)
            if features is None:
                return
            sequence.features.append(features)

    def _prefill(self, sequence: Sequence) -> None:
        sequence.clock.charge(Stage.QUEUE)
        token = self._runner.prefill(sequence)
        sequence.clock.charge(Stage.PREFILL)
        self._append(sequence, token)

    def _decode(self, sequences: tuple[Sequence, ...]) -> None:
        if sequences:
            self._guarded(sequences, lambda: self._decode_batch(sequences))

    def _decode_batch(self, sequences: tuple[Sequence, ...]) -> None:
        for sequence, token in zip(sequences, self._runner.decode(sequences), strict=True):
            sequence.clock.charge(Stage.DECODE)
            self._append(sequence, token)

    def _append(self, sequence: Sequence, token: int) -> None:
        sequence.output_ids.append(token)
        reason = sequence.finish_reason(self._eos_token_ids)
        if reason != "stop":
            self._tokens.append(Token(sequence.id, token))
        if reason is not None:
            self._remove(sequence.id)
            self._ended.append(_ended(sequence, reason))

    def _emit(self) -> StepOutput:
        output = StepOutput(tuple(self._tokens), tuple(self._ended), tuple(self._failed), self.stats())
        self._tokens, self._ended, self._failed = [], [], []
        return output

    def _guarded(self, sequences: Seq[Sequence], action: Callable[[], None]) -> None:
        """The engine loop's border: whatever goes wrong costs these sequences and nobody else."""
        try:
            action()
        except OpsinError as error:
            self._fail(sequences, error)
        except (OutOfMemory, MemoryError):
            logger.warning("out of memory %s", _ids(sequences))
            self._fail(sequences, EngineOutOfMemory("the engine ran out of memory", retry_after_s=1))
        except Exception:
            logger.exception("a bug failed %s", _ids(sequences))
            self._fail(sequences, EngineFault("the engine failed on this request; its log has more"))

    def _fail(self, sequences: Seq[Sequence], error: OpsinError) -> None:
        for sequence in sequences:
            if self._remove(sequence.id) is not None:
                self._failed.append(Failed(sequence.id, error_to_wire(error)))

    def _remove(self, request_id: str) -> Sequence | None:
        sequence = self._scheduler.remove(request_id)
        if sequence is not None:
            self._runner.release(sequence)
            self._feature_cache.release(request_id)
        return sequence

    def _admitted(self, submit: Submit) -> Sequence:
        """Raises ContextLengthExceeded, EngineError."""
        self._check_slots(submit)
        room = self._config.max_model_len - len(submit.prompt_ids)
        if room < 1:
            raise ContextLengthExceeded(
                f"the prompt has {len(submit.prompt_ids)} tokens and leaves no room for output: "
                f"max_model_len is {self._config.max_model_len}"
            )
        return Sequence(
            id=submit.request_id,
            scope=submit.scope,
            prompt_ids=submit.prompt_ids,
            pictures=submit.pictures,
            sampling=submit.sampling,
            max_output_tokens=min(room, submit.sampling.max_tokens or room),
            clock=StageClock(submit.submitted_at),
        )

    def _check_slots(self, submit: Submit) -> None:
        slots = submit.prompt_ids.count(self._config.image_token_id)
        image_tokens = sum(picture.image_tokens for picture in submit.pictures)
        if not submit.prompt_ids or slots != image_tokens:
            counts = fields(prompt_ids=len(submit.prompt_ids), slots=slots, image_tokens=image_tokens)
            logger.error("the prompt does not match its pictures %s %s", fields(request_id=submit.request_id), counts)
            raise EngineFault("the prompt does not match its pictures")


def _check_features(sequence: Sequence, picture: PictureData, encoded: Encoded) -> None:
    """Raises EngineFault where the encoder filled another number of positions than the plan has in the prompt."""
    if encoded.features.num_tokens != picture.image_tokens:
        counts = fields(planned=picture.image_tokens, encoded=encoded.features.num_tokens, tiles=encoded.num_tiles)
        logger.error("the encoder does not match the plan %s %s", fields(request_id=sequence.id), counts)
        raise EngineFault("the encoder's features do not match the prompt")


def _ids(sequences: Seq[Sequence]) -> Fields:
    return fields(request_id=",".join(sequence.id for sequence in sequences))


def _ended(sequence: Sequence, reason: EndReason) -> Ended:
    return Ended(
        request_id=sequence.id,
        reason=reason,
        prompt_tokens=len(sequence.prompt_ids),
        completion_tokens=len(sequence.output_ids),
        image_tokens=sequence.image_tokens,
        stages_s=sequence.clock.stages_s,
        encoded_pictures_s=tuple(sequence.encoded_pictures_s),
        encoded_tiles=sequence.encoded_tiles,
    )
