from __future__ import annotations

from typing import Any

import pytest

from opsin import SamplingParams
from opsin.core.errors import InvalidRequest, UnsupportedParameter
from opsin.protocol.request import SamplingFields


def test_what_is_left_out_is_left_to_the_model() -> None:
    assert SamplingParams().to_fields() == SamplingFields()


def test_every_field_arrives() -> None:
    fields = SamplingParams(
        temperature=0.7, top_p=0.9, top_k=-1, min_p=0.1, seed=-3, stop=["a", "b"], max_tokens=2048, min_tokens=2,
        ignore_eos=True, presence_penalty=1, frequency_penalty=-1.5, repetition_penalty=1.1,
    ).to_fields()  # fmt: skip
    assert fields.model_dump(exclude={"max_completion_tokens"}) == {
        "temperature": 0.7, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "seed": -3, "stop": ["a", "b"],
        "max_tokens": 2048, "min_tokens": 2, "ignore_eos": True, "presence_penalty": 1.0, "frequency_penalty": -1.5,
        "repetition_penalty": 1.1,
    }  # fmt: skip
    assert SamplingParams(stop="end").to_fields().stop_strings == ("end",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"temperature": 3.0}, "'temperature'.*got 3.0"),
        ({"temperature": float("nan")}, "'temperature'.*got nan"),
        ({"temperature": "hot"}, "'temperature'.*got 'hot'"),
        ({"top_p": 0}, "'top_p'.*got 0"),
        ({"top_k": -2}, "'top_k'.*got -2"),
        ({"max_tokens": 0}, "'max_tokens'.*got 0"),
        ({"max_tokens": True}, "'max_tokens'.*got True"),
        ({"stop": [""]}, "'stop' must not contain an empty string"),
        ({"min_tokens": 5, "max_tokens": 2}, r"'min_tokens' \(5\) is larger than 'max_tokens' \(2\)"),
    ],
)
def test_limits_are_those_of_a_request(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        SamplingParams(**given)
    assert caught.value.param in given


def test_one_answer_for_each_prompt() -> None:
    with pytest.raises(UnsupportedParameter, match=r"'n' must be 1.*got 2"):
        SamplingParams(n=2)
