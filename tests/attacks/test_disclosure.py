"""What a bad request is told, and what is told about it: our own words, never its payload, never the machine's insides.

Hundreds of bad requests to a real server at its most talkative; each answer and each line of the log is searched.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp

from opsin.core.errors import Code, MediaError
from opsin.testing.server_process import ServerProcess
from tests.corpus.bodies import bad_bodies, image_body, text_body
from tests.corpus.data_urls import DIALECTS
from tests.corpus.pictures import bad_pictures, data_url, encoded, scene

NEEDLE = "n33dle"
"""In what a client sends and in what an operator allows; in nothing that anybody is told."""

INSIDES = re.compile(
    r"0x[0-9a-fA-F]{5,}| object at |Traceback|line \d+, in |Errno"  # Python's
    r"|\b(PIL|Pillow|pydantic|msgspec|jinja2?|aiohttp|starlette|uvicorn|tokenizers|libjpeg|zlib|seccomp)\b"
    r"|Input should|Field required|cannot identify|validation error|Invalid JSON"  # sentences of libraries
    r"|(?<![\w.:/])/(root|home|usr|tmp|etc|proc|opt|var|work)\b|site-packages|\.py\b"  # paths
    r"|\b(127\.0\.0\.1|169\.254\.169\.254|10\.0\.0\.7|localhost)\b"  # addresses
)
MEDIA = {code.value for code in Code if issubclass(code.error, MediaError)}


@dataclass(frozen=True, slots=True)
class Attempt:
    """A bad request. ``is_media``: because of its picture, so that it has to be refused for that."""

    name: str
    body: bytes
    is_media: bool = True


def _attempts() -> Iterator[Attempt]:
    for bad in bad_bodies():
        yield Attempt(bad.name, bad.body, is_media=bad.code in MEDIA)
    for picture in bad_pictures():
        yield Attempt(picture.name, image_body(data_url(picture.data)))
    for dialect in DIALECTS:
        if dialect.refusal is not None:
            yield Attempt(dialect.name, image_body(dialect.url))
    for url in _URLS:
        yield Attempt(url, image_body(url))
    for name, data in _garbage():  # of which a JPEG may still decode, to noise
        yield Attempt(name, image_body(data_url(data)), is_media=False)
        yield Attempt(f"large {name}", image_body(data_url(data + NEEDLE.encode() * 60_000)), is_media=False)


_URLS = (
    f"data:image/png;base64,{NEEDLE}@@",
    f"data:image/png;base64,{NEEDLE}AA",
    f"data:{NEEDLE},{NEEDLE}",
    f"data:image/png;base64,{NEEDLE * 2000}@",
    f"https://{NEEDLE}:{NEEDLE}@other.example/{NEEDLE}.png?{NEEDLE}",
    f"https://other.example/{NEEDLE}?{NEEDLE}",
    "http://127.0.0.1/a.png",
    "http://localhost:1/a.png",
    "http://169.254.169.254/latest/meta-data/",
    f"file:///tmp/{NEEDLE}.png",
    "file:///etc/passwd",
    "/etc/passwd",
    f"/no/such/{NEEDLE}",
    f"../{NEEDLE}",
    NEEDLE,
)


def _garbage() -> Iterator[tuple[str, bytes]]:
    """Beginnings of good pictures, and then the needle."""
    for image_format in ("png", "jpeg", "webp", "gif"):
        good = encoded(scene(), image_format)
        for kept in (12, 40, len(good) // 2):
            yield f"{image_format} of {kept} bytes", good[:kept] + NEEDLE.encode() * 20
    yield "text", NEEDLE.encode() * 20


SECRETS = [NEEDLE, *(base64.b64encode((NEEDLE * 8).encode()[shift:])[4:16].decode() for shift in range(3))]


def told_too_much(text: str) -> list[str]:
    return [match[0] for match in INSIDES.finditer(text)] + [secret for secret in SECRETS if secret in text]


def test_the_search_finds_what_it_is_for() -> None:
    for text in (
        "cannot identify image file <_io.BytesIO object at 0x7fd1c04c2a70>",
        "Input should be a valid string",
        "[Errno 2] No such file or directory: '/tmp/x.png'",
        "connecting to 169.254.169.254",
        f"allowed: {NEEDLE}.example",
        data_url(NEEDLE.encode() * 9),
    ):
        assert told_too_much(text), text
    assert told_too_much("The picture is 20000 x 20000 pixels; the limit on a side is 8192 (max_image_side).") == []


async def test_case_98_and_55_neither_answer_nor_log_tells_more_than_our_own_words() -> None:
    settings = ("--engine", "fake", "--log-level", "debug", "--allowed-media-domains", f"{NEEDLE}.example")
    wrong: list[str] = []
    attempts = list(_attempts())
    assert len(attempts) > 250
    with ServerProcess(*settings) as server:
        url = server.until_ready()
        num_before = len(server.lines)
        async with aiohttp.ClientSession() as http:
            for attempt in attempts:
                async with http.post(f"{url}/v1/chat/completions", data=io.BytesIO(attempt.body)) as answer:
                    text = await answer.text()
                    head = "\n".join(f"{name}: {value}" for name, value in answer.headers.items())
                    wrong += [f"{attempt.name}: {found}" for found in told_too_much(f"{head}\n{text}")]
                    if answer.status != 200 or attempt.is_media:
                        wrong += _wrong_refusal(attempt, answer.status, text)
                        assert answer.headers["x-should-retry"] == "false"
            async with http.post(f"{url}/v1/chat/completions", data=text_body()) as answer:
                assert answer.status == 200
    assert wrong == []
    log = "".join(server.lines[num_before:])
    assert log.count("request_id=") == len(attempts) + 1
    assert told_too_much(log) == []


def _wrong_refusal(attempt: Attempt, status: int, text: str) -> list[str]:
    """Each is a 4xx with a code that is documented for its status."""
    code = Code(json.loads(text).get("error", {}).get("code", Code.INTERNAL_ERROR))
    is_right = 400 <= status < 500 and code.error.status == status and (code in MEDIA or not attempt.is_media)
    return [] if is_right else [f"{attempt.name}: {status} {code}"]
