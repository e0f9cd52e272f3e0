"""A real Triton with an ensemble of Python models: what an adapter for it will meet. opsin itself is not asked yet."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator

import pytest

from tests.engines.conftest import START_TIMEOUT_S
from tests.engines.processes import EngineProcess
from tests.engines.programs import triton


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    folder = tmp_path_factory.mktemp("triton")
    with EngineProcess(triton(folder), folder / "engine.log") as engine:
        engine.start(START_TIMEOUT_S)
        yield engine


def test_an_ensemble_with_a_decoupled_step_streams_in_order(engine: EngineProcess) -> None:
    images = [base64.b64encode(bytes(size)).decode() for size in (1, 2, 3, 4)]
    assert _generate(engine, "what is it", images) == [
        *(f"picture of {size} bytes " for size in (1, 2, 3, 4)),
        "what is it ",
    ]


def test_an_ensemble_takes_a_text_without_pictures(engine: EngineProcess) -> None:
    assert _generate(engine, "hello", []) == ["hello "]


def _generate(engine: EngineProcess, text: str, images: list[str]) -> list[str]:
    body = json.dumps({"text_input": text, "image": images}).encode()
    with urllib.request.urlopen(f"{engine.url}/v2/models/vlm/generate_stream", body) as response:
        events = [line.removeprefix(b"data: ") for line in response if line.startswith(b"data: ")]
    return [json.loads(event)["text_output"] for event in events]
