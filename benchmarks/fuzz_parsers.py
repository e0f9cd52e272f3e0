"""What the fuzzer tries on the code that reads strangers' bytes and URLs, in its own process.

Each :class:`Target` draws inputs by a hypothesis strategy and says what became of one: a value, or the code of a
documented error. Whatever else happens, a wrong value or a second of CPU time, is a finding.
"""

from __future__ import annotations

import json
import random
import re
import string
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from yarl import URL

from opsin.core.errors import Code, OpsinError
from opsin.media import data_url
from opsin.media.fetch_config import FetchConfig
from opsin.media.header import read_header
from opsin.media.hosts import parse_host
from opsin.media.lift import MIN_URL_BYTES, lift
from opsin.media.policy import FetchPolicy
from opsin.media.policy import Target as FetchTarget
from opsin.media.types import ImageFormat
from tests.corpus.mutations import MUTATORS, originals

MAX_CPU_S = 1.0
"""Of one call. The longest that was seen took a hundredth of it."""
EXAMPLES_PER_ROUND = 200
GOOD = "good"
ALL = tuple(ImageFormat)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that must not have done what it did, as small as hypothesis could make it."""

    kind: str
    what: str
    example: str


@dataclass(frozen=True, slots=True)
class Target(Generic[T]):
    """One piece of code. ``tried`` returns the outcome; it raises AssertionError for a wrong value."""

    name: str
    inputs: st.SearchStrategy[T]
    tried: Callable[[T], str]


@dataclass(slots=True)
class Tried:
    """Outcomes by kind, and what was found."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    findings: list[Finding] = field(default_factory=list[Finding])


def fuzz(targets: Sequence[Target[object]], chance: random.Random, seconds: float) -> Tried:
    """Goes round the targets until the time is over; a target with a finding is left out from then on."""
    tried = Tried({target.name: Counter() for target in targets})
    end, left = time.monotonic() + seconds, list(targets)
    while left and time.monotonic() < end:
        target = left.pop(0)
        finding = _round(target, chance.randrange(2**32), tried.outcomes[target.name], end)
        if finding is None:
            left.append(target)
        else:
            tried.findings.append(finding)
    return tried


def _round(target: Target[T], number: int, outcomes: Counter[str], end: float) -> Finding | None:
    def once(value: T) -> None:
        if time.monotonic() < end:
            began_s = time.thread_time()
            outcomes[target.tried(value)] += 1
            assert time.thread_time() - began_s < MAX_CPU_S, "too slow"

    quiet = settings(
        max_examples=EXAMPLES_PER_ROUND,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=tuple(HealthCheck),  # pyright: ignore[reportArgumentType] its metaclass hides the type
    )
    try:
        seed(number)(quiet(given(target.inputs)(once)))()
    except Exception as error:
        example = "\n".join(getattr(error, "__notes__", ()))
        return Finding(target.name, f"{type(error).__name__}: {error}", example)
    return None


def outcome_of(call: Callable[[], None]) -> str:
    """``good``, or the code of a documented error."""
    try:
        call()
    except OpsinError as error:
        assert error.code in Code
        assert error.message.isprintable()
        assert len(error.message) < 300
        return error.code
    return GOOD


def parser_targets() -> tuple[Target[object], ...]:
    """All that is tried."""
    return tuple(_headers()) + tuple(_data_urls()) + tuple(_urls())


# Pictures


def _headers() -> Iterator[Target[object]]:
    files = [data for image_format in ImageFormat for data in originals(image_format)]
    mutators = st.lists(st.sampled_from(MUTATORS), min_size=1, max_size=3)
    yield Target("header: damaged file", st.builds(_mutated, st.sampled_from(files), mutators, st.integers(0)), _header)
    starts = st.sampled_from([data[:size] for data in files for size in (4, 8, 12, 16, 32, 64)])
    behind_a_start = st.tuples(starts, st.lists(st.one_of(st.binary(max_size=64), starts), max_size=8))
    yield Target("header: chance after a good start", behind_a_start.map(lambda t: t[0] + b"".join(t[1])), _header)
    spliced = st.builds(_spliced, st.sampled_from(files), st.sampled_from(files), st.floats(0, 1), st.floats(0, 1))
    yield Target("header: two files in one", spliced, _header)
    yield Target("header: chance", st.binary(max_size=256), _header)


def _mutated(data: bytes, mutators: Sequence[Callable[[random.Random, bytearray], None]], number: int) -> bytes:
    chance, damaged = random.Random(number), bytearray(data)
    for mutate in mutators:
        if len(damaged) > 8:
            mutate(chance, damaged)
    return bytes(damaged)


def _spliced(first: bytes, second: bytes, end: float, start: float) -> bytes:
    return first[: int(len(first) * end)] + second[int(len(second) * start) :]


def _header(data: object) -> str:
    assert isinstance(data, bytes)
    outcomes = [outcome_of(partial(_read_header, data, accepted)) for accepted in ((ImageFormat.PNG,), ALL)]
    return outcomes[-1]


def _read_header(data: bytes, accepted: tuple[ImageFormat, ...]) -> None:
    header = read_header(data, "p", accepted)
    assert header.format in accepted
    assert min(header.size.width, header.size.height, header.frames) >= 1
    assert 1 <= header.orientation <= 8


# Data URLs


_BASE64 = st.binary(max_size=40).map(lambda data: data_url.write("image/png", data).partition(",")[2])
_DATA_PIECES = st.one_of(
    st.sampled_from(["data:", "DATA:", "image/png", ";base64", ";BASE64", ",", ";", "=", "==", "AA", "%2B", "\n", " "]),
    _BASE64,
    st.text(max_size=6),
)
_LONG_PIECES = st.one_of(
    st.sampled_from([*"\\/\"'{}[]:,=\n", "\\u002B", '\\"', "\ud800", "é"]),
    st.integers(1, 3 * MIN_URL_BYTES).map(lambda size: "A" * size),
    _BASE64,
)


