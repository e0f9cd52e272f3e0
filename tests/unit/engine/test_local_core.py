"""The step's bookkeeping against a scripted runner: no torch, no process."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path

import msgspec
import pytest

from opsin.core.errors import Code
from opsin.core.stages import Stage
from opsin.engine.api import SamplingParams
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.core import EngineCore
from opsin.engine.local.feature_cache import FeatureCache, Features
from opsin.engine.local.kv_grid import BLOCK_TOKENS
from opsin.engine.local.messages import Ended, Failed, PictureData, StepOutput, Submit, Tiles
from opsin.engine.local.prefix_cache import PrefixCache
from opsin.engine.local.runner_api import Encoded, LoadedModel, OutOfMemory, SavedKv
from opsin.engine.local.scheduler import ContinuousScheduler, Limits, PrefillChunk
from opsin.engine.local.sequence import Sequence, Unit

IMAGE, EOS = 5, 9


class ScriptedRunner:
    """Answers 10, 11, 12 … and then EOS; raises what it is told to. Pixels name a picture."""

    def __init__(self, num_tokens: int = 3) -> None:
        self.num_tokens = num_tokens
        self.encoded: list[str] = []
        self.prefilled: list[tuple[str, int, int]] = []
        self.decoded: list[list[str]] = []
        self.packs = False
        self.forwards: list[tuple[int, int]] = []
        self.preempted: list[str] = []
        self.released: list[str] = []
        self.error: BaseException | None = None
        self.fails_in: Stage | None = None
        self.fails_for: str | None = None
        self.num_features = 2
        self.fails_to_save = False
        self.peak = 0
        self.num_breaks = 0
        self.break_every_s = 1.0
        self.clock = 0.0

    def load(self, progress: Callable[[str], None]) -> LoadedModel:
        return LoadedModel("cpu", "float32", 1, 1000)

    def set_kv_capacity(self, tokens: int) -> None:
        pass

    def encode(self, units: Seq[Unit], pause: Callable[[], None] | None = None) -> list[Encoded]:
        names = [named(unit) for unit in units]
        for _ in range(self.num_breaks if pause else 0):
            assert pause is not None
            self.clock += self.break_every_s
            pause()
        self._maybe_fail(Stage.VISION_ENCODE, names)
        self.encoded += names
        self.peak += 100
        return [Encoded(Features(name, 10, self.num_features), 1, 0.25) for name in names]

    def forward(self, chunks: Seq[PrefillChunk], sequences: Seq[Sequence]) -> dict[str, int]:
        assert self.packs or len(chunks) + bool(sequences) == 1
        self._maybe_fail(Stage.PREFILL, [chunk.sequence.id for chunk in chunks])
        if sequences:
            self.clock += 0.1
            self._maybe_fail(Stage.DECODE, [sequence.id for sequence in sequences])
            self.decoded.append([sequence.id for sequence in sequences])
        for chunk in chunks:
            for part in chunk.sequence.features_between(chunk.start, chunk.stop):
                assert part.features.value
            self.prefilled.append((chunk.sequence.id, chunk.start, chunk.stop))
        self.forwards.append((len(chunks), len(sequences)))
        chosen = [chunk.sequence for chunk in chunks if chunk.is_last] + list(sequences)
        return {sequence.id: self._next(sequence) for sequence in chosen}

    def save(self, sequence: Sequence) -> SavedKv:
        if self.fails_to_save:
            raise KeyError("bug")
        return SavedKv(sequence.id, sequence.num_computed)

    def preempt(self, sequence: Sequence) -> None:
        self.preempted.append(sequence.id)

    def release(self, sequence: Sequence) -> None:
        self.released.append(sequence.id)

    def kv_bytes(self) -> int:
        return 0

    def start_peak(self) -> None:
        self.peak = 0

    def peak_bytes(self) -> int | None:
        return self.peak

    def memory_bytes(self) -> int | None:
        return None

    def _next(self, sequence: Sequence) -> int:
        done = len(sequence.output_ids)
        return 10 + done if done < self.num_tokens else EOS

    def _maybe_fail(self, stage: Stage, names: list[str]) -> None:
        if self.error is not None and self.fails_in is stage and self.fails_for in (None, *names):
            raise self.error


def named(unit: Unit) -> str:
    assert unit.tiles is not None
    return unit.tiles.pixels[:1].decode()


class Bench:
    """A core with its parts at hand; one request at a time unless told otherwise."""

    def __init__(self, num_tokens: int = 3, prefix_bytes: int = 0, **limits: int) -> None:
        self.runner = ScriptedRunner(num_tokens)
        self.cache = FeatureCache(1000)
        config = LocalEngineConfig(
            model_path=Path("model"),
            model_type="idefics3",
            image_token_id=IMAGE,
            eos_token_ids=(EOS,),
            image_mean=(0.5, 0.5, 0.5),
            image_std=(0.5, 0.5, 0.5),
            max_model_len=limits.pop("max_model_len", 20),
        )
        self.scheduler = ContinuousScheduler(limits_of(**limits))
        self.core = EngineCore(
            config, self.runner, self.scheduler, self.cache, PrefixCache(prefix_bytes, 1), lambda: self.runner.clock
        )

    def run(self) -> StepOutput:
        """All steps, as one output."""
        outputs: list[StepOutput] = []
        while self.core.has_work:
            outputs.append(self.core.step())
        return StepOutput(
            tuple(token for output in outputs for token in output.tokens),
            tuple(ended for output in outputs for ended in output.ended),
            tuple(failed for output in outputs for failed in output.failed),
            outputs[-1].stats,
        )

    def only_end(self) -> Ended:
        (ended,) = self.run().ended
        return ended

    def only_failure(self) -> Failed:
        (failed,) = self.run().failed
        return failed


def limits_of(**limits: int) -> Limits:
    values = {"max_num_seqs": 1, "max_num_batched_tokens": 100, "max_num_encoder_tokens": 1, "kv_capacity_tokens": 1000}
    values |= {"max_num_tokens_beside_decode": limits.get("max_num_batched_tokens", 100)}
    return Limits(**{**values, **limits})


def picture(key: str, *, tiles: str | None = None, known: bool = False) -> PictureData:
    """Every tile is 1x1 pixel, named by one character of ``tiles``, and has two tokens."""
    names = key if tiles is None else tiles
    pixels = b"".join(name.encode() * 3 for name in names)
    return PictureData(key, 2 * len(names), None if known else Tiles(pixels, len(names), 1, 1), origin=key)


def submit(name: str = "r", *pictures: PictureData, text: int = 3, **sampling: object) -> Submit:
    prompt = (1,) * text + (IMAGE,) * sum(one.image_tokens for one in pictures)
    return Submit(name, "scope", prompt, pictures, SamplingParams(**sampling), 0.0)  # pyright: ignore[reportArgumentType] # keyword overrides of a factory


def test_eos_is_counted_and_not_sent():
    bench = Bench()
    bench.core.submit(submit())
    output = bench.run()
    assert [token.token_id for token in output.tokens] == [10, 11, 12]
    (ended,) = output.ended
    assert (ended.reason, ended.prompt_tokens, ended.completion_tokens) == ("stop", 3, 4)
    assert set(ended.stages_s) == {Stage.QUEUE, Stage.PREFILL, Stage.DECODE}
    assert bench.runner.released == ["r"]


@pytest.mark.parametrize(
    ("max_tokens", "reason", "completion_tokens"), [(2, "length", 2), (4, "stop", 4), (None, "stop", 4)]
)
def test_max_tokens(max_tokens: int | None, reason: str, completion_tokens: int):
    bench = Bench()
    bench.core.submit(submit(max_tokens=max_tokens))
    ended = bench.only_end()
    assert (ended.reason, ended.completion_tokens) == (reason, completion_tokens)


def test_max_model_len_ends_with_length():
    bench = Bench(num_tokens=100)
    bench.core.submit(submit(text=15, max_tokens=50))
    ended = bench.only_end()
    assert (ended.reason, ended.completion_tokens) == ("length", 5)


def test_a_prompt_that_fills_the_context_is_refused():
    bench = Bench()
    bench.core.submit(submit(text=20))
    error = bench.only_failure().error
    assert error.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert "20" in error.message


def test_ignore_eos_goes_on():
    bench = Bench()
    bench.core.submit(submit(ignore_eos=True, max_tokens=6))
    output = bench.run()
    assert [token.token_id for token in output.tokens] == [10, 11, 12, EOS, EOS, EOS]
    assert output.ended[0].reason == "length"


def test_pictures_are_encoded_once_and_found_again():
    bench = Bench()
    bench.core.submit(submit("one", picture("a"), picture("b"), picture("a")))
    ended = bench.only_end()
    assert bench.runner.encoded == ["a", "b"]
    assert (ended.image_tokens, ended.encoded_pictures_s, ended.encoded_tiles) == (6, (0.25, 0.25), 2)
    assert bench.cache.reserve("two", ("a", "b")) == {"a", "b"}
    bench.core.submit(submit("two", picture("b", known=True), picture("a", known=True)))
    assert bench.only_end().encoded_pictures_s == ()
    assert bench.core.stats().cache_bytes == 20


def test_an_encoder_that_contradicts_the_plan_fails_its_request_alone():
    bench = Bench()
    bench.runner.num_features = 3
    bench.core.submit(submit("one", picture("a")))
    assert bench.only_failure().error.code is Code.ENGINE_INTERNAL_ERROR
    assert bench.cache.reserve("two", ("a",)) == set()


def test_one_picture_per_step_so_that_a_cancellation_is_seen():
    bench = Bench()
    bench.core.submit(submit("r", picture("a"), picture("b")))
    bench.core.step()
    assert bench.runner.encoded == ["a"]
    bench.core.cancel("r")
    (ended,) = bench.core.step().ended
    assert (ended.reason, ended.completion_tokens) == ("cancelled", 0)
    assert not bench.core.has_work
    assert bench.runner.encoded == ["a"]


def test_cancel_of_an_unknown_id_says_nothing():
    bench = Bench()
    bench.core.cancel("nobody")
    assert not bench.core.has_work


def test_leased_features_that_are_gone():
    bench = Bench()
    bench.core.submit(submit("r", picture("a", known=True)))
    assert bench.only_failure().error.code == "engine_features_lost"


def test_a_prompt_that_does_not_match_its_pictures():
    bench = Bench()
    good = submit("r", picture("a"))
    bench.core.submit(Submit("r", "scope", good.prompt_ids[:-1], good.pictures, good.sampling, 0.0))
    assert bench.only_failure().error.code == "engine_internal_error"


@pytest.mark.parametrize("stage", [Stage.VISION_ENCODE, Stage.PREFILL, Stage.DECODE])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OutOfMemory(), "engine_out_of_memory"),
        (MemoryError(), "engine_out_of_memory"),
        (KeyError("bug"), "engine_internal_error"),
    ],
)
def test_an_error_costs_its_request_and_nobody_else(stage: Stage, error: Exception, code: str):
    bench = Bench()
    bench.runner.error, bench.runner.fails_in = error, stage
    bench.core.submit(submit("one", picture("a")))
    bench.core.submit(submit("two"))
    while not (output := bench.core.step()).failed:
        pass
    (failed,) = output.failed
    assert (failed.request_id, failed.error.code) == ("one", code)
    bench.runner.error = None
    assert bench.only_end().request_id == "two"
    assert bench.runner.released == ["one", "two"]
    assert bench.core.stats().kv_tokens == 0


def test_no_memory_for_one_of_several_pictures_costs_that_request_alone():
    bench = Bench(max_num_seqs=2)
    bench.runner.error, bench.runner.fails_in, bench.runner.fails_for = OutOfMemory(), Stage.VISION_ENCODE, "b"
    bench.core.submit(submit("one", picture("a"), picture("b"), picture("c")))
    bench.core.submit(submit("two", picture("c"), picture("a")))
    output = bench.run()
    assert [failed.request_id for failed in output.failed] == ["one"]
    assert [ended.request_id for ended in output.ended] == ["two"]
    assert sorted(bench.runner.released) == ["one", "two"]
    assert bench.core.stats().kv_tokens == 0


def test_no_memory_for_a_preempted_prompt_costs_that_request_alone():
    bench = Bench(max_num_seqs=2)
    bench.core.submit(submit("one"))
    bench.core.submit(submit("two", picture("a")))
    while len(bench.core.step().tokens) < 2:
        pass
    bench.runner.error, bench.runner.fails_in = OutOfMemory(), Stage.DECODE
    bench.core.step()
    assert bench.runner.preempted == ["two"]
    bench.runner.fails_in, bench.runner.fails_for = Stage.PREFILL, "two"
    output = bench.run()
    assert [(failed.request_id, failed.error.code) for failed in output.failed] == [("two", "engine_out_of_memory")]
    assert [(ended.request_id, ended.completion_tokens) for ended in output.ended] == [("one", 4)]


def test_the_peak_is_told_of_a_request_that_was_alone():
    bench = Bench(max_num_seqs=2)
    bench.core.submit(submit("one", picture("a"), picture("b")))
    assert bench.only_end().peak_memory_bytes == 200
    bench.core.submit(submit("two", picture("c")))
    assert bench.only_end().peak_memory_bytes == 100
    bench.core.submit(submit("three", picture("d")))
    bench.core.step()
    bench.core.submit(submit("four"))
    assert [ended.peak_memory_bytes for ended in bench.run().ended] == [None, None]


def test_the_second_request_queues():
    bench = Bench()
    bench.core.submit(submit("one"))
    bench.core.submit(submit("two"))
    first, second = bench.run().ended
    assert second.stages_s[Stage.QUEUE] >= first.stages_s[Stage.QUEUE] + first.stages_s[Stage.DECODE]


def test_kv_gauges_follow_the_running_sequence():
    bench = Bench()
    bench.core.submit(submit("r", picture("a")))
    assert bench.core.step().stats.kv_tokens == 0
    stats = bench.core.step().stats
    assert (stats.kv_tokens, stats.kv_image_tokens) == (5, 2)
    assert bench.core.step().stats.kv_tokens == 6


def test_purge_reaches_features_that_are_not_computed_yet():
    bench = Bench()
    bench.core.submit(submit("r", picture("a"), picture("b")))
    bench.core.step()
    assert bench.core.purge("scope", None) == 1
    bench.only_end()
    assert bench.cache.reserve("later", ("a", "b")) == frozenset()
    assert bench.core.purge("scope", None) == 0
    assert bench.core.stats().cache_bytes == 0


def test_what_was_purged_before_it_came_is_used_and_not_kept():
    """Its request began before the deletion, and was rendered meanwhile."""
    bench = Bench(prefix_bytes=100, max_model_len=100)
    late, other = msgspec.structs.replace(picture("a"), keep=False), picture("b")
    bench.core.submit(submit("r", late, other))
    bench.only_end()
    assert bench.cache.reserve("later", ("a", "b")) == {"b"}
    assert bench.core.stats().prefix_cache_bytes == 0


def test_purge_of_another_scope_leaves_a_request_alone():
    bench = Bench()
    bench.core.submit(submit("r", picture("a")))
    bench.core.purge("other", None)
    bench.only_end()
    assert bench.cache.reserve("later", ("a",)) == {"a"}


def test_sequences_of_different_length_share_a_decode_step():
    bench = Bench(max_num_seqs=3)
    for name, text in (("one", 3), ("two", 7), ("three", 5)):
        bench.core.submit(submit(name, text=text))
    assert len(bench.run().ended) == 3
    assert bench.runner.decoded[0] == ["one", "two", "three"]
    assert len(bench.runner.decoded) == 3


def test_prompts_and_streams_are_one_forward_where_the_runner_packs():
    bench = Bench(max_num_seqs=3)
    bench.runner.packs = True
    bench.core.submit(submit("stream"))
    bench.core.step()
    for name in ("one", "two"):
        bench.core.submit(submit(name))
    tokens = [(token.request_id, token.token_id) for token in bench.core.step().tokens]
    assert bench.runner.forwards == [(1, 0), (2, 1)]
    assert sorted(tokens) == [("one", 10), ("stream", 11), ("two", 10)]


def test_no_memory_for_all_at_once_costs_nobody_anything():
    bench = Bench(max_num_seqs=3)
    bench.runner.packs = True
    bench.core.submit(submit("stream"))
    bench.core.step()
    bench.core.submit(submit("one"))
    forward = bench.runner.forward

    def only_one(chunks: Seq[PrefillChunk], sequences: Seq[Sequence]) -> dict[str, int]:
        if chunks and sequences:
            raise OutOfMemory
        return forward(chunks, sequences)

    bench.runner.forward = only_one
    output = bench.run()
    assert {ended.request_id: ended.completion_tokens for ended in output.ended} == {"stream": 4, "one": 4}
    assert bench.runner.preempted == []


def test_a_request_joins_while_another_decodes():
    bench = Bench(num_tokens=10, max_num_seqs=2)
    bench.core.submit(submit("one"))
    bench.core.step()
    bench.core.submit(submit("two", max_tokens=2))
    bench.run()
    assert ["one", "two"] in bench.runner.decoded
    assert bench.runner.decoded[-1] == ["one"]


def beside_a_stream(num_breaks: int, **limits: int) -> Bench:
    """One decodes, and the next step encodes a tile of another one."""
    bench = Bench(num_tokens=100, max_num_seqs=2, max_model_len=200, **limits)
    bench.core.submit(submit("stream", max_tokens=50))
    for _ in range(3):
        bench.core.step()
    bench.runner.num_breaks = num_breaks
    bench.core.submit(submit("picture", picture("a", tiles="xy"), max_tokens=1))
    return bench


def test_a_stream_goes_on_while_a_tile_is_encoded():
    bench = beside_a_stream(num_breaks=3)
    early: list[StepOutput] = []
    last = bench.core.step(early.append)
    told = [token for output in (*early, last) for token in output.tokens]
    assert [token.request_id for token in told] == ["stream"] * 4
    assert [token.token_id for token in told] == [13, 14, 15, 16]
    assert len(early) == 3
    assert bench.runner.encoded == ["x"]


def test_nobody_decodes_meanwhile_where_nobody_is_told():
    bench = beside_a_stream(num_breaks=3)
    assert [token.token_id for token in bench.core.step().tokens] == [13]


def test_a_break_that_comes_too_early_is_not_taken():
    bench = beside_a_stream(num_breaks=9)
    bench.runner.break_every_s = 0.15  # a decode step takes 0.1 s, and four of them make a turn
    early: list[StepOutput] = []
    bench.core.step(early.append)
    assert len(early) == 3


def test_a_stream_that_ends_while_a_tile_is_encoded_is_told_at_once():
    bench = beside_a_stream(num_breaks=60)
    early: list[StepOutput] = []
    last = bench.core.step(early.append)
    assert [ended.request_id for ended in early[-1].ended] == ["stream"]
    assert early[-1].ended[0].completion_tokens == 50
    assert (last.tokens, last.ended) == ((), ())
    assert bench.run().ended[0].request_id == "picture"


def test_a_stream_that_fails_while_a_tile_is_encoded_costs_nobody_else():
    bench = beside_a_stream(num_breaks=3)
    bench.runner.error, bench.runner.fails_in = KeyError("bug"), Stage.DECODE
    early: list[StepOutput] = []
    last = bench.core.step(early.append)
    assert [failed.request_id for output in (*early, last) for failed in output.failed] == ["stream"]
    bench.runner.error = None
    (ended,) = bench.run().ended
    assert (ended.request_id, ended.encoded_tiles) == ("picture", 2)


def test_nobody_decodes_meanwhile_beyond_the_kv_cache():
    bench = Bench(num_tokens=100, max_num_seqs=3, max_model_len=200, kv_capacity_tokens=2 * BLOCK_TOKENS)
    for name in ("one", "two"):
        bench.core.submit(submit(name, max_tokens=50))
        bench.core.step()
    bench.runner.num_breaks = 60
    bench.core.submit(submit("picture", picture("a"), max_tokens=1))
    early: list[StepOutput] = []
    bench.core.step(early.append)
    assert early
    assert [sequence.num_computed for sequence in bench.scheduler] == [BLOCK_TOKENS, BLOCK_TOKENS - 1, 0]
    bench.core.step(early.append)
    assert bench.runner.preempted == ["two"]


def test_the_time_of_those_who_decode_meanwhile_is_none_of_the_encoder():
    bench = beside_a_stream(num_breaks=3)
    forward = bench.runner.forward

    def slow(chunks: Seq[PrefillChunk], sequences: Seq[Sequence]) -> dict[str, int]:
        time.sleep(0.1 if sequences else 0)
        return forward(chunks, sequences)

    bench.runner.forward = slow
    while not (ended := [one for one in bench.core.step(lambda early: None).ended if one.request_id == "picture"]):
        pass
    assert ended[0].stages_s[Stage.VISION_ENCODE] < 0.3  # with their time 0.6 at least; a busy machine takes some
    assert ended[0].stages_s[Stage.QUEUE] > 0.6


def test_a_picture_that_many_want_is_encoded_once():
    bench = Bench(max_num_seqs=8)
    for index in range(8):
        bench.core.submit(submit(f"r{index}", picture("a", tiles="xyz")))
    ended = bench.run().ended
    assert bench.runner.encoded == ["x", "y", "z"]
    assert len(ended) == 8
    assert sorted(len(one.encoded_pictures_s) for one in ended) == [0] * 7 + [1]


def test_the_encoder_time_of_a_picture_is_that_of_its_tiles():
    bench = Bench()
    bench.core.submit(submit("r", picture("a", tiles="xyz"), picture("b", tiles="zw")))
    assert bench.only_end().encoded_pictures_s == (0.75, 0.25)


def test_only_the_tiles_that_changed_are_encoded():
    bench = Bench()
    bench.core.submit(submit("one", picture("a", tiles="wxyz")))
    bench.run()
    bench.core.submit(submit("two", picture("b", tiles="wxqz")))
    bench.run()
    assert bench.runner.encoded == ["w", "x", "y", "z", "q"]
    assert bench.cache.reserve("probe", ("a", "b")) == {"a", "b"}


def test_tiles_of_another_scope_are_not_found():
    bench = Bench()
    first = submit("one", picture("a", tiles="x"))
    bench.core.submit(first)
    bench.run()
    bench.core.submit(Submit("two", "other", first.prompt_ids, first.pictures, first.sampling, 0.0))
    bench.run()
    assert bench.runner.encoded == ["x", "x"]


def test_a_micro_batch_takes_tiles_of_several_requests():
    bench = Bench(max_num_seqs=2, max_num_encoder_tokens=6)
    bench.core.submit(submit("one", picture("a", tiles="wx")))
    bench.core.submit(submit("two", picture("b", tiles="yz")))
    bench.core.step()
    assert bench.runner.encoded == ["w", "x", "y"]
    assert len(bench.run().ended) == 2


def test_while_somebody_decodes_a_step_has_one_unit_or_one_prompt():
    bench = Bench(num_tokens=50, max_num_seqs=3, max_model_len=100)
    bench.core.submit(submit("stream"))
    bench.core.step()
    bench.core.submit(submit("picture", picture("a", tiles="xyz")))
    bench.core.submit(submit("text"))
    for _ in range(4):
        before = len(bench.runner.encoded) + len(bench.runner.prefilled)
        assert [token.request_id for token in bench.core.step().tokens].count("stream") == 1
        assert len(bench.runner.encoded) + len(bench.runner.prefilled) == before + 1
    assert bench.runner.encoded == ["x", "y", "z"]


def test_a_long_prompt_is_cut_at_the_budget():
    bench = Bench(max_num_batched_tokens=4)
    bench.core.submit(submit("r", picture("a", tiles="xy"), text=7))
    assert bench.only_end().completion_tokens == 4
    assert bench.runner.prefilled == [("r", 0, 4), ("r", 4, 8), ("r", 8, 11)]


def test_the_youngest_gives_way_when_the_kv_cache_is_full():
    bench = Bench(num_tokens=30, max_num_seqs=3, kv_capacity_tokens=48, max_model_len=48)
    for name in ("one", "two", "three"):
        bench.core.submit(submit(name, text=12))
    output = bench.run()
    assert [one.completion_tokens for one in output.ended] == [31, 31, 31]
    assert {ended.request_id for ended in output.ended} == {"one", "two", "three"}
    assert bench.runner.preempted[0] == "three"
    for name in ("one", "two", "three"):
        tokens = [token.token_id for token in output.tokens if token.request_id == name]
        assert tokens == list(range(10, 40))
    assert bench.runner.prefilled.count(("three", 0, 12)) == 1


def test_what_was_generated_is_not_run_again_with_the_pictures():
    """The model may have chosen the image token, for which there are no features."""
    bench = Bench(num_tokens=5, max_num_seqs=2, max_num_encoder_tokens=10)
    for name in ("one", "two"):
        bench.core.submit(submit(name, picture(name)))
    while len(bench.runner.decoded) < 2:
        bench.core.step()
    bench.runner.error, bench.runner.fails_in = OutOfMemory(), Stage.DECODE
    bench.core.step()
    bench.runner.error = None
    bench.run()
    assert bench.runner.preempted == ["two"]
    first, again, generated = [chunk for chunk in bench.runner.prefilled if chunk[0] == "two"]
    assert first == again
    assert generated[1] == again[2] < generated[2]


def test_a_waiting_prompt_does_not_start_when_it_does_not_fit():
    bench = Bench(num_tokens=2, max_num_seqs=2, kv_capacity_tokens=32, max_model_len=32)
    bench.core.submit(submit("one", text=20))
    bench.core.submit(submit("two", text=3))
    bench.run()
    assert all(len(names) == 1 for names in bench.runner.decoded)


def test_no_memory_to_decode_costs_nobody_anything_but_time():
    bench = Bench(max_num_seqs=2)
    bench.core.submit(submit("one"))
    bench.core.submit(submit("two"))
    bench.core.step()
    bench.runner.error, bench.runner.fails_in = OutOfMemory(), Stage.DECODE
    assert bench.core.step().failed == ()
    bench.runner.error = None
    assert bench.runner.preempted == ["two"]
    assert [ended.completion_tokens for ended in bench.run().ended] == [4, 4]


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("stage", [Stage.VISION_ENCODE, Stage.PREFILL, Stage.DECODE])
def test_a_bug_in_a_batch_costs_only_its_cause(stage: Stage, packs: bool):
    bench = Bench(max_num_seqs=3, max_num_encoder_tokens=10)
    bench.runner.packs = packs
    bench.runner.error, bench.runner.fails_in = KeyError("bug"), stage
    bench.runner.fails_for = "y" if stage is Stage.VISION_ENCODE else "two"
    for name, tile in (("one", "x"), ("two", "y"), ("three", "z")):
        bench.core.submit(submit(name, picture(name, tiles=tile)))
    output = bench.run()
    assert [failed.request_id for failed in output.failed] == ["two"]
    assert {ended.request_id for ended in output.ended} == {"one", "three"}


def conversation(name: str, *more: int) -> Submit:
    """A picture first, then text; ``more`` is what the next turn adds."""
    prompt = (1, IMAGE, IMAGE, *range(20, 36), *more)
    return Submit(name, "scope", prompt, (picture("a"),), SamplingParams(), 0.0)


def test_the_next_turn_computes_only_what_is_new():
    bench = Bench(prefix_bytes=100, max_model_len=100)
    bench.core.submit(conversation("one"))
    assert bench.only_end().cached_tokens == 0
    bench.core.submit(conversation("two", 10, 11, 12, 50))
    # The first turn's prompt of 19 and its answer; its last token, EOS, was never run.
    assert bench.only_end().cached_tokens == 22
    assert bench.runner.prefilled == [("one", 0, 19), ("two", 22, 23)]


def test_the_same_prompt_again_computes_its_last_position():
    bench = Bench(prefix_bytes=100, max_model_len=100)
    for name in ("one", "two"):
        bench.core.submit(conversation(name))
    assert [ended.cached_tokens for ended in bench.run().ended] == [0, 0]
    bench.core.submit(conversation("three"))
    assert bench.only_end().cached_tokens == 18
    assert bench.runner.encoded == ["a"]


def test_a_prefix_makes_pictures_needless():
    bench = Bench(prefix_bytes=100, max_model_len=100)
    bench.core.submit(conversation("one"))
    bench.run()
    bench.cache.purge("scope", "a")
    bench.core.submit(conversation("two", 10, 11, 12, 50))
    assert bench.only_end().cached_tokens == 22
    assert bench.runner.encoded == ["a"]


def test_a_prefix_that_cannot_be_kept_costs_no_answer():
    bench = Bench(prefix_bytes=100, max_num_seqs=2, max_model_len=100)
    bench.runner.fails_to_save = True
    for name in ("one", "two"):
        bench.core.submit(conversation(name))
    assert [ended.completion_tokens for ended in bench.run().ended] == [4, 4]
    assert bench.core.stats().prefix_cache_bytes == 0


def test_in_a_micro_batch_only_whom_the_encoder_contradicts_fails():
    bench = Bench(max_num_seqs=2, max_num_encoder_tokens=10)
    bench.core.submit(submit("one", picture("x")))
    wrong = PictureData("y", 3, Tiles(b"yyy", 1, 1, 1))
    bench.core.submit(submit("two", wrong))
    output = bench.run()
    assert [failed.request_id for failed in output.failed] == ["two"]
    assert [(ended.request_id, ended.encoded_tiles) for ended in output.ended] == [("one", 1)]
    assert bench.runner.encoded == ["x", "y"]


@pytest.mark.parametrize("key", ["a", None])
def test_purge_erases_prefixes_that_saw_the_picture(key: str | None):
    bench = Bench(prefix_bytes=100, max_model_len=100)
    bench.core.submit(conversation("one"))
    bench.run()
    assert bench.core.stats().prefix_cache_bytes == 22
    assert bench.core.purge("scope", key) == 2
    stats = bench.core.stats()
    assert (stats.cache_bytes, stats.prefix_cache_bytes) == (0, 0)
    bench.core.submit(conversation("two"))
    assert bench.only_end().cached_tokens == 0


def test_purge_while_a_request_runs_keeps_its_prefix_away():
    bench = Bench(prefix_bytes=100, max_model_len=100)
    bench.core.submit(conversation("one"))
    bench.core.step()
    bench.core.purge("scope", None)
    bench.run()
    assert bench.core.stats().prefix_cache_bytes == 0
