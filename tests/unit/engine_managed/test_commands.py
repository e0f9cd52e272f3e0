"""What each program is told: safe whatever the operator adds, and nothing of the operator's own lost on the way."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from opsin.engine.managed.launch import LOOPBACK, NOWHERE, EngineProgram, Launch, Serving, launch, passed_in, shown
from opsin.engine.managed.llama_cpp import LLAMA_CPP
from opsin.engine.managed.ramalama import RAMALAMA
from opsin.engine.managed.registry import PROGRAMS
from opsin.engine.managed.sglang import SGLANG
from opsin.engine.managed.vllm import VLLM

PINNED = Serving(
    model="org/model",
    names=("model", "other"),
    num_images=4,
    revision="a" * 40,
    max_model_len=8192,
    max_num_seqs=2,
    max_image_tokens=1024,
    dtype="bfloat16",
    quantization="awq",
    device_memory_share=0.9,
    num_threads=3,
    trust_remote_code=True,
    chat_template="{{ messages }}",
    download_dir="/models",
    offline=True,
    hub_token=SecretStr("hf-geheim"),
    mm_processor_kwargs={"max_pixels": 802816},
)
BARE = Serving(model="org/model", names=("org/model",), num_images=0)


def started(engine: EngineProgram, serving: Serving, *arguments: str) -> Launch:
    return launch(engine, serving, (), arguments)


def after(words: Sequence[str], name: str) -> str:
    """The word behind a flag, which stands there once."""
    assert words.count(name) == 1, words
    return words[words.index(name) + 1]


def environment(one: Launch) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in one.environment.items()}


@pytest.mark.parametrize("engine", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("serving", [PINNED, BARE], ids=["all", "nothing"])
def test_every_engine_listens_on_loopback_alone(engine: EngineProgram, serving: Serving) -> None:
    one = started(engine, serving)
    assert one.words[: len(engine.program)] == engine.program
    assert after(one.words, "--host") == LOOPBACK
    assert after(one.words, "--port") == str(one.port)
    assert one.url == f"http://127.0.0.1:{one.port}"


@pytest.mark.parametrize("engine", PROGRAMS.values(), ids=PROGRAMS)
def test_no_secret_is_on_a_command_line(engine: EngineProgram) -> None:
    one, other = started(engine, PINNED), started(engine, PINNED)
    assert environment(one)["HF_TOKEN"] == "hf-geheim"
    assert environment(one)["HF_HUB_OFFLINE"] == "1"
    secrets = {"hf-geheim"}
    if engine.key_variable is not None:
        assert one.key is not None
        assert environment(one)[engine.key_variable] == one.key.get_secret_value()
        assert one.key != other.key
        secrets.add(one.key.get_secret_value())
    hidden = frozenset({"HF_TOKEN", engine.key_variable or ""})
    for text in (shlex.join(one.words), shown(one, hidden)):
        assert not any(secret in text for secret in secrets)


@pytest.mark.parametrize("engine", PROGRAMS.values(), ids=PROGRAMS)
def test_what_contradicts_safety_stays_behind(engine: EngineProgram) -> None:
    for name in engine.overruled:
        one = started(engine, PINNED, "--first", "1", name, "9.9.9.9", f"{name}=9.9.9.9", "--last")
        assert "9.9.9.9" not in shlex.join(one.words)
        assert "--first" in one.words
        assert "--last" in one.words
    told = dict(engine.refusals(passed_in(["--host", "0.0.0.0", "--fine"])))
    assert [passed.words for passed in told] == [("--host", "0.0.0.0")]


flags = st.lists(
    st.tuples(st.from_regex(r"--x-[a-z]{1,6}", fullmatch=True), st.lists(st.sampled_from(["7", "-7", "a b", "{}"]))),
    max_size=5,
)


@given(flags)
def test_words_of_nobody_here_arrive_as_they_were(stated: list[tuple[str, list[str]]]) -> None:
    words = tuple(word for name, behind in stated for word in (name, *behind))
    assert started(VLLM, BARE, *words).words[-len(words) or None :] == words or not words
    assert started(SGLANG, BARE, *words).words[-len(words) or None :] == words or not words
    assert started(LLAMA_CPP, BARE, *words).words[-len(words) or None :] == words or not words
    assert started(RAMALAMA, BARE, *words).words[-len(words) - 1 : -1] == words


def test_vllm_is_told_everything() -> None:
    words = started(VLLM, PINNED).words
    assert words[:3] == ("vllm", "serve", "org/model")
    assert words[words.index("--served-model-name") + 1 :][:2] == ("model", "other")
    stated = {
        "--revision": "a" * 40,
        "--code-revision": "a" * 40,
        "--download-dir": "/models",
        "--chat-template": "{{ messages }}",
        "--max-model-len": "8192",
        "--max-num-seqs": "2",
        "--dtype": "bfloat16",
        "--quantization": "awq",
        "--gpu-memory-utilization": "0.9",
        "--allowed-media-domains": NOWHERE,
    }
    assert {name: after(words, name) for name in stated} == stated
    assert json.loads(after(words, "--limit-mm-per-prompt")) == {"image": 4, "video": 0, "audio": 0}
    assert after(words, "--mm-processor-kwargs.max_pixels") == "802816"
    assert {"--trust-remote-code", "--enable-prompt-tokens-details", "--enable-per-request-metrics"} < set(words)
    assert environment(started(VLLM, PINNED))["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"


def test_vllm_is_told_nothing_that_nobody_stated() -> None:
    words = started(VLLM, BARE).words
    assert "None" not in words
    assert not {
        "--revision",
        "--max-model-len",
        "--mm-processor-kwargs.max_pixels",
        "--dtype",
        "--trust-remote-code",
    } & set(words)
    assert json.loads(after(words, "--limit-mm-per-prompt"))["image"] == 0


def test_the_operators_own_cap_on_pictures_wins() -> None:
    words = started(VLLM, PINNED, "--mm-processor-kwargs", '{"max_pixels": 9}', "--disable-log-stats").words
    assert json.loads(after(words, "--mm-processor-kwargs")) == {"max_pixels": 9}
    assert "--mm-processor-kwargs.max_pixels" not in words
    assert "--enable-per-request-metrics" not in words  # which vLLM refuses beside --disable-log-stats
    words = started(VLLM, PINNED, "--mm-processor-kwargs.max_pixels", "9").words
    assert after(words, "--mm-processor-kwargs.max_pixels") == "9"


def test_keys_that_opsin_does_not_know_stand_beside_its_own() -> None:
    nested = Serving(model="m", names=("m",), num_images=1, mm_processor_kwargs={"size": {"longest_edge": 512}})
    words = started(VLLM, nested, "--mm-processor-kwargs.max_soft_tokens", "280").words
    assert after(words, "--mm-processor-kwargs.size.longest_edge") == "512"
    assert after(words, "--mm-processor-kwargs.max_soft_tokens") == "280"


def test_sglang_is_told_in_its_own_words() -> None:
    words = started(SGLANG, PINNED).words
    assert words[:4] == ("sglang", "serve", "--model-path", "org/model")
    stated = {
        "--served-model-name": "model",
        "--context-length": "8192",
        "--max-running-requests": "2",
        "--mem-fraction-static": "0.9",
        "--allowed-media-domains": NOWHERE,
    }
    assert {name: after(words, name) for name in stated} == stated
    assert json.loads(after(words, "--limit-mm-data-per-request")) == {"image": 4, "video": 0, "audio": 0}
    assert json.loads(after(words, "--mm-process-config")) == {"image": {"max_pixels": 802816}}


def test_llama_cpp_takes_files_with_their_projector(tmp_path: Path) -> None:
    for name in ("model-00001-of-00002.gguf", "model-00002-of-00002.gguf", "mmproj-model.gguf", "notes.txt"):
        (tmp_path / name).touch()
    first, projector = str(tmp_path / "model-00001-of-00002.gguf"), str(tmp_path / "mmproj-model.gguf")
    for model in (str(tmp_path), first):
        words = started(LLAMA_CPP, Serving(model=model, names=("m",), num_images=1)).words
        assert after(words, "--model") == first
        assert after(words, "--mmproj") == projector
    words = started(LLAMA_CPP, Serving(model=first, names=("m",), num_images=1), "-mm", "own.gguf").words
    assert "--mmproj" not in words
    words = started(LLAMA_CPP, Serving(model=first, names=("m",), num_images=0)).words
    assert "--no-mmproj" in words


def test_llama_cpp_is_told_in_its_own_words() -> None:
    words = started(LLAMA_CPP, PINNED).words
    stated = {
        "--hf-repo": "org/model",
        "--alias": "model,other",
        "--ctx-size": "16384",  # of two slots, which divide it
        "--parallel": "2",
        "--threads": "3",
        "--image-max-tokens": "1024",
        "--chat-template": "{{ messages }}",
    }
    assert {name: after(words, name) for name in stated} == stated
    assert {"--jinja", "--no-webui", "--no-slots"} < set(words)


def test_llama_cpp_says_what_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "empty").mkdir()

    def told(serving: Serving) -> str:
        (problem,) = LLAMA_CPP.problems(serving)
        return problem

    assert told(PINNED).startswith("--revision: ")
    assert told(Serving(model=str(tmp_path / "empty"), names=("m",), num_images=1)).endswith("makes one")
    assert told(Serving(model=str(tmp_path / "model.safetensors"), names=("m",), num_images=1)).endswith(".gguf files")


def test_ramalama_gets_one_word_for_its_runtime() -> None:
    words = started(RAMALAMA, PINNED, "--runtime-args", "-fa on", "--seed", "3").words
    assert words[:3] == ("ramalama", "--nocontainer", "serve")
    assert words[-3:] == ("--seed", "3", "org/model")
    assert after(words, "--webui") == "off"
    assert after(words, "--ctx-size") == "16384"
    (runtime,) = [word.partition("=")[2] for word in words if word.startswith("--runtime-args")]
    told = shlex.split(runtime)
    assert told[-2:] == ["-fa", "on"]
    assert after(told, "--alias") == "model,other"
    assert after(told, "--image-max-tokens") == "1024"
    assert {"--jinja", "--no-slots"} < set(told)


def test_ramalama_in_a_container_gets_the_keys_name() -> None:
    words = started(RAMALAMA, Serving(model="smolvlm", names=("smolvlm",), num_images=1, in_container=True)).words
    assert "--nocontainer" not in words
    assert after(words, "--env") == "LLAMA_API_KEY"


def test_the_program_may_be_another_one_with_words_before_it() -> None:
    one = launch(VLLM, BARE, ("taskset", "-c", "1", "/venv/bin/vllm"), ())
    assert one.words[:6] == ("taskset", "-c", "1", "/venv/bin/vllm", "serve", "org/model")
