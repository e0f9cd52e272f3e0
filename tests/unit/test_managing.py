"""From settings to what an engine is asked: what nobody stated is left to it, and what it cannot heed is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import opsin.demo
from opsin import managing, startup
from opsin.settings import Configuration, Settings, configuration
from opsin.sources import Given, flatten
from opsin.upstream_model import stated_model

DEMO = Path(opsin.demo.__file__).parent / "model"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def configured(**values: Any) -> Configuration:
    stated = {"model": "org/model", "engine": "vllm", **values}
    return configuration({path: Given(value, "code", path) for path, value in flatten(Settings, stated)})


def test_what_nobody_stated_is_left_to_the_engine() -> None:
    serving = managing.serving(configured().settings)
    assert (serving.model, serving.names, serving.num_images) == ("org/model", ("org/model",), 16)
    assert (serving.dtype, serving.max_num_seqs, serving.max_model_len, serving.mm_processor_kwargs) == (None,) * 4
    serving = managing.serving(configured(local={"dtype": "auto", "max_num_seqs": 1}).settings)
    assert (serving.dtype, serving.max_num_seqs) == ("auto", 1)


def test_the_demo_model_is_a_folder_under_its_own_name() -> None:
    serving = managing.serving(configured(model="demo").settings)
    assert (serving.model, serving.names) == (str(DEMO), ("demo",))


def test_pictures_are_capped_by_what_is_stated_or_by_half_of_the_length() -> None:
    model = "Qwen/Qwen2.5-VL-7B-Instruct"
    by_length = managing.serving(configured(model=model, max_model_len=8192).settings)
    assert by_length.mm_processor_kwargs == {"max_pixels": 4096 * 28**2}
    stated = configured(model=f"{model}-AWQ", max_model_len=8192, gateway={"max_image_tokens": 1000})
    assert managing.serving(stated.settings).mm_processor_kwargs == {"max_pixels": 1000 * 28**2}
    assert managing.serving(configured(model=model).settings).mm_processor_kwargs is None
    own = configured(model=model, max_model_len=8192, mm_processor_kwargs={"max_pixels": 9000})
    assert managing.serving(own.settings).mm_processor_kwargs == {"max_pixels": 9000}
    split = configured(model=model, max_model_len=8192, mm_processor_kwargs={"min_pixels": 5000})
    assert managing.serving(split.settings).mm_processor_kwargs == {"max_pixels": 4096 * 28**2, "min_pixels": 5000}
    assert managing.serving(configured(model="demo", max_model_len=64).settings).mm_processor_kwargs is not None


def test_a_cap_is_for_engines_that_heed_it(tmp_path: Path) -> None:
    model = "Qwen/Qwen2.5-VL-7B-Instruct"
    assert managing.capped(configured(model=model, max_model_len=8192).settings).mm_processor_kwargs.max_pixels
    other = configured(model=model, max_model_len=8192, engine="llama.cpp").settings
    assert managing.capped(other) is other


def test_a_folder_that_only_the_engine_reads_is_no_reason_not_to_start(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    assert stated_model(configured(model=str(tmp_path), engine="llama.cpp").settings) is None


def test_a_missing_program_says_how_to_get_it() -> None:
    (problem,) = startup.problems(configured(managed={"program": "/no/such/vllm --wait"}))
    assert problem.text == (
        "engine vllm: there is no program /no/such/vllm; pip install vllm, or say where it is: "
        "--engine-program /path/to/it"
    )
    assert startup.problems(configured(managed={"program": "/no/such/vllm"}), starts=False) == []
    assert startup.problems(configured(managed={"program": "env vllm"})) == []


@pytest.mark.parametrize("program", ["", "  ", "'open"])
def test_a_program_that_is_none(program: str) -> None:
    (problem,) = startup.problems(configured(managed={"program": program}), starts=False)
    assert problem.text.startswith("managed.program: ")


def test_what_has_no_effect_is_said() -> None:
    found = configured(
        revision="a" * 40,
        local={"device": "cuda", "dtype": "auto"},
        mm_processor_kwargs={"max_pixels": 9000},
        upstream={"url": "http://127.0.0.1:1"},
        managed={"arguments": ["--uds", "/x", "--brand-new"]},
        media={"limit_mm_per_prompt": {"video": 1}},
    )
    assert list(startup.notices(found)) == [
        "--uds: not given to vllm; opsin alone reaches the engine, by HTTP on a loopback port",
        "--limit-mm-per-prompt: videos are not served yet: send their frames as pictures; vllm is told 0",
        "no effect with engine vllm: local.device, upstream.url",
    ]
    assert startup.problems(found, starts=False) == []


def test_a_model_that_is_not_pinned_is_said() -> None:
    (notice,) = startup.notices(configured())
    assert notice.startswith("model org/model is not pinned")
    assert list(startup.notices(configured(model=str(DEMO)))) == []
    assert list(startup.notices(configured(model="smolvlm:256m", engine="ramalama"))) == []


def test_secrets_are_not_printed() -> None:
    printed = managing.printed(configured(hub={"token": "hf-geheim", "offline": True}).settings)
    assert "HF_TOKEN='<secret>'" in printed
    assert "HF_HUB_OFFLINE=1" in printed
    assert "geheim" not in printed
