"""What ``opsin ask`` says before it asks anybody, and what of its words reaches a server."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from opsin.cli.main import main
from opsin.demo.examples import path
from opsin.testing.script import Script
from opsin.testing.scripted_upstream import ScriptedUpstream, serve

PICTURE = str(path("red_circle"))


def test_a_picture_is_no_question(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([PICTURE], [PICTURE, PICTURE]):
        assert main(["ask", *words]) == 1
        assert "the question is missing: opsin ask" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["ask", "{file}", "What is it?"], ["tokens", "{file}"]])
def test_a_file_that_is_no_picture_is_named(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "notes.md"
    text.write_text("# hello")
    assert main([word.format(file=text) for word in words]) == 1
    assert capsys.readouterr().err.startswith(f"opsin: {text}: ")


def test_without_the_local_engine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["ask", PICTURE, "What is it?"]) == 1
    told = capsys.readouterr().err
    assert "pip install 'opsin[local]'" in told
    assert "--url URL" in told


async def test_a_model_of_the_server_is_chosen_and_the_space_before_the_answer_goes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    upstream = ScriptedUpstream()
    async with serve(upstream) as url:
        upstream.queue(Script(text=" 47 apples"))
        assert await asyncio.to_thread(main, ["ask", PICTURE, "How many?", "--url", url, "--model", "ok"]) == 0
        assert capsys.readouterr().out == "47 apples\n"
        assert json.loads(upstream.received[-1].body)["model"] == "ok"
        assert await asyncio.to_thread(main, ["ask", PICTURE, "How many?", "--url", url, "--model", "three"]) == 1
        assert "no model named three; it serves" in capsys.readouterr().err


async def test_an_answer_is_limited_where_somebody_says_so() -> None:
    upstream = ScriptedUpstream(script=Script(text="47 apples"))
    words = ["ask", PICTURE, "How many?", "--url"]
    async with serve(upstream) as url:
        for limit in ([], ["--max-tokens", "9"]):
            assert await asyncio.to_thread(main, [*words, url, *limit]) == 0
    assert [json.loads(one.body).get("max_tokens") for one in upstream.received] == [None, 9]


async def test_a_server_with_a_key_names_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    async with serve(ScriptedUpstream(api_key="secret")) as url:
        assert await asyncio.to_thread(main, ["ask", PICTURE, "What is it?", "--url", url]) == 1
        assert "there is none for it; give one with --api-key\n" in capsys.readouterr().err
        words = ["ask", PICTURE, "What is it?", "--url", url, "--api-key", "wrong"]
        assert await asyncio.to_thread(main, words) == 1
        assert "is that of --api-key the right one?" in capsys.readouterr().err


async def test_of_several_models_only_the_one_that_is_asked_has_to_be_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    upstream = ScriptedUpstream(script=Script(text="47 apples"))
    async with serve(upstream) as url:
        tables = (("first", url, "ok"), ("absent", "http://127.0.0.1:9", "none"), ("last", url, "ok"))
        (tmp_path / "opsin.toml").write_text(
            "".join(f'[[models]]\nname = "{name}"\nupstream = {{ url = "{at}" }}\n' for name, at, _ in tables)
        )
        for words in ([], ["--model", "last"]):
            assert await asyncio.to_thread(main, ["ask", PICTURE, "How many?", *words]) == 0
            assert capsys.readouterr().out == "47 apples\n"
    assert len(upstream.received) == 2
