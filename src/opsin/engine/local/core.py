"""The engine's step: schedule → encode → prefill → decode → emit, the two in the middle together where the model can.

Keeps the books of every request: admission, features, tokens, finish reasons, stage times, errors. Knows no torch (the
runner is given), no process and no socket.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq

from opsin.core.errors import Code, ContextLengthExceeded, EngineError, EngineFault, EngineOutOfMemory, OpsinError
from opsin.core.stages import Stage
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.feature_cache import FeatureCache, Features
from opsin.engine.local.messages import (
    CoreStats,
    Ended,
    EndReason,
    Failed,
    StepOutput,
    Submit,
    Token,
    error_to_wire,
)
from opsin.engine.local.pace import Pace
from opsin.engine.local.prefix_cache import Prefix, PrefixCache, PrefixMatch
from opsin.engine.local.runner_api import Encoded, OutOfMemory, Runner
from opsin.engine.local.scheduler import EncodeItem, PrefillChunk, Scheduler
from opsin.engine.local.sequence import Sequence, StageClock, Unit
from opsin.engine.local.traits import TRAITS
from opsin.engine.local.units import leased_units_of, units_of
from opsin.telemetry.logs import Fields, fields

logger = logging.getLogger(__name__)

MIN_PREFIX_TOKENS = 16
"""Shorter beginnings are not worth keeping."""

Tell = Callable[[StepOutput], None]
"""Gets what a step has produced before it ends."""

_FAULT = "the engine failed on this request; its log has more"


class EngineCore:
    """All requests of one model. Not thread-safe; only the feature cache is shared with another thread."""

    def __init__(
        self,
        config: LocalEngineConfig,
        runner: Runner,
        scheduler: Scheduler,
        feature_cache: FeatureCache,
        prefix_cache: PrefixCache,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._traits = TRAITS[config.model_type]
        self._eos_token_ids = frozenset(config.eos_token_ids)
        self._runner = runner
        self._scheduler = scheduler
        self._feature_cache = feature_cache
        self._prefix_cache = prefix_cache
        self._now = now
        self._pace = Pace(now)
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
            self._refuse(submit, error)
        except Exception:
            logger.exception("a bug refused %s", fields(request_id=submit.request_id))
            self._refuse(submit, EngineFault(_FAULT))

    def cancel(self, request_id: str) -> None:
        """Ends a request as cancelled. Unknown ids are fine."""
        sequence = self._remove(request_id)
        if sequence is not None:
            sequence.clock.charge(Stage.DECODE if sequence.output_ids else Stage.QUEUE)
            self._ended.append(_ended(sequence, "cancelled"))

    def purge(self, scope: str, origin: str | None) -> int:
        """Erases what is kept of a picture, or of a scope; what requests of this moment hold goes with them."""
        for sequence in self._scheduler:
            if sequence.scope == scope:
                sequence.forget(origin)
        return self._feature_cache.purge(scope, origin) + self._prefix_cache.purge(scope, origin)

    def expire(self) -> None:
        """Erases what has been kept for too long."""
        self._feature_cache.expire()
        self._prefix_cache.expire()

    def step(self, tell: Tell | None = None) -> StepOutput:
        """One micro-batch of the encoder or some prefill, and one token for every sequence that decodes.

        To ``tell`` go the tokens of those who decode while the encoder runs; without it nobody does.
        """
        self._watch_memory()
        work = self._scheduler.schedule()
        self._preempt(work.preempt)
        self._encode(work.encode, tell if work.decode else None)
        self._generate(work.prefill, self._scheduler.decoding() if work.decode and work.encode else work.decode)
        return self._emit()

    def stats(self) -> CoreStats:
        """Gauges of this moment."""
        sequences = list(self._scheduler)
        return CoreStats(
            kv_tokens=sum(sequence.num_computed for sequence in sequences),
            kv_image_tokens=sum(sequence.computed_image_tokens for sequence in sequences),
            cache_bytes=self._feature_cache.size_bytes,
            prefix_cache_bytes=self._prefix_cache.size_bytes,
            cache_turned_down=self._feature_cache.is_turned_down,
            kv_cache_bytes=self._runner.kv_bytes(),
            device_memory_bytes=self._runner.memory_bytes(),
        )

    def _watch_memory(self) -> None:
        """The memory of a step is a request's own as long as nobody else is there."""
        sequences = tuple(self._scheduler)
        for sequence in sequences:
            if len(sequences) > 1:
                sequence.is_alone = False
            elif sequence.is_alone is None:
                sequence.is_alone = True
                self._runner.start_peak()

    def _preempt(self, sequences: tuple[Sequence, ...]) -> None:
        for sequence in sequences:
            logger.info("preempted %s", _ids((sequence,)))
            self._runner.preempt(sequence)
            sequence.num_computed = 0

    def _encode(self, items: tuple[EncodeItem, ...], tell: Tell | None) -> None:
        """A micro-batch; one that fails runs again unit by unit, so that it costs nobody but its cause."""
        if len(items) > 1:
            try:
                encoded = self._run_encoder(items, tell)
            except Exception as error:
                logger.warning("encoding %d units failed (%s); one by one now", len(items), type(error).__name__)
            else:
                for item, result in zip(items, encoded, strict=True):
                    self._guarded(item.sequence, lambda item=item, result=result: self._accept(item, result))
                return
        for item in items:
            self._guarded(item.sequence, lambda item=item: self._accept(item, *self._run_encoder((item,), tell)))

    def _run_encoder(self, items: tuple[EncodeItem, ...], tell: Tell | None) -> list[Encoded]:
        owners = tuple({id(item.sequence): item.sequence for item in items}.values())
        pause = None if tell is None else lambda: self._decode_meanwhile(items, owners, tell)
        _charge(owners, Stage.QUEUE)
        encoded = self._runner.encode([item.unit for item in items], pause)
        _charge(owners, Stage.VISION_ENCODE)
        self._pace.encoded(encoded[0].seconds, items[0].unit.num_tokens)
        return encoded

    def _decode_meanwhile(self, items: tuple[EncodeItem, ...], owners: tuple[Sequence, ...], tell: Tell) -> None:
        """One token each, in the midst of the encoder's work for ``owners``, when it is time."""
        streams = self._scheduler.decoding()
        num_waiting = len(self._scheduler) - len(streams)
        if streams and self._pace.is_due(num_waiting, len(items), items[0].unit.num_tokens):
            _charge(owners, Stage.VISION_ENCODE)
            self._decode(streams)
            tell(self._emit())
            _charge(owners, Stage.QUEUE)

    def _accept(self, item: EncodeItem, encoded: Encoded) -> None:
        """Raises EngineFault where the encoder contradicts the plan."""
        _check_features(item, encoded)
        sequence, picture = item.sequence, item.unit.picture
        sequence.encoded_tiles += encoded.num_tiles
        sequence.encoded_pictures_s[picture] = sequence.encoded_pictures_s.get(picture, 0.0) + encoded.seconds
        self._hand_out(item.unit.key, encoded.features)

    def _hand_out(self, unit_key: str, features: Features) -> None:
        """To everybody who waits for this unit, so that nobody encodes it a second time."""
        wanting = [sequence for sequence in self._scheduler if any(unit.key == unit_key for unit in sequence.units)]
        keeping = [(sequence, sequence.holders(unit_key)) for sequence in wanting]
        for sequence in wanting:
            sequence.features[unit_key] = features
        stored = False
        for sequence, holders in keeping:
            if not holders:  # purged meanwhile
                continue
            if stored:
                for holder in holders:
                    self._feature_cache.take(sequence.id, unit_key, holder)
            else:
                self._feature_cache.store(sequence.id, sequence.scope, unit_key, features, holders)
                stored = True

    def _generate(self, chunks: tuple[PrefillChunk, ...], streams: tuple[Sequence, ...]) -> None:
        """Prompts go on and streams get a token each: in one forward, or each alone where that fails."""
        is_one = self._runner.packs and len(chunks) + bool(streams) > 1
        if is_one and self._generate_together(chunks, streams):
            return
        for chunk in chunks:
            self._guarded(chunk.sequence, lambda chunk=chunk: self._prefill(chunk))
        self._decode(streams)

    def _generate_together(self, chunks: tuple[PrefillChunk, ...], streams: tuple[Sequence, ...]) -> bool:
        """Whether that went well; a step that decodes and more still bounds what decoding takes."""
        _begin(chunks)
        started = self._now()
        try:
            tokens = self._runner.forward(chunks, streams)
        except Exception as error:
            logger.warning(
                "%d prompts and %d streams failed (%s); one by one now", len(chunks), len(streams), type(error).__name__
            )
            return False
        for chunk in chunks:
            self._guarded(chunk.sequence, lambda chunk=chunk: self._go_on(chunk, tokens))
        for sequence in streams:
            self._advance(sequence, tokens)
        if streams:
            self._pace.decoded(started)
        return True

    def _prefill(self, chunk: PrefillChunk) -> None:
        _begin((chunk,))
        self._go_on(chunk, self._runner.forward((chunk,), ()))

    def _go_on(self, chunk: PrefillChunk, tokens: dict[str, int]) -> None:
        """Behind a chunk that is in the KV cache."""
        sequence = chunk.sequence
        sequence.clock.charge(Stage.DECODE if sequence.output_ids else Stage.PREFILL)
        if not sequence.output_ids:
            sequence.num_cached = sequence.skipped
        sequence.num_computed = chunk.stop
        if chunk.is_last:
            sequence.drop_pixels()
            self._append(sequence, tokens[sequence.id])

    def _decode(self, sequences: tuple[Sequence, ...]) -> None:
        """One token each."""
        if sequences:
            started = self._now()
            self._decode_together(sequences)
            self._pace.decoded(started)

    def _decode_together(self, sequences: tuple[Sequence, ...]) -> None:
        """When there is no memory, the youngest makes room; after any other error, one by one."""
        if len(sequences) > 1:
            try:
                tokens = self._runner.forward((), sequences)
            except (OutOfMemory, MemoryError):
                return self._preempt(sequences[-1:])
            except Exception as error:
                logger.warning("decoding %d sequences failed (%s)", len(sequences), type(error).__name__)
            else:
                for sequence in sequences:
                    self._advance(sequence, tokens)
                return None
        for sequence in sequences:
            self._guarded(
                sequence, lambda sequence=sequence: self._advance(sequence, self._runner.forward((), (sequence,)))
            )
        return None

    def _advance(self, sequence: Sequence, tokens: dict[str, int]) -> None:
        sequence.clock.charge(Stage.DECODE)
        sequence.num_computed += 1
        self._append(sequence, tokens[sequence.id])

    def _append(self, sequence: Sequence, token: int) -> None:
        sequence.output_ids.append(token)
        reason = sequence.finish_reason(self._eos_token_ids)
        if reason != "stop":
            self._tokens.append(Token(sequence.id, token))
        if reason is not None:
            peak = self._runner.peak_bytes() if sequence.is_alone else None
            self._remove(sequence.id)
            self._ended.append(_ended(sequence, reason, peak))

    def _emit(self) -> StepOutput:
        output = StepOutput(tuple(self._tokens), tuple(self._ended), tuple(self._failed), self.stats())
        self._tokens, self._ended, self._failed = [], [], []
        return output

    def _guarded(self, sequence: Sequence, action: Callable[[], None]) -> None:
        """The engine loop's border: whatever goes wrong costs this sequence and nobody else."""
        try:
            action()
        except OpsinError as error:
            self._fail(sequence, error)
        except (OutOfMemory, MemoryError):
            logger.warning("out of memory %s", _ids((sequence,)))
            self._fail(sequence, EngineOutOfMemory("the engine ran out of memory", retry_after_s=1))
        except Exception:
            logger.exception("a bug failed %s", _ids((sequence,)))
            self._fail(sequence, EngineFault(_FAULT))

    def _fail(self, sequence: Sequence, error: OpsinError) -> None:
        if self._remove(sequence.id, keep=False) is not None:
            self._failed.append(Failed(sequence.id, error_to_wire(error)))

    def _refuse(self, submit: Submit, error: OpsinError) -> None:
        self._feature_cache.release(submit.request_id)
        self._failed.append(Failed(submit.request_id, error_to_wire(error)))

    def _remove(self, request_id: str, *, keep: bool = True) -> Sequence | None:
        """Takes a sequence out and frees what it holds; ``keep`` its keys and values for the next turn."""
        sequence = self._scheduler.remove(request_id)
        if sequence is not None:
            if keep:
                self._keep_prefix(sequence)
            self._runner.release(sequence)
            self._feature_cache.release(request_id)
        return sequence

    def _keep_prefix(self, sequence: Sequence) -> None:
        """Nothing is kept of a request whose pictures were purged, or when there is no memory for it."""
        length = sequence.num_computed
        if length < MIN_PREFIX_TOKENS or not sequence.keeps_prefix or not self._prefix_cache.has_room(length):
            return
        identity = (sequence.identity + tuple(sequence.output_ids))[:length]
        if self._prefix_cache.holds(sequence.scope, identity):
            return
        try:
            saved = self._runner.save(sequence)
        except Exception as error:  # its answer is complete, and shall be given
            logger.warning("a prefix was not kept (%s) %s", type(error).__name__, _ids((sequence,)))
            return
        self._prefix_cache.store(
            Prefix(
                scope=sequence.scope,
                identity=identity,
                origins=frozenset(sequence.origins),
                value=saved.value,
                size_bytes=saved.size_bytes,
            )
        )

    def _find_prefix(self, sequence: Sequence) -> None:
        """At least one position is left to compute: the last one's logits choose the first token."""
        match = self._prefix_cache.find(sequence.scope, sequence.identity, sequence.num_tokens - 1)
        if match is not None:
            length = sequence.cut(match.length)
            sequence.prefix = PrefixMatch(match.prefix, length) if length >= MIN_PREFIX_TOKENS else None

    def _admitted(self, submit: Submit) -> Sequence:
        """Raises ContextLengthExceeded, EngineError."""
        self._check_slots(submit)
        room = self._config.max_model_len - len(submit.prompt_ids)
        if room < 1:
            raise ContextLengthExceeded(
                f"the prompt has {len(submit.prompt_ids)} tokens and leaves no room for output: "
                f"max_model_len is {self._config.max_model_len}"
            )
        sequence = Sequence(
            id=submit.request_id,
            scope=submit.scope,
            prompt_ids=submit.prompt_ids,
            image_positions=self._image_positions(submit),
            picture_keys=tuple(picture.key for picture in submit.pictures),
            origins=tuple(picture.origin for picture in submit.pictures),
            units=tuple(self._units(submit)),
            sampling=submit.sampling,
            max_output_tokens=min(room, submit.sampling.max_tokens or room),
            clock=StageClock(submit.submitted_at),
            whole_pictures=self._traits.whole_pictures,
        )
        for picture in submit.pictures:
            if not picture.keep:
                sequence.forget(picture.origin)
        self._find_prefix(sequence)
        self._take_cached(sequence)
        return sequence

    def _image_positions(self, submit: Submit) -> tuple[int, ...]:
        image = self._config.image_token_id
        return tuple(position for position, token in enumerate(submit.prompt_ids) if token == image)

    def _units(self, submit: Submit) -> Iterator[Unit]:
        for index, picture in enumerate(submit.pictures):
            if picture.tiles is not None:
                yield from units_of(submit.scope, picture, index, self._traits)
                continue
            leased = self._feature_cache.leased(submit.request_id, picture.key)
            if leased is None:
                raise EngineError(
                    "the reserved picture features are gone, because the engine restarted; send the request again",
                    code=Code.ENGINE_FEATURES_LOST,
                )
            yield from leased_units_of(picture, index, leased.unit_keys)

    def _take_cached(self, sequence: Sequence) -> None:
        for unit in sequence.units:
            for holder in sequence.holders(unit.key):
                features = self._feature_cache.take(sequence.id, unit.key, holder)
                if features is not None:
                    sequence.features[unit.key] = features

    def _check_slots(self, submit: Submit) -> None:
        slots = submit.prompt_ids.count(self._config.image_token_id)
        image_tokens = sum(picture.image_tokens for picture in submit.pictures)
        if not submit.prompt_ids or slots != image_tokens:
            counts = fields(prompt_ids=len(submit.prompt_ids), slots=slots, image_tokens=image_tokens)
            logger.error("the prompt does not match its pictures %s %s", fields(request_id=submit.request_id), counts)
            raise EngineFault("the prompt does not match its pictures")


