"""Each batched family from a tiny config: ragged requests that share steps give the tokens of ``generate``."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForImageTextToText

from opsin.engine.api import SamplingParams
from opsin.engine.local.core import EngineCore, Tell
from opsin.engine.local.families import SEAMS
from opsin.engine.local.feature_cache import FeatureCache
from opsin.engine.local.messages import Ended, PictureData, StepOutput, Submit, Tiles
from opsin.engine.local.prefix_cache import PrefixCache
from opsin.engine.local.quantized_linear import can_quantize
from opsin.engine.local.runner import TransformersRunner
from opsin.engine.local.scheduler import ContinuousScheduler, Limits
from opsin.engine.local.traits import TRAITS
from opsin.engine.local.units import units_of
from tests.tiny import config_of, generated
from tests.tiny_families import EOS, FAMILIES, IMAGE, Family

MAX_TOKENS = 8


@dataclass(frozen=True)
class Tiny:
    """A family's model in this process and behind the engine."""

    family: Family
    model: Any
    runner: TransformersRunner
    model_type: str
    folder: Path

    def core(self, feature_bytes: int = 10**7) -> EngineCore:
        limits = Limits(
            max_num_seqs=4,
            max_num_batched_tokens=13,
            max_num_tokens_beside_decode=13,
            max_num_encoder_tokens=20,
            kv_capacity_tokens=4 * 160,
        )
        self.runner.set_kv_capacity(limits.kv_capacity_tokens)
        config = config_of(Path(), model_type=self.model_type)
        prefixes = PrefixCache(10**7, 1)
        # A clock that stands still: a decode step takes no time, and the next one is always due.
        return EngineCore(
            config, self.runner, ContinuousScheduler(limits), FeatureCache(feature_bytes), prefixes, now=lambda: 0.0
        )

    def generate(self, submit: Submit) -> tuple[list[int], int]:
        """New tokens, and how many of them come before the first near tie."""
        ids = torch.tensor([submit.prompt_ids])
        inputs = self.family.inputs(ids, [_normalised(picture) for picture in submit.pictures])
        tokens, sure = generated(self.model, ids, MAX_TOKENS, inputs)
        return [token for token in tokens[:sure] if token != EOS], sure


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    family = FAMILIES[request.param]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = cast("Any", AutoModelForImageTextToText.from_config(family.config(), dtype=torch.float32)).eval()
    with torch.no_grad():
        parameters: list[torch.Tensor] = list(model.parameters())
        for parameter in parameters:
            if parameter.ndim >= 2:
                parameter.normal_(std=0.2)
    model.generation_config.eos_token_id = EOS
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    runner = TransformersRunner(config_of(folder, model_type=request.param))
    runner.load(lambda step: None)
    return Tiny(family, model, runner, request.param, folder)


def _normalised(picture: PictureData) -> torch.Tensor:
    tiles = picture.tiles
    assert tiles is not None
    pixels = torch.frombuffer(bytearray(tiles.pixels), dtype=torch.uint8)
    return (pixels.view(tiles.num_tiles, tiles.height, tiles.width, 3).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5


def _picture(family: Family, chance: random.Random) -> PictureData:
    seed, num_tiles = chance.randrange(5), chance.choice(family.tiles)
    width, height = chance.choice(family.sizes)
    pixels = random.Random(seed).randbytes(num_tiles * width * height * 3)
    key = f"{seed}-{num_tiles}-{width}-{height}"
    image_tokens = family.image_tokens or num_tiles * width * height // family.pixels_per_token
    return PictureData(key, image_tokens, Tiles(pixels, num_tiles, width, height, family.original))


def _submit(family: Family, name: str, chance: random.Random, num_pictures: int) -> Submit:
    ids = [2 + chance.randrange(40) for _ in range(chance.randint(2, 30))]
    pictures = [_picture(family, chance) for _ in range(num_pictures)]
    for picture in pictures:
        ids += [93, *[IMAGE] * picture.image_tokens, 94, chance.randrange(2, 40)]
    return _with_ids(name, tuple(ids), tuple(pictures))


def _with_ids(name: str, ids: tuple[int, ...], pictures: tuple[PictureData, ...]) -> Submit:
    return Submit(
        name, "scope", ids, pictures, SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS), time.monotonic()
    )


