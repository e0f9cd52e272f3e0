"""The step's bookkeeping against a scripted runner: no torch, no process."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path

import pytest

from opsin.core.errors import Code
from opsin.core.stages import Stage
from opsin.engine.api import SamplingParams
from opsin.engine.local.config import LocalEngineConfig
from opsin.engine.local.core import EngineCore
from opsin.engine.local.feature_cache import FeatureCache, Features
from opsin.engine.local.messages import Ended, Failed, PictureData, StepOutput, Submit, Tiles
from opsin.engine.local.runner_api import Encoded, LoadedModel, OutOfMemory
from opsin.engine.local.scheduler import SequentialScheduler
from opsin.engine.local.sequence import Sequence

IMAGE, EOS = 5, 9


class ScriptedRunner:
    """Answers 10, 11, 12 … and then EOS; raises what it is told to."""

    def __init__(self, num_tokens: int = 3) -> None:
        self.num_tokens = num_tokens
        self.encoded: list[str] = []
        self.released: list[str] = []
        self.error: BaseException | None = None
        self.fails_in: Stage | None = None
        self.num_features: int | None = None

    def load(self, progress: Callable[[str], None]) -> LoadedModel:
        return LoadedModel("cpu", "float32")

    def encode(self, pictures: Seq[PictureData]) -> list[Encoded]:
        self._maybe_fail(Stage.VISION_ENCODE)
        self.encoded += [picture.key for picture in pictures]
        return [
            Encoded(Features(picture.key, 10, self.num_features or picture.image_tokens), 1, 0.25)
            for picture in pictures
        ]

    def prefill(self, sequence: Sequence) -> int:
        self._maybe_fail(Stage.PREFILL)
        assert [features.value for features in sequence.features] == [picture.key for picture in sequence.pictures]
        return self._next(sequence)

    def decode(self, sequences: Seq[Sequence]) -> list[int]:
        self._maybe_fail(Stage.DECODE)
        return [self._next(sequence) for sequence in sequences]

    def release(self, sequence: Sequence) -> None:
        self.released.append(sequence.id)

    def memory_bytes(self) -> int | None:
        return None

    def _next(self, sequence: Sequence) -> int:
        done = len(sequence.output_ids)
        return 10 + done if done < self.num_tokens else EOS

    def _maybe_fail(self, stage: Stage) -> None:
        if self.error is not None and self.fails_in is stage:
            raise self.error


class Bench:
    """A core with its parts at hand."""

    def __init__(self, num_tokens: int = 3) -> None:
        self.runner = ScriptedRunner(num_tokens)
        self.cache = FeatureCache(1000)
        config = LocalEngineConfig(
            model_path=Path("model"),
            model_type="idefics3",
            image_token_id=IMAGE,
            eos_token_ids=(EOS,),
            image_mean=(0.5, 0.5, 0.5),
            image_std=(0.5, 0.5, 0.5),
            max_model_len=20,
        )
        self.core = EngineCore(config, self.runner, SequentialScheduler(), self.cache)

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


def picture(key: str, *, known: bool = False) -> PictureData:
    return PictureData(key, 2, None if known else Tiles(bytes(12), 1, 2, 2))


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


def test_purge_of_another_scope_leaves_a_request_alone():
    bench = Bench()
    bench.core.submit(submit("r", picture("a")))
    bench.core.purge("other", None)
    bench.only_end()
    assert bench.cache.reserve("later", ("a",)) == {"a"}
