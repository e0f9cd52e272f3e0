"""``opsin tokens``: what pictures, sizes or a whole request cost a model. Nothing is decoded, no weights are loaded.

The model is one on this machine or a known one, and then no network is used, or whatever a running server serves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from opsin.cache.loading import NOBODY, Unscoped
from opsin.cli.flags import given, read
from opsin.cli.pictures import as_sent, check_together, imagined, look_at
from opsin.core.conversation import Detail
from opsin.core.errors import Code, ConfigError, OpsinError
from opsin.counting import find_model, picture_counter, prompt_counter
from opsin.engine.upstream.config import UpstreamConfig
from opsin.engine.upstream.failures import http_error, transport_error
from opsin.engine.upstream.session import open_session
from opsin.gateway.budget import Want
from opsin.gateway.count import CountService, View, to_wire
from opsin.media.loader import NONE_LIFTED, MediaLoader
from opsin.protocol.request import parse_request
from opsin.protocol.response import ErrorBody, ImageCount, TokenCount
from opsin.settings import Configuration, Settings
from opsin.vision.plan import Size

_AT_A_SERVER = ("upstream.url", "upstream.api_key", "model")
_SIZE = re.compile(r"([1-9][0-9]{0,5})[xX×]([1-9][0-9]{0,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Told:
    """Counts, what to call each picture, and what the counts rest on; None where a server knows that."""

    count: TokenCount
    names: Sequence[str]
    source: str | None = None
    is_verified: bool = True


def size(text: str) -> Size:
    """``1920x1080``. Raises argparse.ArgumentTypeError."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: width x height in pixels, as 1920x1080")
    return Size(int(found[1]), int(found[2]))


def run(args: argparse.Namespace) -> int:
    """Prints tiles and tokens of each picture, and of all; returns 1 where they do not fit."""
    if not args._pictures and not args._sizes and args._request is None:
        raise ConfigError("nothing to count: name pictures, --size WIDTHxHEIGHT, or --request FILE")
    if args._request is not None and (args._pictures or args._sizes):
        raise ConfigError("--request: the pictures are those of the request; name no others")
    if args._request is not None and args._detail is not None:
        raise ConfigError("--detail: the request says it of each picture")
    configuration = read(args)
    settings = configuration.checked()
    if (server := _server(configuration, args)) is not None:
        named = configuration.given["upstream.url"].name
        _refuse_what_the_server_decides(args, named)
        told = asyncio.run(_asked(server, settings, args))
    elif args._request is not None:
        told = asyncio.run(_of_request(settings, args))
    else:
        told = _of_pictures(settings, args)
    if args._json:
        print(json.dumps(_as_json(told), ensure_ascii=False))
    else:
        _print(told)
    return 1 if told.count.fits is False else 0


def _detail(args: argparse.Namespace) -> Detail:
    return Detail(args._detail or Detail.AUTO)


def _server(configuration: Configuration, args: argparse.Namespace) -> UpstreamConfig | None:
    """None where this process counts: a model that was typed wins over a server that a file or a variable names."""
    typed = given(args._parser, args)
    return None if "model" in typed and "upstream.url" not in typed else configuration.settings.upstream


def _refuse_what_the_server_decides(args: argparse.Namespace, named: str) -> None:
    """Flags that would have no effect, which nobody would see in the answer. ``named`` is what names the server."""
    if args._sizes:
        raise ConfigError(f"--size: a server counts pictures, and {named} names one; --model MODEL counts sizes here")
    typed = [one.name for path, one in given(args._parser, args).items() if path not in _AT_A_SERVER]
    typed += ["--estimate"] if args._estimate else []
    if typed:
        raise ConfigError(
            f"{', '.join(dict.fromkeys(typed))}: no effect beside {named}, as the server counts by settings of its own"
        )


def _of_pictures(settings: Settings, args: argparse.Namespace) -> _Told:
    detail = _detail(args)
    glances = look_at(args._pictures, settings.media)
    glances += [imagined(wanted, f"{wanted.width}x{wanted.height}") for wanted in args._sizes]
    check_together(glances, settings.media)
    views = [View(Want(one.header.upright, detail, one.param), one.is_settled) for one in glances]
    model = find_model(settings)
    counted = picture_counter(settings, model, estimate=args._estimate).count_pictures(views)
    names = [view.want.param for view in views]
    return _Told(to_wire(counted, model=settings.model), names, model.source, model.is_verified)


async def _of_request(settings: Settings, args: argparse.Namespace) -> _Told:
    request = parse_request(_body(args._request))
    model = find_model(settings)
    counter = prompt_counter(settings, model) or picture_counter(settings, model, estimate=args._estimate)
    counted = await CountService(Unscoped(MediaLoader(settings.media)), counter).count(NOBODY, request, NONE_LIFTED)
    count = to_wire(counted, model=settings.model)
    return _Told(count, _numbered(count.images), model.source, model.is_verified)