def _data_urls() -> Iterator[Target[object]]:
    pieces = st.lists(_DATA_PIECES, max_size=10).map("".join)
    yield Target("data URL: pieces", pieces, _data_url)
    likely = st.builds("data:{};base64,{}".format, st.text(max_size=8), pieces)
    yield Target("data URL: behind a good start", likely, _data_url)
    keys = st.sampled_from(["url", "image_url", "URL", "text", 'a\\"url', "\\u0075rl"])
    value = st.lists(_LONG_PIECES, max_size=5).map(lambda pieces: "data:image/png;base64," + "".join(pieces))
    raw = st.lists(st.builds('"{}": "{}"'.format, keys, value), max_size=3).map(lambda all: "{" + ", ".join(all) + "}")
    written = st.dictionaries(keys, value, max_size=3).map(json.dumps)
    yield Target("data URL: lifted out of a body", st.one_of(raw, written), _lift)


def _data_url(url: object) -> str:
    assert isinstance(url, str)
    return outcome_of(partial(_parse_data_url, url))


def _parse_data_url(url: str) -> None:
    data = data_url.parse(url, "p", 100)
    digits = re.sub(r"[ \t\n\r\f=]", "", url.partition(",")[2])
    assert data == b64decode(digits + "=" * (-len(digits) % 4), validate=True)
    assert len(data) <= 100


def _lift(text: object) -> str:
    assert isinstance(text, str)
    body = text.encode("utf-8", "surrogatepass")
    lifted = lift(body, "marker", 2 * MIN_URL_BYTES, ALL)
    try:
        json.loads(body)
    except ValueError:
        return "not JSON"
    json.loads(lifted.body)
    return f"{min(len(lifted.media), 1)} lifted"


# URLs


_ALLOWED = "images.example.com"
_POLICY = FetchPolicy(
    FetchConfig(
        allowed_media_domains=(_ALLOWED, f"*.{_ALLOWED}", "127.0.0.1", "bücher.example"),
        allow_plain_http=True,
        allow_ip_literals=True,
        allowed_ports=(8080,),
    )
)
_PUBLIC = FetchPolicy(FetchConfig(allow_public_https=True, allow_plain_http=True, allow_ip_literals=True))
_SOURCE = FetchTarget("https", parse_host(_ALLOWED), 443, "/a/b?c")

_HOST_PIECES = st.one_of(
    st.sampled_from((_ALLOWED, "example", ".", "..", "-", "_", "xn--", "xn--bcher-kva", "bücher", "ß", "。", "\u200d")),
    st.sampled_from(("127.0.0.1", "0x7f", "017700000001", "2130706433", "1", "[", "]", "::1", "::ffff:127.0.0.1")),
    st.sampled_from(("İ", "\u212a", "%25eth0", "%2e")),
    st.text(string.ascii_lowercase + string.digits, max_size=5),
    st.text(max_size=2),
)
_HOSTS = st.lists(_HOST_PIECES, min_size=1, max_size=5).map("".join)
_URL_PIECES = st.one_of(
    st.sampled_from(("http://", "https://", "HTTPS://", "//", "/", "\\", "?", "#", "@", ":", "file:", "/../")),
    st.sampled_from((":80", ":443", ":8080", ":0", ":65536", "%00", "%0d%0a", "\r\n", "\t", " ", "%", "%zz")),
    st.sampled_from(("user:secret@", "é", "\ud800", "\u2028")),
    _HOST_PIECES,
)


def _urls() -> Iterator[Target[object]]:
    tail = st.lists(_URL_PIECES, max_size=6).map("".join)
    scheme = st.sampled_from(["http://", "https://"])
    allowed = st.sampled_from([_ALLOWED, f"a.{_ALLOWED}", "127.0.0.1", "bücher.example"])
    yield Target("URL: pieces", tail, _url)
    yield Target("URL: behind a scheme", st.builds("{}{}{}".format, scheme, _HOSTS, tail), _url)
    yield Target("URL: behind an allowed host", st.builds("{}{}{}".format, scheme, allowed, tail), _url)
    yield Target("URL: redirect", st.one_of(tail, st.builds("//{}{}".format, allowed, tail)), _redirect)
    yield Target("URL: host", _HOSTS, _host)


def _url(url: object) -> str:
    text = str(url)
    outcomes = [outcome_of(lambda policy=policy: _check(policy.target(text), policy)) for policy in (_PUBLIC, _POLICY)]
    return outcomes[-1]


def _redirect(location: object) -> str:
    assert isinstance(location, str)
    return outcome_of(lambda: _check(_POLICY.redirect(_SOURCE, location), _POLICY))


def _check(target: FetchTarget, policy: FetchPolicy) -> None:
    """What is allowed is what the operator listed, in one form, and the fetch's client reads it alike."""
    assert policy.target(target.url) == target
    read = URL(target.url, encoded=True)
    assert (read.scheme, read.raw_host, read.port) == (target.scheme, target.host.name, target.port)
    assert read.raw_path_qs == target.path
    assert read.user is None
    assert target.url.isascii()
    assert target.url.isprintable()
    if policy is _POLICY:
        name = target.host.name
        assert name in (_ALLOWED, "127.0.0.1", "xn--bcher-kva.example") or name.endswith(f".{_ALLOWED}")


def _host(text: object) -> str:
    assert isinstance(text, str)
    try:
        host = parse_host(text)
    except ValueError as error:
        assert str(error).startswith("its host ")
        return "no host"
    assert parse_host(host.in_url) == host
    assert host.name.isascii()
    return GOOD
