"""The ``vllm serve`` lines of the documents that opsin was ordered from, with only the program's name changed.

The parser takes each of them as it stands. What this version cannot do is refused afterwards, all at once, in words.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from opsin import startup
from opsin.cli.flags import read
from opsin.cli.main import main, parse
from opsin.settings import Configuration

PINNED_WITH_DOMAINS = """\
VLLM_MEDIA_URL_ALLOW_REDIRECTS=0 \\
vllm serve HuggingFaceTB/SmolVLM-256M-Instruct \\
  --revision 7e3e67edbbed1bf9888184d9df282b700a323964 \\
  --limit-mm-per-prompt '{"image": 4}' \\
  --allowed-media-domains images.example.com
"""

ONE_GPU = """\
# Qwen2.5-VL-7B 단일 GPU 서빙
vllm serve Qwen/Qwen2.5-VL-7B-Instruct \\
  --host 0.0.0.0 \\
  --port 8000 \\
  --max-model-len 8192 \\
  --gpu-memory-utilization 0.92 \\
  --limit-mm-per-prompt '{"image": 4}' \\
  --dtype bfloat16 \\
  --enable-prefix-caching
"""

FOUR_GPUS = """\
# Qwen2.5-VL-72B 멀티 GPU 서빙 (ViT DP + LLM TP)
vllm serve Qwen/Qwen2.5-VL-72B-Instruct \\
  --host 0.0.0.0 \\
  --port 8000 \\
  --tensor-parallel-size 4 \\
  --mm-encoder-tp-mode data \\
  --max-model-len 16384 \\
  --gpu-memory-utilization 0.95 \\
  --limit-mm-per-prompt '{"image": 8}' \\
  --dtype bfloat16 \\
  --enable-prefix-caching
"""

EXPERTS = """\
# Qwen3-VL-235B-A22B MoE 서빙 (8 GPU 필수)
vllm serve Qwen/Qwen3-VL-235B-A22B-Instruct \\
  --host 0.0.0.0 \\
  --port 8000 \\
  --tensor-parallel-size 8 \\
  --mm-encoder-tp-mode data \\
  --enable-expert-parallel \\
  --max-model-len 32768 \\
  --gpu-memory-utilization 0.95 \\
  --limit-mm-per-prompt '{"image": 4, "video": 1}' \\
  --dtype bfloat16
"""

QUANTIZED = """\
# AWQ 양자화 모델로 서빙 (비전 인코더는 BF16 유지)
vllm serve Qwen/Qwen2.5-VL-72B-Instruct-AWQ \\
  --host 0.0.0.0 \\
  --port 8000 \\
  --tensor-parallel-size 2 \\
  --mm-encoder-tp-mode data \\
  --max-model-len 8192 \\
  --quantization awq \\
  --gpu-memory-utilization 0.95 \\
  --kv-cache-dtype fp8_e5m2 \\
  --enable-prefix-caching
"""

# What docker-compose.yml gives to the image of vLLM, whose entry point stands before it.
COMPOSED = """\
vllm serve
      --model Qwen/Qwen2.5-VL-72B-Instruct
      --tensor-parallel-size 4
      --mm-encoder-tp-mode data
      --max-model-len 16384
      --gpu-memory-utilization 0.95
