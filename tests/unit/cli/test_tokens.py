"""``opsin tokens``: pictures, sizes, requests and servers; the network is out of reach in all of them."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opsin.cli.main import main
from opsin.demo.examples import path
from opsin.protocol.response import TokenCount
from opsin.testing.scripted_origin import ScriptedOrigin, answer
from tests.corpus.pictures import data_url
from tests.integration.gateways import gateway
from tests.unit.vision.test_registry import GOLDEN, GOLDEN_IMAGE_TOKENS, SIZES

QWEN = "Qwen/Qwen2.5-VL-7B-Instruct"
SMOLVLM = "HuggingFaceTB/SmolVLM-256M-Instruct"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Hub that nobody reaches, and an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


def counted(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    status = main(["tokens", *words, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert status == (1 if answer["fits"] is False else 0)
    return answer


@pytest.mark.parametrize("model_id", [*GOLDEN, *GOLDEN_IMAGE_TOKENS])
def test_golden_values_from_the_command_line(capsys: pytest.CaptureFixture[str], model_id: str) -> None:
    answers = [counted(capsys, "--model", model_id, "--size", f"{size.width}x{size.height}") for size in SIZES]
    with_markers = tuple(answer["image_tokens"] + answer["marker_tokens"] for answer in answers)
    without = tuple(answer["image_tokens"] for answer in answers)
    assert (with_markers if model_id in GOLDEN else without) == (GOLDEN | GOLDEN_IMAGE_TOKENS)[model_id]


def test_several_sizes_are_one_request(capsys: pytest.CaptureFixture[str]) -> None:
    """In company LLaVA-OneVision sees one view of each."""
    words = ["--model", "llava-hf/llava-onevision-qwen2-7b-ov-hf", "--size", "1920x1080", "--size", "336x336"]
    assert counted(capsys, *words)["image_tokens"] == 2 * 730


@pytest.mark.parametrize(
    ("words", "image_tokens", "marker_tokens"),
    [
        ((QWEN, "--size", "1920x1080"), 2691, 2),
        ((SMOLVLM, "--size", "1024x1024"), 1088, 39),
        ((SMOLVLM, "--size", "1024x1024", "--detail", "low"), 64, 3),
        ((SMOLVLM, "--size", "1024x1024", "--size", "640X480"), 1088 + 832, 39 + 30),
        ((QWEN, "--size", "1920x1080", "--mm-processor-kwargs", '{"max_pixels": 200704}'), 252, 2),
    ],
)
def test_sizes(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], image_tokens: int, marker_tokens: int
) -> None:
    answer = counted(capsys, "--model", *words)
    assert (answer["image_tokens"], answer["marker_tokens"], answer["text_tokens"]) == (
        image_tokens,
        marker_tokens,
        None,
    )
    assert answer["fits"] is True
    assert answer["verified"] is True
    assert answer["source"]


def test_what_rests_on_unchecked_facts_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "zai-org/GLM-4.1V-9B-Thinking", "--size", "640x480"]
    assert counted(capsys, *words)["verified"] is False
    assert main(["tokens", *words]) == 0
    assert "nobody has checked" in capsys.readouterr().out


def test_cross_attention_is_shown_where_there_is_any(capsys: pytest.CaptureFixture[str]) -> None:
    llama = ["--model", "meta-llama/Llama-3.2-11B-Vision-Instruct", "--size", "1024x1024"]
    assert counted(capsys, *llama)["cross_attention_tokens"] == 4 * 1601
    assert main(["tokens", *llama]) == 0
    assert "6404" in capsys.readouterr().out
    assert "cross_attention_tokens" not in counted(capsys, "--model", QWEN, "--size", "640x480")


def test_what_does_not_fit_names_limit_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", QWEN, "--size", "1920x1080", "--max-image-tokens", "2690", "--over-budget", "reject"]
    answer = counted(capsys, *words)
    assert (answer["fits"], answer["image_tokens"]) == (False, 2691)
    assert answer["refusal"]["code"] == "too_many_image_tokens"
    assert "2691" in answer["refusal"]["message"]
    assert "2690 (max_image_tokens)" in answer["refusal"]["message"]
    assert main(["tokens", *words]) == 1
    assert "does not fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--size", "5000x5001"], "in total 25005000; the limit is 25000000 (max_image_pixels)"),
        (["--size", "8193x100"], "the limit on a side is 8192 (max_image_side)"),
        (["--size", "1x101"], "at most 100 times the other (max_aspect)"),
        (["--size", "9x9"] * 17, "17 pictures; the limit is 16"),
        (["--size", "4000x4000"] * 5, "take 320000000 bytes decoded; the limit is 256000000"),
    ],
)
def test_what_a_server_refuses_by_its_size_has_no_price(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["tokens", *words]) == 1
    printed = capsys.readouterr()
    assert told in printed.err
    assert not printed.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--max-image-tokens", "5", "--offline"], "--max-image-tokens, --offline: no effect beside --url"),
        (["--mm-processor-kwargs", '{"max_pixels": 16384}'], "--mm-processor-kwargs: no effect beside --url"),
        (["--estimate"], "--estimate: no effect beside --url"),
    ],
)
def test_what_a_server_decides_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    assert main(["tokens", str(path("receipt")), "--url", "http://127.0.0.1:9", *words]) == 1
    assert told in capsys.readouterr().err


def test_a_model_that_is_typed_wins_over_the_server_of_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = str(path("receipt").resolve())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "opsin.toml").write_text('[upstream]\nurl = "http://127.0.0.1:9"\n')
    assert counted(capsys, "--model", QWEN, "--size", "1920x1080")["image_tokens"] == 2691
    assert counted(capsys, "--model", "demo", picture)["image_tokens"] == 80
    assert main(["tokens", "--size", "640x480"]) == 1
    assert "a server counts pictures, and upstream.url in opsin.toml names one" in capsys.readouterr().err
    assert main(["tokens", "--model", QWEN, "--size", "640x480", "--url", "http://127.0.0.1:9"]) == 1
    assert "and --url names one; --model MODEL counts sizes here" in capsys.readouterr().err


def test_a_request_says_the_detail_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["tokens", "--request", str(tmp_path / "body.json"), "--detail", "low"]) == 1
    assert "--detail: the request says it of each picture" in capsys.readouterr().err


def test_what_would_be_scaled_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    answer = counted(capsys, "--model", QWEN, "--size", "4032x3024", "--max-model-len", "8192")
    (image,) = answer["images"]
    assert (answer["fits"], image["scaled"]) == (True, True)
    assert image["image_tokens"] + image["marker_tokens"] < 8192
    assert [warning["code"] for warning in answer["warnings"]] == ["image_downscaled"]


@pytest.mark.parametrize("wrong", ["1920*1080", "1920", "0x5", "5x-1", "x", "1920x1080x3", "٣x٣"])
def test_a_wrong_size_is_quoted(capsys: pytest.CaptureFixture[str], wrong: str) -> None:
    with pytest.raises(SystemExit):
        main(["tokens", f"--size={wrong}"])
    assert f"'{wrong}' is no size: width x height in pixels, as 1920x1080" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "nothing to count"),
        (["--request", "a.json", "--size", "1x1"], "name no others"),
        (["--request", "absent"], "absent"),
    ],
)
def test_words_that_make_no_question(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    assert main(["tokens", *words]) == 1
    assert told in capsys.readouterr().err


def test_shipped_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    answer = counted(capsys, str(path("receipt")), str(path("before")))
    assert [image["image_tokens"] for image in answer["images"]] == [80, 80]
    assert [image["picture"] for image in answer["images"]] == [str(path("receipt")), str(path("before"))]
    assert answer["image_tokens"] == 160
    assert "its own files, local-" in answer["source"]
    assert main(["tokens", str(path("receipt")), "--detail", "low"]) == 0
    assert "16" in capsys.readouterr().out


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "nowhere.png"]) == 1
    assert "nowhere.png" in capsys.readouterr().err


def test_an_unknown_model_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["tokens", str(path("receipt")), "--model", str(tmp_path)]) == 1
    assert "config.json" in capsys.readouterr().err
    assert main(["tokens", "--size", "9x9", "--model", "owner/of-nothing", "--offline"]) == 1
    assert "owner/of-nothing" in capsys.readouterr().err


def test_a_model_type_without_a_rule_is_refused_or_estimated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen9_vl", "vision_config": {"patch_size": 16}}')
    words = ["--model", str(tmp_path), "--size", "1024x1024"]
    assert main(["tokens", *words]) == 1
    assert "model_type qwen9_vl: no visual-token rule; supported: chameleon, deepseek" in capsys.readouterr().err
    (image,) = counted(capsys, *words, "--estimate")["images"]
    assert (image["image_tokens"], image["exact"]) == (1024, False)
    assert main(["tokens", *words, "--estimate"]) == 0
    assert "an estimate" in capsys.readouterr().out


BODY = {
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": data_url(path("receipt").read_bytes()), "detail": "high"}},
                {"type": "text", "text": "What is the total?"},
            ],
        }
    ],
    "stream": True,
    "temperature": 0.5,
}


def test_a_whole_request_from_a_file_and_from_standard_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(BODY))
    answer = counted(capsys, "--request", str(file))
    assert (answer["image_tokens"], answer["fits"]) == (80, True)
    assert answer["prompt_tokens"] == answer["text_tokens"] + answer["image_tokens"] + answer["marker_tokens"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert counted(capsys, "--request", "-") == answer
    without_tokenizer = counted(capsys, "--request", str(file), "--model", QWEN)
    assert (without_tokenizer["text_tokens"], without_tokenizer["prompt_tokens"]) == (None, None)
    assert without_tokenizer["image_tokens"] > 0


def test_a_wrong_request_is_refused_as_a_server_does(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text('{"messages": [{"role": "user", "content": "x"}], "n": 2}')
    assert main(["tokens", "--request", str(file)]) == 1
    assert "'n'" in capsys.readouterr().err


COUNT = TokenCount(
    model="m", text_tokens=None, image_tokens=None, marker_tokens=None, prompt_tokens=None, max_model_len=None,
    fits=None, images=[],
)  # fmt: skip


@pytest.mark.parametrize(
    "told",
    [
        b"<html>sign in</html>",
        b"\xff",
        b"{}",
        b'{"a":' + b"[" * 100_000,
        msgspec.json.encode(COUNT),  # and no picture
        msgspec.json.encode(COUNT).replace(b'"fits":null', b'"fits":"yes"'),
    ],
)
async def test_a_server_that_answers_something_else_is_told(capsys: pytest.CaptureFixture[str], told: bytes) -> None:
    origin = ScriptedOrigin({"/v1/tokens": answer(told, content_type="application/json")})
    async with origin.serve():
        url = f"http://127.0.0.1:{origin.port}"
        assert await asyncio.to_thread(main, ["tokens", str(path("number_8")), "--url", url]) == 1
    assert capsys.readouterr().err == f"opsin: {url}/v1/tokens answers otherwise than an opsin: is it one?\n"


async def test_a_running_server_counts_by_its_own_model(capsys: pytest.CaptureFixture[str]) -> None:
    async with gateway() as served:
        words = ["tokens", str(path("receipt")), "--url", served.url, "--json"]
        assert await asyncio.to_thread(main, words) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["model"], answer["image_tokens"], answer["fits"]) == ("fake", None, None)
        assert (answer["images"][0]["picture"], answer["images"][0]["width"]) == (str(path("receipt")), 256)
        assert await asyncio.to_thread(main, words[:-1]) == 0
        assert "not counted: the server does not know the model behind it" in capsys.readouterr().out
        assert await asyncio.to_thread(main, [*words, "--model", "other"]) == 1
        assert "the model `other` does not exist here" in capsys.readouterr().err
        assert await asyncio.to_thread(main, [*words, "--size", "5x5"]) == 1
        assert "--size" in capsys.readouterr().err