async def _asked(server: UpstreamConfig, settings: Settings, args: argparse.Namespace) -> _Told:
    """A running opsin, about the model that it serves."""
    if args._request is not None:
        body = _body(args._request)
    else:
        body = json.dumps(_chat([as_sent(word, settings.media) for word in args._pictures], args)).encode()
    try:
        async with open_session(server) as session, session.post(f"{server.url}/tokens", data=body) as response:
            answer = await response.read()
    except (aiohttp.ClientError, OSError) as error:
        raise transport_error(error, answered=False) from error
    if response.status != 200:
        raise _refusal(server, response, answer)
    count = _counted(server, answer)
    names = args._pictures or _numbered(count.images)
    if len(names) != len(count.images):
        raise _no_opsin(server)
    return _Told(count, names)


def _counted(server: UpstreamConfig, answer: bytes) -> TokenCount:
    try:
        return msgspec.json.decode(answer, type=TokenCount)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _no_opsin(server) from None


def _no_opsin(server: UpstreamConfig) -> ConfigError:
    return ConfigError(f"{server.url}/tokens answers otherwise than an opsin: is it one?")


def _refusal(server: UpstreamConfig, response: aiohttp.ClientResponse, answer: bytes) -> OpsinError:
    """In the server's own words, which are for whoever asked."""
    try:
        error = msgspec.json.decode(answer, type=ErrorBody).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        error = None
    if response.status == 404 and (error is None or error.code != str(Code.MODEL_NOT_FOUND)):
        return ConfigError(f"{server.url} has no /tokens: it is no opsin, or an old one")
    if error is None or response.status in (401, 403):
        return http_error(response.status, response.headers.get("retry-after"), answer)
    return OpsinError(error.message)


def _chat(urls: Sequence[str], args: argparse.Namespace) -> dict[str, object]:
    parts = [{"type": "image_url", "image_url": {"url": url, "detail": _detail(args)}} for url in urls]
    model = getattr(args, "model", None)
    return {"messages": [{"role": "user", "content": parts}], **({"model": model} if model else {})}


def _body(name: str) -> bytes:
    """Of a request, from a file or standard input."""
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(f"--request {name}: cannot be read: {error.strerror}") from None


def _numbered(images: Sequence[ImageCount]) -> list[str]:
    return [f"picture {number}" for number in range(1, len(images) + 1)]


def _as_json(told: _Told) -> dict[str, object]:
    """What a server would answer, and the names of the pictures."""
    fields: dict[str, object] = msgspec.to_builtins(told.count)
    images = [
        {"picture": name, **msgspec.to_builtins(image)}
        for name, image in zip(told.names, told.count.images, strict=True)
    ]
    basis = {} if told.source is None else {"source": told.source, "verified": told.is_verified}
    return fields | {"images": images} | basis


def _print(told: _Told) -> None:
    count = told.count
    crossing = ["cross-attention"] if count.cross_attention_tokens else []
    table = Table("picture", "size", "used", "tiles", "image tokens", "markers", *crossing)
    for name, image in zip(told.names, count.images, strict=True):
        table.add_row(escape(name), *_cells(image), *([str(image.cross_attention_tokens)] if crossing else []))
    table.add_section()
    tiles = sum(image.tiles or 0 for image in count.images)
    totals = (tiles or None, count.image_tokens, count.marker_tokens)
    table.add_row("total", "", "", *map(_shown, totals), *([str(count.cross_attention_tokens)] if crossing else []))
    console = Console()
    console.print(table)
    for line in _lines(told):
        console.print(escape(line), soft_wrap=True)


def _cells(image: ImageCount) -> list[str]:
    used = "?" if image.used_width is None else f"{image.used_width}x{image.used_height}"
    tokens = _shown(image.image_tokens)
    if image.turned is not None:
        tokens += f", or {image.turned.image_tokens} on its side"
    scaled = " (scaled)" if image.scaled else ""
    return [f"{image.width}x{image.height}", used + scaled, _shown(image.tiles), tokens, _shown(image.marker_tokens)]


def _shown(number: int | None) -> str:
    return "?" if number is None else str(number)


def _lines(told: _Told) -> list[str]:
    """In words, what a table has no place for."""
    count = told.count
    lines = [f"with the text: {count.prompt_tokens} tokens"] if count.prompt_tokens is not None else []
    if count.refusal is not None:
        lines.append(f"does not fit: {count.refusal.message}")
    elif count.fits and count.max_model_len is not None:
        lines.append(f"fits into {count.max_model_len} tokens")
    if count.images and count.image_tokens is None:
        lines.append("not counted: the server does not know the model behind it, or that has not answered yet")
    lines += [f"warning: {warning.message}" for warning in count.warnings]
    if any(not image.exact and image.image_tokens is not None and image.turned is None for image in count.images):
        lines.append("an estimate: there is no rule for this model type")
    if told.source is not None:
        checked = "" if told.is_verified else ", which nobody has checked: compare with the model's own files"
        lines.append(f"counted by {told.source}{checked}")
    return lines
