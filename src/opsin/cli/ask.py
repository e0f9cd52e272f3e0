"""``opsin ask PICTURE… QUESTION``: with a model in this process, or at any OpenAI-compatible server."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import aclosing
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from opsin import startup
from opsin.app import Application, build
from opsin.cli.flags import read
from opsin.cli.pictures import load_pictures
from opsin.core.errors import ConfigError
from opsin.core.ids import new_request_id
from opsin.core.problems import raise_all
from opsin.demo.hint import PHOTO_HINT, is_photo
from opsin.engine.api import Delta
from opsin.engine.upstream.probe import KEY_FLAG
from opsin.gateway.chat import Begun, collect
from opsin.gateway.streaming import to_completion
from opsin.media import data_url
from opsin.media.types import MediaBytes
from opsin.protocol.request import parse_request
from opsin.settings import DEMO_MODEL, Configuration, EngineKind, Settings


def run(args: argparse.Namespace) -> int:
    """Prints the answer as it comes; returns the exit status."""
    *pictures, question = args._words
    if Path(question).is_file():
        raise ConfigError(f'the question is missing: opsin ask {" ".join(args._words)} "What is it?"')
    configuration = _of_one_model(args)
    raise_all(startup.problems(configuration, listens=False))
    settings = _at_a_server(configuration.settings, args)
    media = load_pictures(pictures, settings.media)
    try:
        return asyncio.run(_ask(settings, media, _body(media, question, args), as_json=args._json))
    except ConfigError as error:
        raise ConfigError(error.message.replace(KEY_FLAG, "--api-key")) from None


def _of_one_model(args: argparse.Namespace) -> Configuration:
    """Of several [[models]] the one that --model names, or the first: no other has to be there."""
    wanted = getattr(args, "model", None)
    unnamed = argparse.Namespace(**{name: value for name, value in vars(args).items() if name != "model"})
    named = startup.each_model(read(unnamed))
    tables = [one for one in named if wanted is None or wanted in one.settings.served_model_name]
    return tables[0] if tables else read(args)


def _at_a_server(settings: Settings, args: argparse.Namespace) -> Settings:
    """Nobody asks a question of a server that is still to be started; a model that was typed is one of its, unless it
    is our own name for the model."""
    if settings.upstream is None:
        return settings
    typed = getattr(args, "model", None)
    model = settings.upstream.model if typed in (None, *settings.served_model_name) else typed
    upstream = settings.upstream.model_copy(update={"ready_timeout_s": 5, "model": model})
    stated = {name: getattr(settings, name) for name in settings.model_fields_set - {"model"}}
    return Settings.model_validate({**stated, "upstream": upstream})


def _body(media: list[MediaBytes], question: str, args: argparse.Namespace) -> bytes:
    parts: list[dict[str, object]] = []
    for number, picture in enumerate(media, 1):
        if len(media) > 1:
            parts.append({"type": "text", "text": f"Image {number}:"})
        url = data_url.write(picture.header.format.mime, picture.data)
        parts.append({"type": "image_url", "image_url": {"url": url, "detail": args._detail}})
    parts.append({"type": "text", "text": question})
    message = {"role": "user", "content": parts}
    stated = {} if args._max_tokens is None else {"max_tokens": args._max_tokens}
    return json.dumps({"messages": [message], **stated}).encode()


async def _ask(settings: Settings, media: list[MediaBytes], body: bytes, *, as_json: bool) -> int:
    application = build(settings)
    try:
        with Console(stderr=True).status(_waiting_for(settings)):
            await application.start()
        await _answer(application, body, as_json=as_json)
        if settings.engine is EngineKind.LOCAL and settings.model == DEMO_MODEL:
            await _hint(application, media)
        return 0
    finally:
        await application.close()


def _waiting_for(settings: Settings) -> str:
    return f"asking {settings.upstream.url} …" if settings.upstream else f"loading {escape(settings.model)} …"


async def _hint(application: Application, media: list[MediaBytes]) -> None:
    for picture in media:
        if await is_photo(application.renderer, picture):
            print(PHOTO_HINT, file=sys.stderr)
            return


async def _answer(application: Application, body: bytes, *, as_json: bool) -> None:
    request_id = new_request_id()
    served = application.gateway.models.default
    answer = served.chat.answer(parse_request(body), request_id=request_id, tenant="cli")
    if as_json:
        print(to_completion(await collect(answer), request_id=request_id, model=served.names.default).decode())
        return
    begun = False
    async with aclosing(answer) as events:
        async for event in events:
            if isinstance(event, Begun):
                _warn(event)
            elif isinstance(event, Delta):
                # Behind "Assistant:" the first token of most models begins with a space.
                print(event.text if begun else event.text.lstrip(), end="", flush=True)
                begun = begun or bool(event.text.strip())
    print()


def _warn(begun: Begun) -> None:
    for warning in begun.warnings:
        print(f"warning: {warning.message}", file=sys.stderr)
