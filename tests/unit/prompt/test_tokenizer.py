"""The tokenizer adapter and the detokenizer, against the library's own whole-text answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsin.core.errors import ConfigError, InvalidRequest
from opsin.prompt.tokenizer import Detokenizer, Tokenizer
from tests import checkpoints

FILE = json.loads(checkpoints.tokenizer().backend_tokenizer.to_str())
TOKENIZER = Tokenizer(json.dumps(FILE).encode())
ADDED = sorted(TOKENIZER.added_tokens)
VOCABULARY_SIZE = len(FILE["model"]["vocab"])
TEXTS = st.lists(st.one_of(st.text(), st.sampled_from([*ADDED, "😀", "中", "é", "<", "image>"]))).map("".join)


def changed(**fields: Any) -> Tokenizer:
    return Tokenizer(json.dumps(FILE | fields).encode())


def with_model(**fields: Any) -> Tokenizer:
    return changed(model=FILE["model"] | fields)


def test_added_tokens_are_recognised_and_nothing_is_added() -> None:
    image = TOKENIZER.token_id("<image>")
    assert image is not None
    assert TOKENIZER.encode("<image>") == [image]
    assert TOKENIZER.encode("") == []
    assert TOKENIZER.decode(TOKENIZER.encode("a<image>b"), skip_special_tokens=True) == "ab"


def test_what_the_file_puts_before_every_text() -> None:
    assert TOKENIZER.opening == ""
    token = next(iter(sorted(TOKENIZER.special_token_ids)))
    text = TOKENIZER.decode([token], skip_special_tokens=False)
    pieces = [{"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {text: {"id": text, "ids": [token], "tokens": [text]}}
    writes = {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": special}
    tokenizer = changed(post_processor=writes)
    assert tokenizer.opening == text
    assert tokenizer.encode("a") == TOKENIZER.encode("a")


def test_unknown_token_has_no_id() -> None:
    assert TOKENIZER.token_id("<no such token>") is None


@settings(deadline=None, max_examples=60)
@given(TEXTS)
def test_plain_text_never_becomes_an_added_token(text: str) -> None:
    ids = TOKENIZER.encode_plain(text)
    assert TOKENIZER.added_token_ids.isdisjoint(ids)
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("ignore_merges", [True, False])
@pytest.mark.parametrize("old_form", [True, False])
def test_merges_cannot_reach_an_added_token(ignore_merges: bool, old_form: bool) -> None:
    """``cat`` is an added token, an entry of the vocabulary and the result of a merge."""
    vocab = FILE["model"]["vocab"] | {"ca": VOCABULARY_SIZE, "cat": VOCABULARY_SIZE + 1, "cats": VOCABULARY_SIZE + 2}
    merges = [*FILE["model"]["merges"], ["c", "a"], ["ca", "t"], ["cat", "s"]]
    tokenizer = changed(
        added_tokens=[*FILE["added_tokens"], FILE["added_tokens"][0] | {"content": "cat", "id": VOCABULARY_SIZE + 1}],
        model=FILE["model"]
        | {
            "vocab": vocab,
            "merges": [" ".join(merge) for merge in merges] if old_form else merges,
            "ignore_merges": ignore_merges,
        },
    )
    assert tokenizer.encode("cat") == [VOCABULARY_SIZE + 1]
    assert VOCABULARY_SIZE + 1 not in tokenizer.encode_plain("cats cat")
    assert tokenizer.decode(tokenizer.encode_plain("cats cat"), skip_special_tokens=False) == "cats cat"


def test_unknown_token_that_is_an_added_token() -> None:
    tokenizer = with_model(unk_token="<|endoftext|>")
    assert TOKENIZER.encode_plain("word") == tokenizer.encode_plain("word")


def test_truncation_and_padding_of_the_file_are_ignored() -> None:
    tokenizer = changed(
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        padding={
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<|endoftext|>",
        },
    )
    assert tokenizer.encode("What is it?") == TOKENIZER.encode("What is it?")


@pytest.mark.parametrize("encode", [TOKENIZER.encode, TOKENIZER.encode_plain])
def test_lone_surrogate_is_the_requests_fault(encode: Any) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        encode("a\ud800b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not a tokenizer"),
        (b"{}", "not a tokenizer"),
        (json.dumps(FILE | {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0}}).encode(), "not BPE"),
    ],
)
def test_unusable_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"tokenizer\.json: .*{message}"):
        Tokenizer.from_file(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json: missing"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@settings(deadline=None)
@given(TEXTS)
def test_streamed_text_is_the_whole_text(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert "".join(streamed(TOKENIZER, ids)) == TOKENIZER.decode(ids, skip_special_tokens=True).rstrip("\ufffd")


@settings(deadline=None)
@given(st.lists(st.integers(0, VOCABULARY_SIZE - 1), max_size=40))
def test_any_ids_stream_like_the_whole_up_to_bytes_that_never_become_text(ids: list[int]) -> None:
    whole = TOKENIZER.decode(ids, skip_special_tokens=True)
    text = "".join(streamed(TOKENIZER, ids))
    # Only a run of garbage longer than any character may lose some of its replacement characters.
    assert text.replace("\ufffd", "") == whole.replace("\ufffd", "")
    if len(ids) < 16:
        assert text == whole.rstrip("\ufffd")


def test_no_half_character() -> None:
    """A flag is two characters of four bytes each; here every byte is a token."""
    ids = TOKENIZER.encode_plain("🇰🇷")
    assert len(ids) == 8
    assert streamed(TOKENIZER, ids) == ["", "", "", "🇰", "", "", "", "🇷", ""]
    assert streamed(TOKENIZER, ids[:6]) == ["", "", "", "🇰", "", "", ""]


def test_text_before_half_a_character_is_not_held() -> None:
    assert streamed(TOKENIZER, [*TOKENIZER.encode_plain("a"), *TOKENIZER.encode_plain("é")[:1]]) == ["a", "", ""]


def test_special_tokens_yield_nothing_even_inside_a_character() -> None:
    first, second = TOKENIZER.encode_plain("é")
    end = TOKENIZER.encode("<end_of_utterance>")[0]
    assert streamed(TOKENIZER, [first, end, second, end]) == ["", "", "é", "", ""]


def test_endless_garbage_is_bounded() -> None:
    """A continuation byte alone never becomes a character; what follows is read again."""
    garbage = TOKENIZER.encode_plain("é")[1]
    detokenizer = Detokenizer(TOKENIZER)
    for _ in range(2000):
        detokenizer.push(garbage)
    assert "".join(map(detokenizer.push, TOKENIZER.encode_plain("é!"))).endswith("é!")


def test_byte_fallback_decoder() -> None:
    """Llama 2's kind: a run of byte tokens is one character or all garbage; a text's first space is dropped."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["<unk>", "▁a", "▁b", *byte_tokens]
    tokenizer = Tokenizer(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "model": {
                    "type": "BPE",
                    "vocab": {word: index for index, word in enumerate(words)},
                    "merges": [],
                    "unk_token": "<unk>",
                    "byte_fallback": True,
                },
                "decoder": {
                    "type": "Sequence",
                    "decoders": [
                        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                        {"type": "ByteFallback"},
                        {"type": "Fuse"},
                        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                    ],
                },
            }
        ).encode()
    )
    zhong = [3 + byte for byte in "中".encode()]
    assert streamed(tokenizer, [1, 2, *zhong, *zhong, 1]) == ["a", " b", "", "", "中", "", "", "中", " a", ""]
