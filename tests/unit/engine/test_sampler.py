"""Against distributions worked out by hand."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from opsin.engine.api import SamplingParams
from opsin.engine.local.sampler import Sampler

CPU = torch.device("cpu")


def sampler(prompt_ids: tuple[int, ...] = (), **sampling: object) -> Sampler:
    return Sampler(SamplingParams(**sampling), prompt_ids, (3,), CPU)  # pyright: ignore[reportArgumentType] # keyword overrides of a factory


def logs(*probabilities: float) -> torch.Tensor:
    """Logits whose softmax is ``probabilities``."""
    return torch.tensor([math.log(probability) for probability in probabilities])


def distribution(probabilities: tuple[float, ...], **sampling: object) -> list[float]:
    return sampler(**sampling).distribution(logs(*probabilities)).tolist()  # pyright: ignore[reportUnknownVariableType, reportArgumentType] # keyword overrides of a factory; torch types tolist as unknown


BASE = (0.5, 0.3, 0.15, 0.05)


def test_plain_sampling_is_the_softmax():
    assert distribution(BASE) == pytest.approx(BASE)


def test_temperature_half_squares_the_probabilities():
    squares = [probability**2 for probability in BASE]
    assert distribution(BASE, temperature=0.5) == pytest.approx([square / sum(squares) for square in squares])


def test_top_k():
    assert distribution(BASE, top_k=2) == pytest.approx([0.625, 0.375, 0, 0])
    assert distribution(BASE, top_k=99) == pytest.approx(BASE)
    assert distribution((0.4, 0.2, 0.2, 0.2), top_k=2) == pytest.approx([0.4, 0.2, 0.2, 0.2])


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (0.01, [1, 0, 0, 0]),
        (0.4, [1, 0, 0, 0]),
        (0.6, [0.625, 0.375, 0, 0]),
        (0.9, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (1.0, list(BASE)),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, expected: list[float]):
    assert distribution(BASE, top_p=top_p) == pytest.approx(expected)


def test_top_p_does_not_depend_on_the_order_of_the_vocabulary():
    assert distribution((0.05, 0.5, 0.15, 0.3), top_p=0.6) == pytest.approx([0, 0.625, 0, 0.375])


def test_min_p_is_relative_to_the_likeliest():
    assert distribution(BASE, min_p=0.5) == pytest.approx([0.625, 0.375, 0, 0])
    assert distribution(BASE, min_p=1.0) == pytest.approx([1, 0, 0, 0])


def test_temperature_comes_before_min_p():
    # Squared: 0.3 / 0.5 becomes 0.36, below 0.5.
    assert distribution(BASE, min_p=0.5, temperature=0.5) == pytest.approx([1, 0, 0, 0])


def test_top_k_comes_before_top_p():
    # Alone top_p 0.7 keeps two; of the top_k set (0.625, 0.375) it needs both; top_k 1 leaves one.
    assert distribution(BASE, top_k=2, top_p=0.7) == pytest.approx([0.625, 0.375, 0, 0])
    assert distribution(BASE, top_k=1, top_p=0.7) == pytest.approx([1, 0, 0, 0])


def test_temperature_zero_is_argmax_and_needs_no_chance():
    greedy = sampler(temperature=0.0, top_p=0.1, min_p=0.9)
    assert {greedy.sample(torch.tensor([1.0, 3.0, 2.0, 0.0]), []) for _ in range(5)} == {1}


def test_the_logits_are_left_alone():
    logits = torch.tensor([1.0, 3.0, 2.0, 4.0])
    sampler(temperature=0.0, min_tokens=1, repetition_penalty=2.0, prompt_ids=(1,)).sample(logits, [])
    assert logits.tolist() == [1.0, 3.0, 2.0, 4.0]


def test_min_tokens_bans_eos_until_they_are_there():
    greedy = sampler(temperature=0.0, min_tokens=2)
    logits = torch.tensor([0.0, 1.0, 2.0, 9.0])
    assert [greedy.sample(logits, [1] * done) for done in range(4)] == [2, 2, 3, 3]


@pytest.mark.parametrize(
    ("logits", "expected"),
    [([2.0, 1.5, 0.0], 1), ([-1.0, -1.5, -3.0], 1), ([4.0, 1.5, 0.0], 0)],
)
def test_repetition_penalty_divides_positive_and_multiplies_negative_scores(logits: list[float], expected: int):
    greedy = sampler(prompt_ids=(0, 0), temperature=0.0, repetition_penalty=2.0)
    assert greedy.sample(torch.tensor(logits), []) == expected


def test_repetition_penalty_also_sees_the_output():
    greedy = sampler(temperature=0.0, repetition_penalty=2.0)
    assert greedy.sample(torch.tensor([2.0, 1.5, 0.0]), [0]) == 1


@pytest.mark.parametrize(
    ("output_ids", "sampling", "expected"),
    [
        ([], {"frequency_penalty": 1.0}, 0),
        ([0], {"frequency_penalty": 1.0}, 0),
        ([0, 0], {"frequency_penalty": 1.0}, 1),
        ([0, 0, 1, 1], {"frequency_penalty": 1.0}, 0),
        ([0], {"presence_penalty": 1.6}, 1),
        ([0, 0, 1], {"presence_penalty": 1.6}, 0),
        ([0, 0], {"presence_penalty": -1.0}, 0),
    ],
)
def test_frequency_counts_and_presence_does_not(output_ids: list[int], sampling: dict[str, object], expected: int):
    greedy = sampler(prompt_ids=(0, 0, 0), temperature=0.0, **sampling)
    assert greedy.sample(torch.tensor([3.0, 1.5, 0.0]), output_ids) == expected


def test_a_seed_repeats_itself_and_two_seeds_differ():
    def draws(seed: int) -> list[int]:
        one = sampler(seed=seed)
        return [one.sample(logs(0.25, 0.25, 0.25, 0.25), [0] * done) for done in range(40)]

    assert draws(7) == draws(7)
    assert draws(7) != draws(8)


def test_a_forward_that_is_repeated_draws_the_same_again():
    even = logs(0.25, 0.25, 0.25, 0.25)
    once, again = sampler(seed=7), sampler(seed=7)
    expected = [once.sample(even, [0] * done) for done in range(20)]
    assert [[again.sample(even, [0] * done) for _ in range(3)] for done in range(20)] == [[one] * 3 for one in expected]


def test_draws_follow_the_distribution():
    one = sampler(seed=1, top_k=2)
    counts = Counter(one.sample(logs(*BASE), [0] * done) for done in range(4000))
    assert set(counts) == {0, 1}
    # Three standard deviations of a binomial with p 0.625 are 92.
    assert abs(counts[0] - 2500) < 92


@pytest.mark.parametrize(
    ("expected", "sampling"),
    [
        (True, {"temperature": 0.0}),
        (True, {"temperature": 0.0, "min_tokens": 1}),
        (False, {"temperature": 0.0, "min_tokens": 2}),
        (False, {"temperature": 0.0, "repetition_penalty": 1.1}),
        (False, {"temperature": 0.0, "presence_penalty": 0.1}),
        (False, {"temperature": 0.0, "frequency_penalty": 0.1}),
        (False, {"temperature": 0.5}),
    ],
)
def test_where_the_highest_logit_decides_alone(expected: bool, sampling: dict[str, object]):
    one = sampler((), **sampling)
    assert one.is_argmax([0]) is expected
    if expected:
        assert one.sample(torch.tensor([0.0, 3.0, 1.0, 2.0]), [0]) == 1
