"""vLLM's flags that are no settings: each takes its own words, and says what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsin import startup
from opsin.cli.flags import read
from opsin.cli.main import main, parse
from opsin.core.errors import ConfigError
from opsin.llm.options import to_settings
from opsin.settings import Configuration
from opsin.vllm_flags import FLAGS, Takes


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def configured(*words: str) -> Configuration:
    return read(parse(["serve", *words, "demo"]))


def problems(*words: str) -> list[str]:
    return [problem.text for problem in startup.problems(configured(*words))]


def notices(*words: str) -> list[str]:
    return list(startup.notices(configured(*words)))


def test_each_takes_its_own_words() -> None:
    behind = {Takes.NOTHING: [], Takes.ONE: ["x"], Takes.SEVERAL: ["x", "y"]}
    spelled = [(flag, name) for flag in FLAGS for name in flag.names]
    found = configured(*(word for flag, name in spelled for word in (name, *behind[flag.takes])), "--port", "0")
    assert found.settings.model == "demo"
    expected = [(flag, name, " ".join(behind[flag.takes]) or True) for flag, name in spelled]
    assert [(stated.flag, stated.name, stated.value) for stated in found.vllm] == expected
    told = [*(problem.text for problem in startup.problems(found)), *startup.notices(found)]
    assert {flag.note for flag in FLAGS} == {note for note in (flag.note for flag in FLAGS) if note in "\n".join(told)}


def test_flags_with_one_reason_are_told_together() -> None:
    ignored = ("--enforce-eager", "--max-num-partial-prefills", "2", "-O3", "--seed=7", "--compilation-config", "{}")
    assert notices(*ignored) == [
        "--enforce-eager, -O, --compilation-config: ignored; nothing is compiled or captured here",
        "--max-num-partial-prefills: ignored; prompts are always cut at --max-num-batched-tokens",
        "--seed: ignored; sampling is seeded by 'seed' of the request alone",
    ]
    (text,) = problems("--enable-lora", "--lora-modules", "a=b", "c=d", "--max-loras", "2")
    assert text.startswith("--enable-lora, --lora-modules a=b c=d, --max-loras 2: LoRA adapters are not served")


@pytest.mark.parametrize(
    "words",
    [
        ["--pipeline-parallel-size", "1"],
        ["-tp", "1"],
        ["--no-enable-lora"],
        ["--hf-overrides", "{}"],
        ["--generation-config=auto"],
        ["--load-format", "safetensors"],
        ["--no-enable-log-requests"],
    ],
)
def test_what_asks_for_nothing_is_nothing(words: list[str]) -> None:
    assert (problems(*words), notices(*words)) == ([], [])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (['--media_io_kwargs={"video": {"num_frames": 40}}'], '--media-io-kwargs {"video": {"num_frames": 40}}: '),
        (["--media-io-kwargs.video.num_frames", "512"], "--media-io-kwargs.video.num_frames 512: "),
        (["--hf-overrides.num_layers=2"], "--hf-overrides.num_layers 2: "),
        (["-pp=2"], "-pp 2: "),
        (["--generation-config", "x" * 100], f"--generation-config {'x' * 60}…: "),
    ],
)
def test_spellings(words: list[str], told: str) -> None:
    (text,) = problems(*words)
    assert text.startswith(told)


def test_in_front_of_a_server_only_its_own_flags_count() -> None:
    upstream = ("--upstream", "http://127.0.0.1:1")
    assert problems(*upstream, "--enable-lora", "--uds", "/run/x") == [
        "--uds /run/x: put a proxy with that in front of opsin"
    ]
    assert notices(*upstream, "--enable-lora", "--tool-call-parser", "hermes") == [
        "no effect with engine upstream, which runs no model here: --enable-lora, --tool-call-parser",
    ]


def managed(*words: str) -> tuple[str, ...]:
    return read(parse(["serve", "org/model", "--engine", "vllm", *words])).settings.managed.arguments


def test_an_engine_that_opsin_starts_gets_them_as_they_stand_and_unknown_ones_too() -> None:
    words = ("--enforce-eager", "--brand-new", "7", "x", "-tp", "2", "--hf-overrides.a_b", "1", "-O", "3", "--last")
    assert managed(*words) == words
    assert managed("--enforce_eager", "--brand_new.a_b=7", "-pp=2", "-O3") == (
        *("--enforce-eager", "--brand-new.a_b", "7", "-pp", "2", "-O", "3"),
    )
    assert managed("--brand-new=-7", "--no-enable-lora") == ("--brand-new=-7", "--no-enable-lora")


def test_words_of_the_file_come_first(tmp_path: Path) -> None:
    (tmp_path / "opsin.toml").write_text('engine = "vllm"\n[managed]\narguments = ["--seed", "1"]')
    found = read(parse(["serve", "org/model", "--seed", "2"]))
    assert found.settings.managed.arguments == ("--seed", "1", "--seed", "2")


def test_from_python_too() -> None:
    settings = to_settings(
        {"model": "org/model", "engine": "vllm", "engine_program": "true", "enforce_eager": True, "seed": 7}
    )
    assert settings.managed.arguments == ("--enforce-eager", "--seed", "7")


def test_help_does_not_drown_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    told = capsys.readouterr().out
    assert "--enforce-eager" not in told
    assert "vLLM's other flags are taken too" in told


def test_the_same_from_python(caplog: pytest.LogCaptureFixture) -> None:
    to_settings({"enforce_eager": True, "seed": 0, "tensor_parallel_size": 1, "hf_overrides": {}, "swap_space": None})
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["enforce_eager", "seed"]
    with pytest.raises(ConfigError, match=r'^media_io_kwargs \{"image": 5\}: pictures are always read'):
        to_settings({"media_io_kwargs": {"image": 5}})