def _check_features(item: EncodeItem, encoded: Encoded) -> None:
    """Raises EngineFault where the encoder filled another number of positions than the plan has in the prompt."""
    if encoded.features.num_tokens != item.unit.num_tokens:
        counts = fields(planned=item.unit.num_tokens, encoded=encoded.features.num_tokens, tiles=encoded.num_tiles)
        logger.error("the encoder does not match the plan %s %s", fields(request_id=item.sequence.id), counts)
        raise EngineFault("the encoder's features do not match the prompt")


def _begin(chunks: Seq[PrefillChunk]) -> None:
    for sequence in (chunk.sequence for chunk in chunks):
        sequence.clock.charge(Stage.DECODE if sequence.output_ids else Stage.QUEUE)


def _charge(sequences: Seq[Sequence], stage: Stage) -> None:
    for sequence in sequences:
        sequence.clock.charge(stage)


def _ids(sequences: Seq[Sequence]) -> Fields:
    return fields(request_id=",".join(sequence.id for sequence in sequences))


def _ended(sequence: Sequence, reason: EndReason, peak_memory_bytes: int | None = None) -> Ended:
    return Ended(
        request_id=sequence.id,
        reason=reason,
        prompt_tokens=len(sequence.prompt_ids),
        completion_tokens=len(sequence.output_ids),
        image_tokens=sequence.image_tokens,
        cached_tokens=sequence.num_cached,
        stages_s=sequence.clock.stages_s,
        encoded_pictures_s=tuple(sequence.encoded_pictures_s.values()),
        encoded_tiles=sequence.encoded_tiles,
        peak_memory_bytes=peak_memory_bytes,
    )
