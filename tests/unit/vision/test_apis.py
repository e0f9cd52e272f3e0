"""Estimates for APIs lie near what was measured at them."""

from __future__ import annotations

import pytest

from opsin.vision.apis import api_family
from opsin.vision.size import Size


@pytest.mark.parametrize(
    ("model", "size", "measured"),
    [
        ("openai/gpt-6", Size(1024, 1024), 1229),
        ("openai/gpt-6", Size(4032, 3024), 2942),
        ("anthropic/claude-opus-4-7", Size(1024, 1024), 1434),
        ("gemini/gemini-3-pro", Size(4032, 3024), 1083),
    ],
)
def test_an_estimate_is_within_a_tenth_of_what_was_measured(model: str, size: Size, measured: int) -> None:
    count = api_family(model).count(size)
    assert not count.exact
    assert abs(count.image_tokens - measured) < measured / 10
