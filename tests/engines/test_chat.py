"""The demo checkpoint behind a real engine, behind opsin, asked by the official client."""

from __future__ import annotations

import random
import time

import openai
import pytest
from PIL import Image

from opsin.demo.examples import EXAMPLES
from opsin.demo.scenes import draw
from opsin.demo.tasks import LANGUAGES, NO_PICTURE, Conversation, held_out, several
from opsin.gateway.intake import LARGE_BODY_BYTES
from tests.corpus.pictures import data_url, encoded, idat, ihdr, png
from tests.e2e.asking import about, ask, complete, fresh_rng
from tests.engines.conftest import A_CIRCLE, A_LONG_ANSWER, SOON_S, Served

ONE_PICTURE = ("shape", "colour", "count", "position", "number", "caption")
TILES_OF_A_SQUARE, TOKENS_PER_TILE = 5, 16


def test_a_text(served: Served) -> None:
    answer = complete(served.client, [{"role": "user", "content": "Hello."}])
    assert answer.choices[0].message.content.strip() == NO_PICTURE["en"]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens < TOKENS_PER_TILE


def test_one_picture(served: Served) -> None:
    answer = complete(served.client, A_CIRCLE)
    assert answer.choices[0].message.content.strip() == "circle"
    assert answer.usage.prompt_tokens > TILES_OF_A_SQUARE * TOKENS_PER_TILE


def test_a_picture_of_most_of_a_megabyte(served: Served) -> None:
    twice_as_wide = draw(EXAMPLES["red_circle"]).resize((512, 512), Image.Resampling.NEAREST)
    url = data_url(encoded(twice_as_wide, "png", compress_level=0))
    assert len(url) > 2 * LARGE_BODY_BYTES  # read and sent on another way than small ones
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What shape is it?"}]
    answer = complete(served.client, [{"role": "user", "content": content}])
    assert answer.choices[0].message.content.strip() == "circle"


def test_a_picture_that_needs_its_tiles(served: Served) -> None:
    answer = complete(served.client, about([EXAMPLES["receipt"]], "What is the total?"))
    assert answer.choices[0].message.content.strip() == EXAMPLES["receipt"].total  # type: ignore[union-attr]


def test_four_pictures_in_order(served: Served) -> None:
    rng = fresh_rng()
    conversations = [several(rng, 4, split=True, language="en", turn_tasks=("order",)) for _ in range(8)]
    right = sum(ask(served.client, one) == one.turns[0].answer for one in conversations)
    assert right >= 5


def test_a_stream_of_one_picture(served: Served) -> None:
    stream = complete(served.client, A_CIRCLE, stream=True, stream_options={"include_usage": True})
    *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).strip() == "circle"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert last.choices == []
    assert last.usage.prompt_tokens > TILES_OF_A_SQUARE * TOKENS_PER_TILE


def test_a_stream_of_four_pictures_comes_in_pieces(served: Served) -> None:
    scenes = [EXAMPLES[name] for name in ("red_circle", "number_47", "orange_cross", "purple_triangle")]
    stream = complete(served.client, about(scenes, "Describe the images in order."), stream=True)
    texts = [chunk.choices[0].delta.content for chunk in stream if chunk.choices[0].delta.content]
    assert len(texts) >= 5
    assert "".join(texts).count("Image ") == 4


def test_a_client_that_leaves_frees_the_engine(served: Served) -> None:
    before = served.counted(served.counters.output_tokens)
    stream = served.long_stream()
    assert served.counted(served.counters.running) == 1
    stream.close()
    left_at = time.monotonic()
    assert served.until_idle(SOON_S)
    produced = served.counted(served.counters.output_tokens) - before
    print(f"idle {time.monotonic() - left_at:.1f} s after the client left, {produced:.0f} tokens of {A_LONG_ANSWER}")
    assert produced < A_LONG_ANSWER


def test_a_picture_over_the_limits_never_reaches_the_engine(served: Served) -> None:
    before = served.counted(served.counters.prompt_tokens)
    too_large = data_url(png(ihdr(40_000, 40_000), idat([bytes(3)])))
    content = [{"type": "image_url", "image_url": {"url": too_large}}, {"type": "text", "text": "What shape is it?"}]
    with pytest.raises(openai.APIStatusError) as caught:
        complete(served.client, [{"role": "user", "content": content}])
    assert (caught.value.status_code, caught.value.code) == (413, "media_too_large")
    assert served.counted(served.counters.prompt_tokens) == before


def test_ninety_percent_of_fifty_new_pictures_are_answered_right(served: Served) -> None:
    rng = fresh_rng()
    wrong: list[str] = []
    for index in range(50):
        conversation = _in_tiles(rng, ONE_PICTURE[index % len(ONE_PICTURE)], LANGUAGES[index % 2])
        if (answer := ask(served.client, conversation)) != conversation.turns[0].answer:
            wrong.append(f"{conversation.turns[0].task}: {answer!r}, not {conversation.turns[0].answer!r}")
    print(f"{50 - len(wrong)} of 50 right", *wrong, sep="\n")
    assert len(wrong) <= 5


def test_an_engine_that_is_killed_and_comes_back(served: Served) -> None:
    stream = served.long_stream()
    served.engine.kill()
    with pytest.raises(openai.APIError) as in_band:
        list(stream)
    assert in_band.value.code == "upstream_truncated"
    with pytest.raises(openai.InternalServerError) as refused:
        complete(served.client, A_CIRCLE)
    assert refused.value.status_code == 503
    assert refused.value.code in ("upstream_unavailable", "engine_unavailable")  # the second when a look came before it
    served.start_engine()
    assert complete(served.client, A_CIRCLE).choices[0].message.content.strip() == "circle"


def _in_tiles(rng: random.Random, task: str, language: str) -> Conversation:
    """Engines cut every picture into tiles, whatever ``detail`` says."""
    while not (conversation := held_out(rng, task, language)).split:
        pass
    return conversation
