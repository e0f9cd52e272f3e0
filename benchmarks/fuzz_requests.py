"""What the fuzzer sends to a running server: pictures, bodies, data URLs, URLs, and what those URLs answer.

Everything is drawn from one ``random.Random``. Each body holds :data:`CANARY` somewhere, which no error and no line of
the log may repeat.
"""

from __future__ import annotations

import asyncio
import copy
import io
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from PIL import Image

from opsin.media import data_url
from opsin.media.types import ImageFormat
from opsin.testing.scripted_origin import Mode
from tests.corpus.golden_rare import heic
from tests.corpus.mutations import MUTATORS, originals

CANARY = "opsinfuzzcanary"
ORIGIN_PATH = "/picture"

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "YCbCr")
_SIDES = (1, 2, 3, 7, 8, 16, 17, 64, 100, 255, 256, 300)
_HOSTILE_TEXT = (
    *("", "\0", "\ud800", "\U0001f600", "\u202e", "<image>", "<|im_start|>", "<|im_end|>", "</s>", "{{7*7}}"),
    *("${jndi:ldap://x}", "'; DROP TABLE", "../../etc/passwd", "\r\nx-injected: 1", "%s%n", f"{CANARY} " * 300),
)
_HOSTILE: tuple[Json, ...] = (
    *(None, True, False, -1, 0, 1, 2**31, 2**63, -(2**64), 10**300, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *([], {}, [None], [[]], [{}], {"": ""}, {"type": "text"}, {"type": "image_url"}, {"url": None}, {"type": []}),
    *_HOSTILE_TEXT,
)
_FIELDS = (
    *("model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "n", "stop", "seed", "stream"),
    *("stream_options", "presence_penalty", "logit_bias", "logprobs", "response_format", "tools", "tool_choice"),
    *("user", "ignore_eos", "min_tokens", "mm_processor_kwargs", "guided_json", "metadata", CANARY),
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request."""

    kind: str
    body: bytes


class Requests:
    """Draws requests, and the answers of the web server that some of them name."""

    def __init__(self, chance: random.Random, origin: str) -> None:
        """``origin`` is the URL of that server, without a path."""
        self._chance = chance
        self._origin = origin
        self._files = {image_format: originals(image_format) for image_format in ImageFormat}
        self._kinds: dict[str, Callable[[], bytes]] = {
            "random picture": lambda: self._with_picture(self._picture()),
            "damaged picture": lambda: self._with_picture(self._damaged(self._file())),
            "two files in one": lambda: self._with_picture(self._spliced()),
            "several pictures": self._several,
            "odd data URL": lambda: self._with_url(self._odd_data_url()),
            "odd URL": lambda: self._with_url(self._odd_url()),
            "odd answer of a URL": lambda: self._with_url(f"{self._origin}{ORIGIN_PATH}"),
            "odd JSON": self._odd_body,
            "damaged JSON": lambda: self._damaged(self._odd_body()),
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of requests."""
        return tuple(self._kinds)

    def draw(self) -> Attempt:
        """The next one."""
        kind = self._chance.choice(self.kinds)
        return Attempt(kind, self._kinds[kind]())

    def good(self) -> Attempt:
        """One that has to be answered with 200."""
        picture = Image.radial_gradient("L").resize((96, 96)).convert("RGB")
        return Attempt("good", self._with_picture(_encoded(picture, ImageFormat.PNG)))

    @property
    def answers(self) -> Mode:
        """A mode of the web server: a picture in an HTTP answer, either of them or both perhaps damaged."""

        async def mode(writer: asyncio.StreamWriter) -> None:
            picture = self._chance.choice((self._file, self._picture, lambda: self._damaged(self._file())))()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: {len(picture)}\r\n\r\n".encode()
            damaged = head if self._chance.random() < 0.5 else self._damaged(head)
            writer.write(damaged + picture)
            await writer.drain()

        return mode

    # Pictures

    def _file(self) -> bytes:
        return self._chance.choice(self._files[self._chance.choice(tuple(ImageFormat))])

    def _picture(self) -> bytes:
        """Any size, mode and format that Pillow can write together."""
        chance = self._chance
        while True:
            size = chance.choice(_SIDES), chance.choice(_SIDES)
            picture = Image.frombytes("RGB", size, chance.randbytes(3 * size[0] * size[1]))
            image_format = chance.choice(tuple(ImageFormat))
            try:
                return _encoded(_in_mode(picture, chance.choice(_MODES)), image_format)
            except (OSError, ValueError, KeyError):
                continue  # this format has no such mode

    def _damaged(self, data: bytes) -> bytes:
        damaged = bytearray(data)
        for _ in range(self._chance.choice((1, 1, 2, 4))):
            if len(damaged) > 8:
                self._chance.choice(MUTATORS)(self._chance, damaged)
        return bytes(damaged)

    def _spliced(self) -> bytes:
        first, second = self._file(), self._file()
        return first[: self._chance.randrange(len(first))] + second[self._chance.randrange(len(second)) :]

    # Bodies

    def _with_picture(self, *pictures: bytes) -> bytes:
        return self._with_url(*(data_url.write(f"image/{CANARY}", picture) for picture in pictures))

    def _with_url(self, *urls: str) -> bytes:
        return json.dumps(self._chat(urls)).encode()

    def _chat(self, urls: Sequence[str]) -> dict[str, Json]:
        detail = self._chance.choice(("low", "auto", "high"))
        parts: list[Json] = [{"type": "image_url", "image_url": {"url": url, "detail": detail}} for url in urls]
        parts.append({"type": "text", "text": f"What is it, {CANARY}?"})
        messages: list[Json] = [{"role": "system", "content": "Answer."}, {"role": "user", "content": parts}]
        return {"messages": messages, "max_tokens": 2, "stream": self._chance.random() < 0.3}

    def _several(self) -> bytes:
        draws = (self._picture, self._file, lambda: self._damaged(self._file()))
        return self._with_picture(*(self._chance.choice(draws)() for _ in range(self._chance.randrange(2, 20))))

    def _odd_body(self) -> bytes:
        """A good body in which some values are not what they should be, and fields that may not be there."""
        body = copy.deepcopy(self._chat([data_url.write("image/png", self._file())]))
        for _ in range(self._chance.randrange(1, 5)):
            place = self._chance.choice(list(_places(body)) or [body])  # all of it may have been taken out
            if isinstance(place, list):
                place[self._chance.randrange(len(place))] = self._hostile()
            elif place and self._chance.random() < 0.3:
                del place[self._chance.choice(list(place))]
            elif place and self._chance.random() < 0.5:
                place[self._chance.choice(list(place))] = self._hostile()
            else:
                place[self._chance.choice(_FIELDS)] = self._hostile()
        return json.dumps(body, ensure_ascii=self._chance.random() < 0.5).encode("utf-8", "surrogatepass")

    def _hostile(self) -> Json:
        value: Json = copy.deepcopy(self._chance.choice(_HOSTILE))
        for _ in range(self._chance.choice((0, 0, 0, 1, 3, 200))):
            nested: list[Json] | dict[str, Json] = [value] if self._chance.random() < 0.5 else {"type": value}
            value = nested
        return value

    # URLs

    def _odd_data_url(self) -> str:
        url = bytearray(data_url.write(f"image/{CANARY}", self._file()).encode())
        if self._chance.random() < 0.5:
            start = self._chance.randrange(min(len(url), 60))
            url[start : start + self._chance.randrange(8)] = self._chance.choice(_HOSTILE_TEXT).encode(
                "utf-8", "replace"
            )
            return url.decode("utf-8", "replace")
        return self._damaged(bytes(url)).decode("latin-1")

    def _odd_url(self) -> str:
        pieces = (
            *("http://", "https://", "file://", "ftp:", "//", "/", "\\", "?", "#", "@", ":", ":80", "[::1]", "[", "]"),
            *(
                "127.0.0.1",
                "2130706433",
                "0x7f.1",
                "169.254.169.254",
                "localhost",
                "example.com",
                ".",
                "%00",
                "\t",
                "é",
            ),
            *(CANARY, self._origin, "..", "a" * 9000, "\ud800"),
        )
        start = self._chance.choice(("", "http://", "https://", self._origin, f"{self._origin}/"))
        return start + "".join(self._chance.choices(pieces, k=self._chance.randrange(6)))


def _in_mode(picture: Image.Image, mode: str) -> Image.Image:
    return (picture.convert("L") if mode == "I;16" else picture).convert(mode)


def _encoded(picture: Image.Image, image_format: ImageFormat) -> bytes:
    if image_format is ImageFormat.HEIC:
        return heic(picture)
    buffer = io.BytesIO()
    picture.save(buffer, image_format)
    return buffer.getvalue()


def _places(value: Json) -> Iterator[list[Json] | dict[str, Json]]:
    """All that holds something, however deep."""
    if isinstance(value, list | dict) and value:
        yield value
        for held in value if isinstance(value, list) else value.values():
            yield from _places(held)
