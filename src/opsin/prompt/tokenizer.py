"""Text to token ids and back: the one adapter of the ``tokenizers`` library.

Two encoders share one vocabulary: one recognises the model's added tokens (``<image>``, ``<end_of_utterance>`` …) for
text that the chat template wrote, the other cannot produce them, for text that a user wrote. Added tokens that are
nothing but white space, such as Gemma's ``\\n``, are text to both of them, as they are to Transformers. This module
knows no template and no picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as RawTokenizer

from opsin.core.errors import ConfigError, InvalidRequest

_REPLACEMENT = "\ufffd"


class _AddedToken(msgspec.Struct):
    """As tokenizer.json has it; the rest of its fields say how it is looked for."""

    id: int
    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True


_LONG_CHARS = 4096
"""Longer texts go through the batch call, which lets other threads run meanwhile."""

_MAX_PENDING = 16
"""Tokens kept for an incomplete character. UTF-8 needs 4; a longer run is garbage and must not grow without end."""


class Tokenizer:
    """The tokenizer of one checkpoint. Neither encoder adds special tokens, truncates or pads."""

    def __init__(self, json: bytes) -> None:
        """``json`` is the content of tokenizer.json. Raises ConfigError."""
        self._whole = _load(json)
        self._plain = _load(_without_added_tokens(json))
        added = self._whole.get_added_tokens_decoder()
        no_text = {token_id: token.content for token_id, token in added.items() if not _is_text(token)}
        self.added_tokens = tuple(no_text.values())
        """But for those that are text."""
        self.added_token_ids = frozenset(no_text)
        self.max_token_id = max(self._whole.get_vocab().values())
        self.max_token_chars = max(map(len, self._plain.get_vocab(with_added_tokens=False)))
        """No token stands for more characters of text than this."""
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    @classmethod
    def from_file(cls, path: Path) -> Tokenizer:
        """Reads tokenizer.json.

        Raises:
            ConfigError: the file is missing, is not a tokenizer, or is not of the BPE kind.
        """
        if not path.is_file():
            raise ConfigError(f"{path.name}: missing from the model folder")
        return cls(path.read_bytes())

    def encode(self, text: str) -> list[int]:
        """Ids of trusted text; added tokens are recognised. Raises InvalidRequest for text that is not Unicode."""
        return _encode(self._whole, text)

    def encode_plain(self, text: str) -> list[int]:
        """Ids of untrusted text; never the id of an added token. Raises InvalidRequest for text that is not Unicode."""
        return _encode(self._plain, text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD."""
        return self._whole.decode(list(ids), skip_special_tokens=skip_special_tokens)

    @property
    def opening(self) -> str:
        """What its file puts before every text, mostly a BOS token; an engine that is given text adds it again."""
        ids = self._whole.encode("a", add_special_tokens=True).ids
        opening = takewhile(self.special_token_ids.__contains__, ids)
        return "".join(self._whole.id_to_token(token_id) or "" for token_id in opening)

    def token_id(self, token: str) -> int | None:
        """The id of exactly this token, or None if the vocabulary lacks it."""
        return self._whole.token_to_id(token)


class Detokenizer:
    """Turns one request's ids into text as they come; the parts joined are the decoded whole.

    Text is held back while it may be half a character. Special tokens yield nothing. Not for sharing between requests.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Decoders look at neighbours (leading spaces, runs of byte tokens), so the last finished group of ids stays in
        # the window as context for the next one.
        self._ids: list[int] = []
        self._context_len = 0
        self._num_sent = 0

    def push(self, token_id: int) -> str:
        """The text that this token completes; often empty, never half a character."""
        if token_id in self._tokenizer.special_token_ids:
            return ""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        settled = text.rstrip(_REPLACEMENT)
        new = settled[self._num_sent :]
        if settled == text:
            self._start_group(self._ids[self._context_len :])
        elif len(self._ids) - self._context_len >= _MAX_PENDING:
            self._start_group(self._ids[-4:])
            self._context_len = 0
        else:
            self._num_sent = max(self._num_sent, len(settled))
        return new

    def flush(self) -> str:
        """What is left at the end; bytes that never became a character are dropped."""
        rest = self._decode(self._ids).rstrip(_REPLACEMENT)[self._num_sent :]
        self._start_group([])
        return rest

    def _start_group(self, context: list[int]) -> None:
        self._ids = context
        self._context_len = len(context)
        self._num_sent = len(self._decode(context).rstrip(_REPLACEMENT))

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def _load(json: bytes) -> RawTokenizer:
    try:
        tokenizer = RawTokenizer.from_buffer(json)
    except Exception as error:  # the library raises nothing more special
        raise ConfigError("tokenizer.json: not a tokenizer that the tokenizers library can read") from error
    # Some checkpoints ship the settings of their last training run.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _is_text(token: _AddedToken | AddedToken) -> bool:
    """Whether it is only white space, which SentencePiece writes as U+2581, and means nothing else to the model."""
    return not token.special and token.content.replace("\u2581", " ").isspace()


def _without_added_tokens(json: bytes) -> bytes:
    """The same tokenizer with no way to reach an added token that is not text.

    Leaving them out of ``added_tokens`` is not enough: they often lie in the model's vocabulary too, where merges, or
    ``ignore_merges`` (Llama 3), could still arrive at them.
    """
    try:
        file = msgspec.json.decode(json, type=dict[str, msgspec.Raw])
        added = msgspec.json.decode(file["added_tokens"], type=list[_AddedToken])
        model = msgspec.json.decode(file["model"], type=dict[str, msgspec.Raw])
        if msgspec.json.decode(model["type"]) != "BPE":
            raise ConfigError("tokenizer.json: model.type is not BPE, the only kind that is supported")
        vocab = msgspec.json.decode(model["vocab"], type=dict[str, int])
        merges = msgspec.json.decode(model["merges"], type=list[tuple[str, str] | str])
    except (KeyError, msgspec.MsgspecError) as error:
        raise ConfigError(
            "tokenizer.json: added_tokens, model.type, model.vocab or model.merges is malformed"
        ) from error
    text = [token for token in added if _is_text(token)]
    added_ids = {token.id for token in added if token not in text}
    gone = {key for key, token_id in vocab.items() if token_id in added_ids}
    kept = [merge for merge in merges if gone.isdisjoint(_parts(merge))]
    left = {key: token_id for key, token_id in vocab.items() if key not in gone}
    model["vocab"] = _raw(left | {token.content: token.id for token in text})  # or the library would number them anew
    model["merges"] = _raw(kept)
    if "unk_token" in model and msgspec.json.decode(model["unk_token"]) in gone:
        model["unk_token"] = _raw(None)  # the library refuses an unknown token that it does not have
    return msgspec.json.encode({**file, "added_tokens": text, "model": model})


def _parts(merge: tuple[str, str] | str) -> tuple[str, str, str]:
    """Both sides and their union; older files write a merge as ``left right``."""
    left, right = merge if isinstance(merge, tuple) else merge.split(" ", 1)
    return left, right, left + right


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _encode(tokenizer: RawTokenizer, text: str) -> list[int]:
    try:
        if len(text) > _LONG_CHARS:
            return tokenizer.encode_batch([text], add_special_tokens=False)[0].ids
        return tokenizer.encode(text, add_special_tokens=False).ids
    except TypeError as error:  # what the library says to lone surrogates
        raise InvalidRequest("text is not valid Unicode: it contains a lone surrogate") from error
