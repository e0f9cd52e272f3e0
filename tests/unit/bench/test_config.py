"""Every value is judged, and all that is wrong is told at once."""

from __future__ import annotations

from typing import Any

import pytest

from opsin.bench.config import BenchConfig, CacheKind, Count, checked
from opsin.core.errors import ConfigError

URL = "http://127.0.0.1:8000"


def of(**values: Any) -> BenchConfig:
    return checked({"url": URL, **values})


def test_texts_of_the_command_line() -> None:
    config = of(
        images="1-4",
        resolution="512x512:0.5,1920x1080:0.25,64x32",
        format="webp:70",
        cache="mixed:20:1.1",
        goodput=["ttft:2000", "tpot:50"],
        request_rate=["0.5", "2"],
        num_prompts="7",
    )
    assert config.images == Count(low=1, high=4)
    assert [str(one) for one in config.resolution] == ["512x512:0.5", "1920x1080:0.25", "64x32:1"]
    assert (str(config.format), config.format.mime) == ("webp:70", "image/webp")
    assert (config.cache.kind, config.cache.unique, config.cache.exponent) == (CacheKind.MIXED, 20, 1.1)
    assert [str(slo) for slo in config.goodput] == ["ttft:2000", "tpot:50"]
    assert (config.levels, config.is_open_loop) == ((0.5, 2.0), True)


@pytest.mark.parametrize(
    ("text", "said"),
    [("cold", "cold"), ("warm", "warm:8"), ("warm:3", "warm:3"), ("mixed", "mixed:8:1"), ("mixed:5", "mixed:5:1")],
)
def test_cache_states(text: str, said: str) -> None:
    assert str(of(cache=text).cache) == said


def test_a_default_run_is_one_request_at_once() -> None:
    assert (of().levels, of().is_open_loop) == ((1,), False)


def test_it_survives_its_own_dump_without_the_key() -> None:
    config = of(api_key="sk-secret", cache="warm:2", images="0-2", goodput=["e2el:9"], picture_dir="pictures")
    dumped = config.without_secrets()
    assert "sk-secret" not in str(dumped)
    assert BenchConfig.model_validate(dumped) == config.model_copy(update={"api_key": None})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"url": "127.0.0.1:8000"}, "expected a URL such as http://127.0.0.1:8000, got '127.0.0.1:8000'"),
        ({"url": "http://me:pw@host"}, "the URL may not hold a user or password: give a key with --api-key"),
        ({"images": "many"}, "--images: expected a number or a range such as 1-4, got 'many'"),
        ({"images": "4-1"}, "--images: the first number may not be larger than the second"),
        (
            {"resolution": "512"},
            "--resolution: expected WIDTHxHEIGHT:SHARE with commas between, e.g. 512x512:0.5,1920x1080:0.5, got '512'",
        ),
        ({"format": "png:3"}, "--format: PNG has no quality"),
        ({"cache": "hot"}, "--cache: expected cold, warm, warm:K, or mixed:K:S, got 'hot'"),
        ({"cache": "warm", "images": "0"}, "--cache warm:8 needs pictures, and --images is 0"),
        ({"num_prompts": 0}, "--num-prompts: Input should be greater than or equal to 1"),
    ],
)
def test_one_mistake(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        of(**values)
    assert caught.value.message == message


def test_a_cap_on_an_open_loop_is_refused() -> None:
    with pytest.raises(ConfigError, match="a cap on arrivals hides the wait in front of it"):
        of(max_concurrency=[1], request_rate=[1])


def test_a_closed_loop_by_duration_needs_a_number() -> None:
    with pytest.raises(ConfigError, match="all pictures are made before the start"):
        of(duration_s=5)
    assert of(duration_s=5, request_rate=[1]).num_prompts is None


def test_everything_wrong_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        of(images="x", format="bmp", output_len=0)
    assert caught.value.message.startswith("3 problems")
    assert all(flag in caught.value.message for flag in ("--images", "--format", "--output-len"))
