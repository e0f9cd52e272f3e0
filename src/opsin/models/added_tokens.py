"""The added tokens of a tokenizer, from whichever of its files is there. Knows no weights and no other facts."""

from __future__ import annotations

from pathlib import Path

from opsin.core.errors import ConfigError
from opsin.models.files import AddedToken, TekkenFile, TokenizerConfigFile, TokenizerFile, read_json

TOKENIZER_CONFIG = "tokenizer_config.json"


def read_added_tokens(folder: Path) -> tuple[AddedToken, ...]:
    """Of tokenizer.json (``tokenizers``), tokenizer_config.json (Transformers) and tekken.json (Mistral).

    Raises:
        ConfigError: none of them is there or names any, or one is no such file.
    """
    tokenizer = read_json(folder, "tokenizer.json", TokenizerFile)
    config = read_json(folder, TOKENIZER_CONFIG, TokenizerConfigFile)
    tekken = read_json(folder, "tekken.json", TekkenFile)
    found = (
        *(tokenizer.added_tokens if tokenizer else ()),
        *((config.added_tokens_decoder or {}).values() if config else ()),
        *(AddedToken(token.token_str, special=True) for token in (tekken.special_tokens or () if tekken else ())),
    )
    if not found:
        raise ConfigError(
            f"no special tokens in tokenizer.json, {TOKENIZER_CONFIG} or tekken.json of the folder {folder.name}"
        )
    return found