"""


def words(shell: str) -> list[str]:
    """What a shell would give to ``opsin``, were it named in the place of ``vllm``."""
    everything = shlex.split(shell.replace("\\\n", ""), comments=True)
    return everything[everything.index("vllm") + 1 :]


def configured(shell: str, *more: str) -> Configuration:
    return read(parse([*words(shell), *more]))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_first_seeds_line() -> None:
    found = configured(PINNED_WITH_DOMAINS)
    settings = found.checked()
    assert settings.model == "HuggingFaceTB/SmolVLM-256M-Instruct"
    assert settings.revision == "7e3e67edbbed1bf9888184d9df282b700a323964"
    assert settings.media.limit_mm_per_prompt.image == 4
    assert settings.media.fetch.allowed_media_domains == ("images.example.com",)
    assert startup.problems(found) == []
    assert list(startup.notices(found)) == []


def test_one_gpu() -> None:
    found = configured(ONE_GPU, "--api-key", "k")
    settings = found.checked()
    assert (settings.gateway.host, settings.gateway.port, settings.max_model_len) == ("0.0.0.0", 8000, 8192)
    assert (settings.local.gpu_memory_utilization, settings.local.dtype) == (0.92, "bfloat16")
    assert startup.problems(found) == []
    assert [notice.partition(":")[0] for notice in startup.notices(found)] == ["--enable-prefix-caching"]


ATTACH = "let opsin start vLLM with it: --engine vllm, or attach opsin in front of one: --upstream URL"
EXPOSED = "--host 0.0.0.0 can be reached from other machines. Choose one: --api-key KEY"


@pytest.mark.parametrize(
    ("line", "refusals"),
    [
        (ONE_GPU, [(EXPOSED, "--no-auth")]),
        (
            FOUR_GPUS,
            [(EXPOSED, "--no-auth"), ("--tensor-parallel-size 4: the local engine runs on one device", ATTACH)],
        ),
        (
            EXPERTS,
            [
                ("--limit-mm-per-prompt: videos are not served yet", "send their frames as pictures"),
                (EXPOSED, "--no-auth"),
                ("--tensor-parallel-size 8, --enable-expert-parallel: the local engine runs on one device", ATTACH),
            ],
        ),
        (
            QUANTIZED,
            [
                (EXPOSED, "--no-auth"),
                ("--tensor-parallel-size 2: the local engine runs on one device", ATTACH),
                ("--kv-cache-dtype fp8_e5m2: the local engine keeps its KV cache in the model's dtype", ATTACH),
            ],
        ),
        (COMPOSED, [("--tensor-parallel-size 4: the local engine runs on one device", ATTACH)]),
    ],
)
def test_what_cannot_be_done_here_is_told_at_once_with_what_to_do(
    line: str, refusals: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(line)) == 1
    told = capsys.readouterr().err.replace("opsin: ", "").splitlines()
    if len(refusals) > 1:
        assert told.pop(0) == f"{len(refusals)} problems to solve before a start:"
    for text, (start, remedy) in zip(told, refusals, strict=True):
        assert text.removeprefix("  - ").startswith(start)
        assert remedy in text


def test_in_front_of_vllm_the_same_lines_start() -> None:
    for line in (ONE_GPU, FOUR_GPUS, QUANTIZED, COMPOSED):
        found = configured(line, "--no-auth", "--upstream", "http://127.0.0.1:8101")
        assert startup.problems(found) == []
        assert "no effect with engine upstream" in list(startup.notices(found))[-1]


EVERY_LINE = (PINNED_WITH_DOMAINS, ONE_GPU, FOUR_GPUS, EXPERTS, QUANTIZED, COMPOSED)


@pytest.mark.parametrize("line", EVERY_LINE)
def test_each_line_can_be_printed_as_a_command_of_vllm(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """That vLLM's own parser takes it is shown where vLLM is installed; here, that it knows every flag."""
    assert main([*words(line), "--engine", "vllm", "--print-command"]) == 0
    printed = capsys.readouterr().out
    command = shlex.split(printed)
    assert command[0] == "VLLM_MEDIA_URL_ALLOW_REDIRECTS=0"
    start = command.index("vllm") + 2
    used = {word.partition(".")[0] for word in command[start:] if word.startswith("-")}
    assert used - known_to_vllm() == set()
    mine = {word for word in words(line) if word.startswith("--")} - {"--host", "--port", "--model"}
    assert mine <= used
    assert command[start + 1 : start + 3] == ["--host", "127.0.0.1"]


def known_to_vllm() -> set[str]:
    """Written by ``tools/vllm_parser.py --dump`` with vLLM 0.32.0."""
    file = Path(__file__).parents[1] / "unit" / "engine_managed" / "vllm-0.32.0-flags.txt"
    return {name for line in file.read_text().splitlines() for name in line.partition("\t")[0].split()}


def test_the_first_line_as_vllm_gets_it(capsys: pytest.CaptureFixture[str]) -> None:
    main([*words(PINNED_WITH_DOMAINS), "--engine", "vllm", "--print-command"])
    command = shlex.split(capsys.readouterr().out)
    assert command[command.index("--revision") + 1] == "7e3e67edbbed1bf9888184d9df282b700a323964"
    assert command[command.index("--allowed-media-domains") + 1] == "opsin.invalid"  # opsin fetches, vLLM nothing


def test_a_picture_of_qwen_fits_into_the_length_that_its_line_states(capsys: pytest.CaptureFixture[str]) -> None:
    """Its own default is 16,384 tokens for one picture, which the lines' lengths do not hold."""
    for line, length in ((ONE_GPU, 8192), (FOUR_GPUS, 16384), (QUANTIZED, 8192), (COMPOSED, 16384)):
        main([*words(line), "--engine", "vllm", "--print-command"])
        command = shlex.split(capsys.readouterr().out)
        pixels = command[command.index("--mm-processor-kwargs.max_pixels") + 1]
        assert int(pixels) // 28**2 == length // 2
