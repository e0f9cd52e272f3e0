from __future__ import annotations

import random
from typing import Any

import pytest
from PIL import Image, ImageChops

from opsin.demo.examples import EXAMPLES, path
from opsin.demo.scenes import BACKGROUNDS, Number, Objects, draw
from opsin.demo.tasks import EVALUATED, LANGUAGES, caption, describe_change, held_out, noun


def _star(colour: str, count: int = 1, cell: int = 0) -> Objects:
    return Objects("star", colour, count, cell, BACKGROUNDS[0], 1)


def test_captions_and_changes_by_hand() -> None:
    assert caption(_star("orange"), "en", split=False) == "An orange star at the top left."
    assert caption(_star("red", 3), "ko", split=False) == "빨간색 별 3개가 있습니다."
    blue = describe_change(_star("red"), _star("blue"), "en")
    assert blue == "From a red star at the top left to a blue star at the top left: the colour changed."
    assert (
        describe_change(_star("red", cell=0), _star("red", cell=5), "ko")
        == "왼쪽 위의 빨간색 별에서 오른쪽의 빨간색 별로 위치가 바뀌었습니다."
    )
    assert describe_change(_star("red", 3), _star("red", 3), "en").endswith(": nothing changed.")
    assert noun(Number(7, "red", BACKGROUNDS[0], 1), "en") == "the number 7"


@pytest.mark.parametrize("task", EVALUATED)
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_task_gives_a_conversation_with_its_pictures_in_order(task: str, language: str) -> None:
    rng = random.Random(task + language)
    for _ in range(20):
        conversation = held_out(rng, task, language)
        messages: list[Any] = conversation.messages()
        parts: list[Any] = [part for message in messages for part in message["content"]]
        assert sum(part["type"] == "image" for part in parts) == len(conversation.scenes) >= 1
        assert all(turn.answer for turn in conversation.turns)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_shipped_pictures_are_what_they_say(name: str) -> None:
    shipped = Image.open(path(name)).convert("RGB")
    difference = ImageChops.difference(shipped, draw(EXAMPLES[name]))
    # Fonts of another Pillow release may differ by a grey level or two at the edges of letters.
    assert max(upper for _, upper in difference.getextrema()) <= 64  # type: ignore[misc]
