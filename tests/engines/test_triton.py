"""A real Triton behind opsin: an ensemble with a decoupled step, and a model with the vLLM backend's declaration.

Its Python backend runs both, as the wheel carries no other.
"""

from __future__ import annotations

import itertools
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import openai
import pytest
from openai import OpenAI
from PIL import Image

from opsin.testing.server_process import ServerProcess
from tests.conftest import client_of
from tests.corpus.pictures import data_url, idat, ihdr, png
from tests.engines.conftest import START_TIMEOUT_S
from tests.engines.processes import EngineProcess
from tests.engines.programs import triton

SOON_S = 20.0
MAX_SLOW = 1000  # tokens of the model "prompted" that nobody stops


@dataclass(frozen=True, slots=True)
class Asked:
    """The server, and the client and address of the opsin in front of its ensemble."""

    engine: EngineProcess
    client: OpenAI
    url: str


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    folder = tmp_path_factory.mktemp("triton")
    with EngineProcess(triton(folder), folder / "engine.log") as engine:
        engine.start(START_TIMEOUT_S)
        yield engine


@pytest.fixture(scope="module")
def ensemble(engine: EngineProcess) -> Iterator[Asked]:
    with ServerProcess("--upstream", engine.grpc_url, "--upstream-model", "vlm") as server:
        url = server.until_ready()
        with client_of(url) as client:
            yield Asked(engine, client, url)


@pytest.fixture(scope="module")
def prompted(engine: EngineProcess) -> Iterator[OpenAI]:
    flags = ("--model", "demo", "--upstream", engine.grpc_url, "--upstream-model", "prompted")
    with ServerProcess(*flags) as server, client_of(server.until_ready()) as client:
        yield client


def test_an_ensemble_answers_a_text(ensemble: Asked) -> None:
    answer = ensemble.client.chat.completions.create(model="vlm", messages=about("hello"))
    assert answer.choices[0].message.content == "hello "
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("num_pictures", [1, 4])
def test_an_ensemble_streams_pictures_in_order(ensemble: Asked, num_pictures: int) -> None:
    pictures = [picture(size) for size in range(8, 8 + num_pictures)]
    expected = [*(f"picture of {len(one)} bytes " for one in pictures), "what is it "]
    messages = about("what is it", *pictures)
    whole = ensemble.client.chat.completions.create(model="vlm", messages=messages)
    stream = ensemble.client.chat.completions.create(model="vlm", messages=messages, stream=True)
    texts = [chunk.choices[0].delta.content for chunk in stream if chunk.choices[0].delta.content]
    assert texts == expected
    assert whole.choices[0].message.content == "".join(expected)


def test_a_model_is_told_that_nobody_waits(prompted: OpenAI) -> None:
    """A decoupled model; the steps of an ensemble are not told by this Triton."""
    stream = prompted.chat.completions.create(model="prompted", messages=about("slowly"), stream=True)
    assert len(list(itertools.islice(stream, 5))) == 5
    stream.close()
    left_at = time.monotonic()
    answer = prompted.chat.completions.create(model="prompted", messages=about("how many"))
    told = answer.choices[0].message.content or ""
    print(f"{told}of {MAX_SLOW}, {time.monotonic() - left_at:.1f} s after leaving")
    assert int(told.split()[0]) < MAX_SLOW


def test_a_picture_over_the_limits_never_reaches_it(ensemble: Asked) -> None:
    too_large = png(ihdr(40_000, 40_000), idat([bytes(3)]))
    with pytest.raises(openai.APIStatusError) as caught:
        ensemble.client.chat.completions.create(model="vlm", messages=about("what", too_large))
    assert (caught.value.status_code, caught.value.code) == (413, "media_too_large")


def test_the_vllm_backends_inputs_arrive_and_its_outputs_are_read(prompted: OpenAI) -> None:
    messages = about("what is it", picture(8), picture(9))
    answer = prompted.chat.completions.create(model="prompted", messages=messages, max_tokens=7, temperature=0)
    assert answer.choices[0].message.content == r"2 places b'\x89PNG' b'\x89PNG' ['max_tokens', 'temperature']"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert answer.usage.prompt_tokens > 0


def test_the_vllm_backends_refusal_of_a_long_prompt_is_typed(prompted: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        prompted.chat.completions.create(model="prompted", messages=about("word " * 1000))
    assert caught.value.code == "context_length_exceeded"


def test_a_server_that_is_killed_and_comes_back(ensemble: Asked) -> None:
    stream = ensemble.client.chat.completions.create(model="vlm", messages=about("slowly"), stream=True)
    assert len(list(itertools.islice(stream, 5))) == 5
    ensemble.engine.kill()
    with pytest.raises(openai.APIError) as in_band:
        list(stream)
    assert in_band.value.code == "upstream_truncated"
    with pytest.raises(openai.InternalServerError) as refused:
        ensemble.client.chat.completions.create(model="vlm", messages=about("hello"))
    assert refused.value.status_code == 503
    assert refused.value.code in ("upstream_unavailable", "engine_unavailable")  # the second when a look came before it
    ensemble.engine.start(START_TIMEOUT_S)
    assert _ready(ensemble)
    answer = ensemble.client.chat.completions.create(model="vlm", messages=about("hello"))
    assert answer.choices[0].message.content == "hello "


def about(text: str, *pictures: bytes) -> list[Any]:
    parts = [{"type": "image_url", "image_url": {"url": data_url(one)}} for one in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def picture(size: int) -> bytes:
    file = BytesIO()
    Image.new("RGB", (size, size), (255, size * 20, 0)).save(file, "PNG")
    return file.getvalue()


def _ready(asked: Asked) -> bool:
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{asked.url}/ready") as response:
                return response.status == 200
        except urllib.error.HTTPError:
            time.sleep(0.2)
    return False
