from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsin.core.errors import ConfigError
from opsin.models.added_tokens import read_added_tokens
from opsin.models.files import AddedToken


def _write(folder: Path, **files: object) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_each_file_tells_its_tokens(tmp_path: Path) -> None:
    folder = _write(
        tmp_path,
        tokenizer={"added_tokens": [{"id": 3, "content": "<image>", "special": True}], "model": {}},
        tokenizer_config={"added_tokens_decoder": {"7": {"content": "<think>", "special": False}}, "bos_token": "<s>"},
        tekken={"config": {}, "special_tokens": [{"rank": 10, "token_str": "[IMG]", "is_control": True}]},
    )
    assert read_added_tokens(folder) == (
        AddedToken("<image>", 3, special=True),
        AddedToken("<think>"),
        AddedToken("[IMG]", special=True),
    )


def test_a_folder_that_tells_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no special tokens in tokenizer\.json"):
        read_added_tokens(_write(tmp_path, tokenizer_config={}))
    with pytest.raises(ConfigError, match=r"tokenizer\.json: field added_tokens is missing"):
        read_added_tokens(_write(tmp_path, tokenizer={}))
