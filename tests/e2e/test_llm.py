"""``LLM`` in this process: answers as over HTTP, from any kind of picture, in any loop or thread, and nothing left."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest
from openai import OpenAI
from PIL import Image

from opsin import LLM, RequestOutput, SamplingParams
from opsin.core.errors import ConfigError, EngineError, InvalidRequest, MediaError, MediaTooLarge, MediaUndecodable
from opsin.core.stages import Stage
from opsin.demo.examples import EXAMPLES, path
from opsin.demo.scenes import draw
from opsin.demo.tasks import caption, held_out
from opsin.demo.wire import png_url, to_openai
from opsin.testing.server_process import ENGINE, RENDERER
from tests.e2e.asking import complete

GREEDY = SamplingParams(temperature=0, max_tokens=96)
QUESTION = "What is in this picture?"
TURN = "<|im_start|>User:{}<end_of_utterance>\nAssistant:"


def _workers() -> set[psutil.Process]:
    return {child for child in psutil.Process().children() if {ENGINE, RENDERER} & set(child.cmdline())}


@pytest.fixture(scope="module")
def of_others() -> set[psutil.Process]:
    """Of tests that ran in this process before."""
    return _workers()


@pytest.fixture(scope="module")
def llm(of_others: set[psutil.Process]) -> Iterator[LLM]:
    with LLM(device="cpu", max_num_seqs=4) as llm:
        yield llm


def about(picture: object, question: str = QUESTION) -> dict[str, Any]:
    return {"prompt": question, "multi_modal_data": {"image": picture}}


def text(output: RequestOutput) -> str:
    return output.outputs[0].text


def over_http(client: OpenAI, pictures: list[str], question: str = QUESTION) -> Any:
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": png_url(draw(EXAMPLES[name]))}} for name in pictures
    ]
    return complete(client, [{"role": "user", "content": [*parts, {"type": "text", "text": question}]}])


def test_any_kind_of_picture_gets_the_answer_of_http(llm: LLM, client: OpenAI) -> None:
    for name in ("red_circle", "three_green_squares", "number_47"):
        file = path(name)
        image = Image.open(file)
        kinds = [image, file.read_bytes(), file, str(file), np.asarray(image.convert("RGB")), png_url(image)]
        wanted = over_http(client, [name])
        for output in llm.generate([about(picture) for picture in kinds], GREEDY):
            assert text(output) == wanted.choices[0].message.content
            assert output.outputs[0].finish_reason == wanted.choices[0].finish_reason == "stop"
            assert output.usage.prompt_tokens == wanted.usage.prompt_tokens == len(output.prompt_token_ids or ())
            assert output.usage.completion_tokens == wanted.usage.completion_tokens
            assert output.usage.image_tokens == wanted.usage.prompt_tokens_details.image_tokens
            assert output.usage.image_tokens == sum(used.count.image_tokens for used in output.images if used.count)


def test_several_pictures_keep_their_order(llm: LLM, client: OpenAI) -> None:
    for names in (["before", "after"], ["after", "before"], ["red_circle", "number_8", "orange_cross"]):
        (output,) = llm.generate(about([path(name) for name in names], "Describe the images in order."), GREEDY)
        assert text(output) == over_http(client, names, "Describe the images in order.").choices[0].message.content


def test_a_raw_prompt_with_places_is_used_as_it_is(llm: LLM) -> None:
    (turn,) = llm.generate(about(path("red_circle")), GREEDY)
    raw = TURN.format(f"<image> {QUESTION}")
    assert turn.prompt == raw
    (same,) = llm.generate(about(path("red_circle"), raw), GREEDY)
    assert (same.prompt, same.prompt_token_ids, text(same)) == (turn.prompt, turn.prompt_token_ids, text(turn))
    (bare,) = llm.generate(about(path("red_circle"), "<image>"), SamplingParams(temperature=0, max_tokens=1))
    assert bare.prompt == "<image>"
    assert bare.usage.image_tokens == turn.usage.image_tokens


def test_token_ids_are_a_prompt_too(llm: LLM) -> None:
    (first,) = llm.generate(TURN.format(" What is it?"), GREEDY)
    (second,) = llm.generate({"prompt_token_ids": list(first.prompt_token_ids or ())}, GREEDY)
    assert (second.prompt, second.prompt_token_ids, text(second)) == (first.prompt, first.prompt_token_ids, text(first))


def test_a_conversation_gets_the_answer_of_http(llm: LLM, client: OpenAI) -> None:
    rng = random.Random(5)
    conversations = [to_openai(held_out(rng, task, "en")) for task in ("second_turn", "number", "receipt", "colour")]
    outputs = llm.chat(conversations, GREEDY)
    assert [text(output) for output in outputs] == [
        complete(client, messages).choices[0].message.content for messages in conversations
    ]
    (alone,) = llm.chat(conversations[0], GREEDY)
    assert text(alone) == text(outputs[0])


def test_image_objects_in_a_conversation(llm: LLM) -> None:
    content = [
        {"type": "image_pil", "image_pil": Image.open(path("receipt")), "detail": "high"},
        {"type": "text", "text": "What is the total?"},
    ]
    (output,) = llm.chat([{"role": "user", "content": content}])
    assert text(output).strip() == "32.85"


def test_results_come_in_order_and_each_has_its_own_sampling(llm: LLM) -> None:
    names = [*EXAMPLES] * 2
    sampling = [SamplingParams(temperature=0, max_tokens=1 + index % 3) for index in range(len(names))]
    outputs = llm.generate([about(path(name)) for name in names], sampling, use_tqdm=False)
    assert [output.usage.completion_tokens for output in outputs] == [how.max_tokens for how in sampling]
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
    assert len({output.request_id for output in outputs}) == len(outputs)
    whole = llm.generate([about(path(name)) for name in EXAMPLES], GREEDY)
    for name, output in zip(("red_circle", "orange_cross"), (whole[0], whole[4]), strict=True):
        assert text(output).strip() == caption(EXAMPLES[name], "en", split=True)
    for short, long in zip(outputs, whole * 2, strict=True):
        assert text(long).startswith(text(short))


def test_no_sampling_is_the_models_own(llm: LLM, client: OpenAI) -> None:
    (output,) = llm.generate(about(path("red_circle")))
    assert text(output) == over_http(client, ["red_circle"]).choices[0].message.content
    assert {Stage.QUEUE, Stage.PREFILL, Stage.DECODE} <= output.timeline.stages_s.keys()
    assert output.finished


def test_nothing_to_do(llm: LLM) -> None:
    assert llm.generate([]) == llm.chat([]) == []


async def test_inside_a_running_loop(llm: LLM) -> None:
    assert asyncio.get_running_loop().is_running()
    (output,) = llm.generate(about(path("red_circle")), GREEDY)
    assert text(output).strip() == caption(EXAMPLES["red_circle"], "en", split=True)


def test_from_several_threads(llm: LLM) -> None:
    image = Image.open(path("red_circle"))

    def ask(_: int) -> list[str]:
        return [text(output) for output in llm.generate([about(image)] * 3, GREEDY)]

    with ThreadPoolExecutor(2) as threads:
        answers = [*threads.map(ask, range(2))]
    assert len({one for several in answers for one in several}) == 1


@pytest.mark.parametrize(
    ("picture", "error"),
    [
        (b"no picture at all", MediaError),
        (path("red_circle").read_bytes()[:-200], MediaUndecodable),
        (np.zeros((8300, 4, 3), np.uint8), MediaTooLarge),
        ("https://example.com/cat.png", MediaError),
        (3.5, MediaError),
    ],
)
def test_a_refused_picture_is_told_and_harms_nothing(llm: LLM, picture: Any, error: type[MediaError]) -> None:
    with pytest.raises(error) as caught:
        llm.generate([about(path("red_circle")), about(picture)], GREEDY)
    assert caught.value.param == "multi_modal_data.image.0"
    assert caught.value.__notes__ == ["prompt 1, counted from 0"]
    assert text(llm.generate(about(path("number_8")), GREEDY)[0])


def test_wrong_calls_are_told(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="2 placeholders <image> for 1 pictures"):
        llm.generate(about(path("red_circle"), "<image><image>"))
    with pytest.raises(InvalidRequest, match="there are 1 prompts and 2 sampling_params"):
        llm.generate("hello", [GREEDY, GREEDY])


def test_an_interrupt_cancels_and_leaves_it_usable(llm: LLM) -> None:
    endless = SamplingParams(temperature=0, ignore_eos=True)
    prompts = [about(path(name).read_bytes()) for name in EXAMPLES] * 40  # no file is open when it comes
    timer = threading.Timer(2, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts, endless, use_tqdm=False)
    timer.join()
    started = time.monotonic()
    assert text(llm.generate(about(path("red_circle")), GREEDY)[0])
    assert time.monotonic() - started < 60, "the cancelled prompts are still being answered"


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def test_what_cannot_start_leaves_nothing() -> None:
    before, threads = _children(), threading.active_count()
    with pytest.raises(ConfigError):
        LLM(local={"start_timeout_s": -1})
    with pytest.raises(EngineError, match="did not load within"):
        LLM(local={"start_timeout_s": 0.01})
    assert _gone(_children() - before)
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("threading.Thread(target=lambda: llm.generate('hello', SamplingParams(max_tokens=1))).start()", 0),
        ("raise RuntimeError('the caller failed')", 1),
        ("again = [llm]; again.append(again); del llm, again; gc.collect(); sys.exit(3)", 3),
    ],
)
def test_no_process_outlives_the_interpreter(end: str, status: int) -> None:
    script = f"""
        import gc, sys, threading, psutil
        from opsin import LLM, SamplingParams
        llm = LLM(device="cpu")
        print(*(process.pid for process in psutil.Process().children(recursive=True)), flush=True)
        {end}
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300, check=False
    )
    pids = [int(pid) for pid in result.stdout.split()]
    assert result.returncode == status, result.stderr
    assert len(pids) >= 3
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert ("the caller failed" in result.stderr) == ("raise" in end)
    assert bool(result.stderr) == ("raise" in end), result.stderr


def _gone(processes: set[psutil.Process]) -> bool:
    return not psutil.wait_procs(list(processes), timeout=10)[1]


def test_closed_is_closed(llm: LLM, of_others: set[psutil.Process]) -> None:
    """The last one, as nobody can ask it afterwards."""
    processes = _workers() - of_others
    assert len(processes) >= 2
    llm.close()
    llm.close()
    assert _gone(processes)
    with pytest.raises(EngineError, match="closed"):
        llm.generate("hello")
