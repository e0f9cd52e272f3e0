"""Request bodies, encoded before the clock starts and kept in a file. Knows no HTTP and no schedule.

A body is a list of spans of the file. A picture that many requests bring is in it once, so neither the file nor the
memory grows with repetition; workers map the file and hand its pages to the socket.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import pybase64

from opsin.bench.config import BenchConfig
from opsin.bench.pictures import PictureSource
from opsin.bench.record import SentPicture, ServerFacts
from opsin.bench.workload import Ask, PictureSpec

_SHA_CHARS = 16


class Span(NamedTuple):
    """A piece of the file."""

    offset: int
    num_bytes: int


class Body(NamedTuple):
    """One request's body, and what is in it."""

    spans: tuple[Span, ...]
    pictures: tuple[SentPicture, ...]

    @property
    def num_bytes(self) -> int:
        """Of the whole body."""
        return sum(span.num_bytes for span in self.spans)


class Spool:
    """The file, without a name: it is gone when the last process has closed it."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="opsin-bench-")  # noqa: SIM115 closed with the spool
        self.num_bytes = 0

    @property
    def fd(self) -> int:
        """For workers to inherit."""
        return self._file.fileno()

    def add(self, data: bytes) -> Span:
        """Appends. Raises OSError when the disk is full."""
        span = Span(self.num_bytes, self._file.write(data))
        self.num_bytes += span.num_bytes
        return span

    def flush(self) -> None:
        """Lets other processes see everything."""
        self._file.flush()

    def close(self) -> None:
        """Forgets everything, once the workers have too."""
        self._file.close()


class BodyMaker:
    """Encodes asks into a spool."""

    def __init__(self, config: BenchConfig, server: ServerFacts, source: PictureSource, spool: Spool) -> None:
        self._config = config
        self._source = source
        self._spool = spool
        self._options = {"include_usage": True} | ({"continuous_usage_stats": True} if server.running_usage else {})
        self._model = server.model
        self._heads = dict[int, Span]()
        self._pictures = dict[int, tuple[Span, SentPicture]]()
        self._digests = dict[int, str]()

    @property
    def dataset(self) -> str:
        """SHA-256 over the digests of all pictures made so far, by their numbers."""
        digests = "".join(digest for _, digest in sorted(self._digests.items()))
        return hashlib.sha256(bytes.fromhex(digests)).hexdigest()

    def draw(self, specs: Iterable[PictureSpec]) -> Iterator[None]:
        """Makes the pictures, one per step: the long part, for whoever shows progress. Size by size, see PhotoMaker."""
        for spec in sorted(specs, key=lambda spec: (spec.width, spec.height)):
            picture = self._source.picture(spec)
            digest = self._digests[spec.number] = picture.sha256
            sent = SentPicture(picture.width, picture.height, len(picture.data), digest[:_SHA_CHARS])
            self._pictures[spec.number] = (self._spool.add(self._part(picture.mime, picture.data)), sent)
            yield

    def bodies(self, asks: Iterable[Ask]) -> list[Body]:
        """The bodies of requests whose pictures were drawn, for other processes to see."""
        bodies = [self._body(ask) for ask in asks]
        self._spool.flush()
        return bodies

    def _body(self, ask: Ask) -> Body:
        pictures = [self._pictures[number] for number in ask.pictures]
        tail = self._spool.add(msgspec.json.encode({"type": "text", "text": f"{ask.words}?"}) + b"]}]}")
        spans = (self._head(ask.output_len), *(span for span, _ in pictures), tail)
        return Body(spans, tuple(sent for _, sent in pictures))

    def _head(self, output_len: int) -> Span:
        """All fields but the content, which comes last; one per length of answer."""
        if output_len not in self._heads:
            fields: dict[str, object] = {
                "model": self._model,
                "stream": True,
                "stream_options": self._options,
                "temperature": 0,
                "max_tokens": output_len,
            }
            if self._config.ignore_eos:
                fields["ignore_eos"] = True
            start = msgspec.json.encode(fields).removesuffix(b"}")
            self._heads[output_len] = self._spool.add(start + b',"messages":[{"role":"user","content":[')
        return self._heads[output_len]

    def _part(self, mime: str, data: bytes) -> bytes:
        """One part of the content, with the comma behind it."""
        detail = b"" if self._config.detail is None else f',"detail":"{self._config.detail}"'.encode()
        url = f"data:{mime};base64,".encode() + pybase64.b64encode(data)
        return b'{"type":"image_url","image_url":{"url":"' + url + b'"' + detail + b"}},"
