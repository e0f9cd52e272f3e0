"""The request body of one generation, as bytes. Knows no HTTP and no reply.

Pictures are most of a body, so they are encoded once at most and never copied: no JSON encoder ever walks over base64,
and a large picture that came as base64 goes on from the memory in which it came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import msgspec
import pybase64
from msgspec import UNSET, UnsetType

from opsin.cache.keys import prefix_salt
from opsin.core.conversation import Detail, Fields, MediaRef, Message, Part, TextPart
from opsin.core.errors import UnsupportedParameter
from opsin.engine.api import ChatPrompt, GenerationRequest, Picture, SamplingParams
from opsin.engine.upstream.dialect import DIALECTS, Dialect, UpstreamKind
from opsin.media.data_url import head
from opsin.media.types import MediaBytes

T = TypeVar("T")

_LARGE_BYTES = 64 * 2**10
"""Shorter pieces of a body are joined to one: a write for each would cost more than the copy."""

_NEUTRAL = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "min_tokens": 0, "ignore_eos": False}
"""Sampling beyond OpenAI's, by the values that ask for nothing."""


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = True


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    """Every field but ``messages`` that all engines call the same; unset when neutral."""

    model: str
    stream: bool = True
    stream_options: _StreamOptions = _StreamOptions()
    temperature: float | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    stop: tuple[str, ...] | UnsetType = UNSET
    presence_penalty: float | UnsetType = UNSET
    frequency_penalty: float | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressee:
    """To whom a body is written. ``is_shared``: requests of several scopes meet in its caches."""

    model: str
    dialect: Dialect = DIALECTS[UpstreamKind.AUTO]
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class _Sent:
    """A picture, its name at the engine, and whether it goes by that alone."""

    picture: Picture
    name: str | None
    is_leased: bool


def encode_body(
    request: GenerationRequest, to: Addressee, leased: frozenset[str] = frozenset()
) -> list[bytes | memoryview]:
    """The JSON body, in pieces: messages and their parts in the user's order, pictures as data URLs of their bytes.

    Where the engine takes names for pictures, these are the keys, and what is ``leased`` goes by its key alone. Fields
    that opsin does not read follow as they came.

    Raises:
        UnsupportedParameter: a sampling option that the engine would ignore.
    """
    assert isinstance(request.prompt, ChatPrompt), "an upstream applies its own template: it reads messages"
    named = to.dialect.names_pictures
    pictures = (_Sent(one, one.key if named else None, named and one.key in leased) for one in request.pictures)
    messages = [*_joined(_message(message, pictures) for message in request.prompt.conversation.messages)]
    assert next(pictures, None) is None, "more pictures than media refs"
    options = msgspec.json.encode(_options(request.sampling, to.model))
    own = msgspec.json.encode({**_own_options(request.sampling, to.dialect), **_cache_options(request.scope, to)})
    further = _further(request.prompt.conversation.fields)
    return list(
        _few([b'{"messages":[', *messages, b"]", *further, b",", options[1:-1], b"," * (len(own) > 2), own[1:]])
    )


def _few(pieces: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The same, with all that is not large joined to what stands beside it."""
    for is_large, group in groupby(pieces, lambda piece: len(piece) >= _LARGE_BYTES):
        if is_large:
            yield from group
        else:
            yield b"".join(group)


def _options(sampling: SamplingParams, model: str) -> _Options:
    return _Options(
        model=model,
        temperature=UNSET if "temperature" in sampling.left_open else sampling.temperature,
        top_p=UNSET if "top_p" in sampling.left_open else sampling.top_p,
        seed=_unless(sampling.seed, None),
        stop=_unless(sampling.stop, ()),
        presence_penalty=_unless(sampling.presence_penalty, 0.0),
        frequency_penalty=_unless(sampling.frequency_penalty, 0.0),
    )


def _own_options(sampling: SamplingParams, dialect: Dialect) -> dict[str, float]:
    """What engines call otherwise or do not know; nothing that is neutral, as strict servers refuse the names alone."""
    stated: dict[str, float] = {} if sampling.max_tokens is None else {dialect.max_tokens: sampling.max_tokens}
    for name, neutral in _NEUTRAL.items():
        value = getattr(sampling, name)
        if value == neutral:
            continue
        if name not in dialect.options:
            raise UnsupportedParameter(f"'{name}' is not understood by the upstream, {dialect.kind}", param=name)
        stated[dialect.options[name]] = value
    return stated


def _cache_options(scope: str, to: Addressee) -> dict[str, str | bool]:
    """Keeps what the engine caches of one tenant from all others."""
    if to.dialect.salt is not None:
        return {to.dialect.salt: prefix_salt(scope)}
    return {to.dialect.cache_switch: False} if to.dialect.cache_switch and to.is_shared else {}


def _unless(value: T | None, neutral: T | None) -> T | UnsetType:
    return UNSET if value is None or value == neutral else value


def _message(message: Message, pictures: Iterator[_Sent]) -> Iterator[bytes | memoryview]:
    yield b'{"role":%b,"content":' % msgspec.json.encode(message.role)
    yield from _content(message.parts, pictures)
    yield from _further(message.fields)
    yield b"}"


def _further(fields: Fields) -> Iterator[bytes]:
    for name, value in fields:
        yield b",%b:%b" % (msgspec.json.encode(name), value)


def _content(parts: tuple[Part, ...], pictures: Iterator[_Sent]) -> Iterator[bytes | memoryview]:
    """A lone text as a plain string: some templates read nothing else, above all from system and assistant."""
    match parts:
        case ():
            yield b'""'
        case (TextPart(text),):
            yield msgspec.json.encode(text)
        case _:
            yield b"["
            yield from _joined(_part(part, pictures) for part in parts)
            yield b"]"


def _part(part: Part, pictures: Iterator[_Sent]) -> Iterator[bytes | memoryview]:
    match part:
        case TextPart(text):
            yield b'{"type":"text","text":%b}' % msgspec.json.encode(text)
        case MediaRef(detail=detail):
            sent = next(pictures, None)
            assert sent is not None and sent.picture.media is not None, "a media ref without its bytes"
            yield b'{"type":"image_url",'
            if sent.name is not None:
                yield b'"uuid":"%b",' % sent.name.encode()
            yield from (b'"image_url":null}',) if sent.is_leased else _image_url(sent.picture.media, detail)


def _image_url(media: MediaBytes, detail: Detail) -> Iterator[bytes | memoryview]:
    yield b'"image_url":{"url":"%b' % head(media.header.format.mime).encode()
    yield media.base64 or pybase64.b64encode(media.data)
    yield b'"}}' if detail is Detail.AUTO else b'","detail":"%b"}}' % detail.value.encode()


def _joined(items: Iterator[Iterator[bytes | memoryview]]) -> Iterator[bytes | memoryview]:
    for index, item in enumerate(items):
        if index:
            yield b","
        yield from item
