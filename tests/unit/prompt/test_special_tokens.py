from __future__ import annotations

import time
import tomllib
from importlib.resources import files
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsin.models.files import AddedToken
from opsin.prompt.special_tokens import SpecialTokens, known_special_tokens, special_tokens_of
from tests.tokenizers import KINDS, TokenizerKind

TABLE: dict[str, Any] = tomllib.loads(files("opsin.prompt").joinpath("special_tokens.toml").read_text("utf-8"))
LISTED = [token for family in TABLE["family"] for token in family["tokens"]]
KNOWN = known_special_tokens()


def found(tokens: SpecialTokens, text: str) -> list[int]:
    return list(tokens.starts(text))


def test_every_family_is_listed_with_its_source() -> None:
    names = " ".join(family["name"] for family in TABLE["family"])
    for family in ("Qwen3-VL", "InternVL", "LLaVA", "Llama 3.2", "Llama 4", "Pixtral", "Mistral", "Gemma 3", "GLM-4V"):
        assert family in names
    for family in ("SmolVLM", "Idefics3", "DeepSeek-VL2", "MiniCPM-V", "Molmo", "Kimi-VL", "Phi"):
        assert family in names
    assert all("/" in family["source"] for family in TABLE["family"])


@pytest.mark.parametrize("token", [*dict.fromkeys(LISTED), *TABLE["engines"]])
def test_every_listed_token_is_found(token: str) -> None:
    assert 2 <= len(token) <= 80
    assert found(KNOWN, f"a {token} b") == [2]


@pytest.mark.parametrize(
    "token",
    [
        *(
            "<|never_seen|>",
            "<|image_17|>",
            "<|reserved_special_token_250|>",
            "<｜hy_Assistant｜>",
            "<|turn>",
            "<turn|>",
        ),
        *("<row_3_col_4>", "<unused99>", "<SPECIAL_12>", "<extra_id_7>"),
    ],
)
def test_what_looks_like_a_token_is_found(token: str) -> None:
    assert found(KNOWN, f"a {token} b") == [2]


@pytest.mark.parametrize(
    "text",
    [
        "a < b | c > d <| e", "if (x <y && z> 1) [i] = m[0]; // [x] <- y", "<p>Some <b>HTML</b></p> <img src='x'>",
        "List<String|null>", "<think>hm</think> <tool_call>", "[link](url) [TODO]", "x<|y", "1<<2>>3", "<|a b|>",
    ],
)  # fmt: skip
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert found(KNOWN, text) == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_table_has_what_the_families_have(kind: TokenizerKind) -> None:
    assert [token for token in kind.special if found(KNOWN, token) != [0]] == []


@pytest.mark.parametrize("write", ["<|{}|>", "<｜{}｜>", "<|{}>", "<{}|>"])
def test_patterns_are_bounded(write: str) -> None:
    """By less than what a window of the search is lengthened by."""
    assert found(KNOWN, write.format("a" * 64)) == [0]
    assert found(KNOWN, write.format("a" * 65)) == []


def test_a_token_within_another_is_found_too() -> None:
    tokens = SpecialTokens(["ab<", "<image>"])
    assert found(tokens, "ab<image>") == [0, 2]
    assert found(KNOWN, "<im<image>age>") == [3]
    assert found(KNOWN, "<|a<|im_end|>|>") == [3]


TOKENS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=5)


@settings(deadline=None)
@given(TOKENS, st.text("ab", max_size=30))
def test_every_place_of_every_token(tokens: list[str], text: str) -> None:
    long = [token for token in tokens if len(token) > 1]
    expected = [place for place in range(len(text)) if any(text.startswith(token, place) for token in long)]
    assert (found(SpecialTokens(tokens), text) if long else []) == expected


@pytest.mark.parametrize("shift", range(-9, 2))
def test_tokens_over_the_border_of_two_windows(shift: int) -> None:
    begin = 2**16 + shift
    assert found(KNOWN, f"{'x' * begin}<image></s>{'x' * 2**16}") == [begin, begin + 7]


def test_allowed_tokens_pass() -> None:
    tokens = known_special_tokens(allowed=("<|grounding|>", "<image>"))
    assert found(tokens, "<|grounding|> <image> <|ref|>") == [22]


def test_a_model_has_its_own() -> None:
    added = [
        AddedToken("<|im_end|>", 1, special=True),
        AddedToken("<seg>", 2, special=True),
        AddedToken("<image>", 3),
        AddedToken("<think>", 4),
        AddedToken("\n\n", 5),
        AddedToken("<|fim_prefix|>", 6),
    ]
    tokens = special_tokens_of(added, allowed=("<seg>",))
    for token in ("<|im_end|>", "<image>", "<|fim_prefix|>", "<__media__>"):
        assert found(tokens, token) == [0]
    for text in ("<think>", "\n\n", "<|eot_id|>", "[INST]", "<seg>"):
        assert found(tokens, text) == []


@pytest.mark.parametrize("text", ["<", "<|", "<|a", "[", "<image", "<s>", "<|im_end|>", "<row_1_col_", "<｜a"])
def test_the_search_is_linear(text: str) -> None:
    """A second would be far beyond; the 4 MiB that a request may have take ten times this."""
    text = text * (400_000 // len(text))
    start = time.process_time()
    places = found(KNOWN, text)
    assert time.process_time() - start < 1.0
    assert all(first < second for first, second in pairwise(places))