def _run(core: EngineCore, meanwhile: Tell | None = None) -> tuple[dict[str, list[int]], dict[str, Ended]]:
    """All steps; ``meanwhile`` gets what is decoded while the encoder runs, too."""
    outputs: list[StepOutput] = []

    def early(output: StepOutput) -> None:
        outputs.append(output)
        if meanwhile is not None:
            meanwhile(output)

    while core.has_work:
        last = core.step(early if meanwhile else None)
        outputs.append(last)
    tokens: dict[str, list[int]] = {}
    for output in outputs:
        assert not output.failed
        for token in output.tokens:
            tokens.setdefault(token.request_id, []).append(token.token_id)
    return tokens, {one.request_id: one for output in outputs for one in output.ended}


@pytest.mark.parametrize("decodes_meanwhile", [False, True])
def test_ragged_requests_give_the_tokens_of_generate(tiny: Tiny, decodes_meanwhile: bool):
    chance = random.Random(1)
    submits = [_submit(tiny.family, f"r{number}", chance, number % 4) for number in range(8)]
    core = tiny.core()
    for submit in submits:
        core.submit(submit)
    early: list[StepOutput] = []
    tokens, _ = _run(core, early.append if decodes_meanwhile else None)
    assert bool(early) is decodes_meanwhile
    num_sure = 0
    for submit in submits:
        expected, sure = tiny.generate(submit)
        assert tokens[submit.request_id][: len(expected)] == expected, submit.request_id
        num_sure += sure
    assert num_sure > 0.8 * len(submits) * MAX_TOKENS


def test_the_next_turn_and_known_pictures_give_the_tokens_of_generate(tiny: Tiny):
    core = tiny.core()
    first = _submit(tiny.family, "first", random.Random(2), 2)
    core.submit(first)
    answer, _ = _run(core)
    second = _with_ids("second", (*first.prompt_ids, *answer["first"], 5, 6), first.pictures)
    known = tuple(PictureData(one.key, one.image_tokens, None) for one in first.pictures)
    assert core._feature_cache.reserve("second", [one.key for one in known]) == {one.key for one in known}  # pyright: ignore[reportPrivateUsage] # the worker's reader does this
    core.submit(_with_ids("second", second.prompt_ids, known))
    tokens, ended = _run(core)
    expected, _ = tiny.generate(second)
    assert tokens["second"][: len(expected)] == expected
    assert ended["second"].cached_tokens >= len(first.prompt_ids)
    assert ended["second"].encoded_tiles == 0


def test_pictures_change_the_answer(tiny: Tiny):
    """Else the tests above would show nothing of features and positions."""
    chance = random.Random(3)
    submit = _submit(tiny.family, "one", chance, 1)
    (picture,) = submit.pictures
    assert picture.tiles is not None
    inverted = Tiles(bytes(255 - value for value in picture.tiles.pixels), picture.tiles.num_tiles,
                     picture.tiles.width, picture.tiles.height, picture.tiles.original)  # fmt: skip
    other = _with_ids("other", submit.prompt_ids, (PictureData("other", picture.image_tokens, inverted),))
    assert tiny.generate(submit)[0] != tiny.generate(other)[0]


@pytest.mark.parametrize("vision_dtype", ["float32", "int8"])
@torch.inference_mode()
def test_the_encoder_may_run_in_another_type_than_the_text_model(tiny: Tiny, vision_dtype: str):
    if vision_dtype == "int8" and not can_quantize():
        pytest.skip("this CPU has no fast int8")
    config = config_of(tiny.folder, model_type=tiny.model_type, dtype="bfloat16", vision_dtype=vision_dtype)
    runner = TransformersRunner(config)
    runner.load(lambda step: None)
    submit = _submit(tiny.family, "one", random.Random(4), 1)
    units = units_of("scope", submit.pictures[0], 0, TRAITS[tiny.model_type])
    for one, other in zip(runner.encode(units), tiny.runner.encode(units), strict=True):
        got, wanted = cast("torch.Tensor", one.features.value), cast("torch.Tensor", other.features.value)
        assert got.dtype is torch.bfloat16
        assert functional.cosine_similarity(got.float(), wanted, dim=-1).min() > 0.98
    core = replace(tiny, runner=runner).core()
    core.submit(submit)
    assert _run(core)[1].keys() == {"one"}


def test_every_family_has_traits_and_a_tiny_config():
    assert SEAMS.keys() == TRAITS.keys() == FAMILIES.keys() | {"smolvlm"}
