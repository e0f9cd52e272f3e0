"""Questions about drawn pictures and their right answers, in English and Korean.

The tasks of the demo model: shape, colour, count, position, number, caption, several pictures in order, a second
turn, a receipt that needs tiles. Answers are a function of the scenes, so exact match is a fair score.
Knows nothing of pixels or models.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from opsin.demo.questions import QUESTIONS, SYSTEM_PROMPTS
from opsin.demo.scenes import (
    CELLS,
    COLOURS,
    MAX_COUNT,
    SHAPES,
    Number,
    Objects,
    Receipt,
    Scene,
    random_number,
    random_objects,
    random_receipt,
    random_scene,
)

T = TypeVar("T")

LANGUAGES = ("en", "ko")

_SHAPE_KO: dict[str, str] = dict(zip(SHAPES, ("원", "사각형", "삼각형", "별", "십자가", "고리"), strict=True))
_COLOUR_KO = dict(zip(COLOURS, ("빨간색", "초록색", "파란색", "노란색", "보라색", "주황색", "검은색"), strict=True))
_CELL_KO = dict(
    zip(
        CELLS,
        ("왼쪽 위", "위", "오른쪽 위", "왼쪽", "가운데", "오른쪽", "왼쪽 아래", "아래", "오른쪽 아래"),
        strict=True,
    )
)
_COUNT_EN = ("zero", "one", "two", "three", "four", "five")

UNREADABLE = {"en": "The text is too small to read.", "ko": "글자가 너무 작아 읽을 수 없습니다."}
NO_PICTURE = {"en": "Please show me a picture.", "ko": "그림을 보여 주세요."}


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its one right answer. ``conclusion`` is its end, where that follows from its beginning alone."""

    task: str
    question: str
    answer: str
    conclusion: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Pictures, how they are placed among the text of the first turn, and the turns."""

    scenes: tuple[Scene, ...]
    labels: str  # "before" ("Image 1:" picture), "after" (picture "Image 1.") or "none"
    question_first: bool
    turns: tuple[Turn, ...]
    split: bool
    system: str | None = None

    def messages(self) -> list[dict[str, object]]:
        """Chat messages in the processors' form: content parts ``{"type": "image"}`` and ``{"type": "text"}``."""
        parts: list[dict[str, str]] = []
        for number in range(1, len(self.scenes) + 1):
            if self.labels == "before":
                parts.append({"type": "text", "text": f"Image {number}:"})
            parts.append({"type": "image"})
            if self.labels == "after":
                parts.append({"type": "text", "text": f"Image {number}."})
        question = {"type": "text", "text": self.turns[0].question}
        if self.labels == "after" and parts and not self.question_first:
            parts[-1] = {"type": "text", "text": f"{parts[-1]['text']} {self.turns[0].question}"}
        else:
            parts = [question, *parts] if self.question_first else [*parts, question]
        messages: list[dict[str, object]] = []
        if self.system is not None:
            messages.append({"role": "system", "content": [{"type": "text", "text": self.system}]})
        messages.append({"role": "user", "content": parts})
        for previous, turn in zip(self.turns, self.turns[1:], strict=False):
            messages.append({"role": "assistant", "content": [{"type": "text", "text": previous.answer}]})
            messages.append({"role": "user", "content": [{"type": "text", "text": turn.question}]})
        return messages


def noun(scene: Scene, language: str) -> str:
    """A short noun phrase: ``"a red circle"``, ``"two red circles"``, ``"빨간색 원 2개"``."""
    match scene:
        case Receipt():
            return "a receipt" if language == "en" else "영수증"
        case Number():
            return f"the number {scene.value}" if language == "en" else f"숫자 {scene.value}"
        case Objects() if language == "ko":
            phrase = f"{_COLOUR_KO[scene.colour]} {_SHAPE_KO[scene.shape]}"
            return phrase if scene.count == 1 else f"{phrase} {scene.count}개"
        case Objects():
            if scene.count == 1:
                return f"{'an' if scene.colour == 'orange' else 'a'} {scene.colour} {scene.shape}"
            plural = f"{scene.shape}es" if scene.shape == "cross" else f"{scene.shape}s"
            return f"{_COUNT_EN[scene.count]} {scene.colour} {plural}"


def placed(scene: Scene, language: str) -> str:
    """The noun phrase with the place of a single shape: ``"a red circle at the top"``, ``"위의 빨간색 원"``."""
    what = noun(scene, language)
    if not isinstance(scene, Objects) or scene.count != 1:
        return what
    where = CELLS[scene.cell]
    if language == "ko":
        return f"{_CELL_KO[where]}의 {what}"
    return f"{what} in the center" if where == "center" else f"{what} at the {where}"


def caption(scene: Scene, language: str, *, split: bool) -> str:
    """One sentence on one picture."""
    if isinstance(scene, Receipt):
        if not split:
            return UNREADABLE[language]
        return (
            f"A receipt with a total of {scene.total}." if language == "en" else f"합계가 {scene.total}인 영수증입니다."
        )
    if language == "en":
        text = placed(scene, language)
        return f"{text[0].upper()}{text[1:]}."
    place = f"{_CELL_KO[CELLS[scene.cell]]}에 " if isinstance(scene, Objects) and scene.count == 1 else ""
    return f"{place}{_with_subject_particle(noun(scene, language))} 있습니다."


def answer(task: str, scene: Scene, language: str, *, split: bool) -> str:
    """The right answer to a single-picture task."""
    korean = language == "ko"
    match task, scene:
        case "shape", Objects():
            return _SHAPE_KO[scene.shape] if korean else scene.shape
        case "colour", (Objects() | Number()):
            return _COLOUR_KO[scene.colour] if korean else scene.colour
        case "count", Objects():
            return f"{scene.count}개" if korean else str(scene.count)
        case "position", Objects():
            return _CELL_KO[CELLS[scene.cell]] if korean else CELLS[scene.cell]
        case "number", Number():
            return str(scene.value)
        case "receipt", Receipt():
            return scene.total if split else UNREADABLE[language]
        case "caption", _:
            return caption(scene, language, split=split)
        case _:
            raise ValueError(f"task {task!r} does not apply to {type(scene).__name__}")


def tasks_for(scene: Scene) -> tuple[str, ...]:
    """The single-picture tasks that apply to a scene."""
    match scene:
        case Receipt():
            return ("receipt", "caption")
        case Number():
            return ("number", "colour", "caption")
        case Objects(count=1):
            return ("shape", "colour", "count", "position", "caption")
        case Objects():
            return ("shape", "colour", "count", "caption")


def _with_subject_particle(word: str) -> str:
    """Korean 이/가 by the last sound; digits by their Korean reading."""
    return word + ("이" if _ends_in_consonant(word) else "가")


def _ends_in_consonant(word: str) -> bool:
    last = word[-1]
    if last.isdigit():
        return last in "013678"
    return (ord(last) - 0xAC00) % 28 != 0


def _towards(word: str) -> str:
    """Korean 으로/로; a final ㄹ takes 로."""
    last = word[-1]
    if last.isdigit():
        return word + ("으로" if last in "036" else "로")
    return word + ("로" if (ord(last) - 0xAC00) % 28 in (0, 8) else "으로")


def _ask(rng: random.Random, task: str, language: str) -> str:
    return rng.choice(QUESTIONS[task][language])


def _single_turn(rng: random.Random, scene: Scene, task: str, language: str, *, split: bool) -> Turn:
    return Turn(task, _ask(rng, task, language), answer(task, scene, language, split=split))


def single(
    rng: random.Random,
    scene: Scene,
    *,
    split: bool,
    num_turns: int,
    language: str | None = None,
    first_task: str | None = None,
) -> Conversation:
    """One picture, ``num_turns`` questions about it, each a different task while they last."""
    language = language or rng.choice(LANGUAGES)
    tasks = list(tasks_for(scene))
    rng.shuffle(tasks)
    if first_task is not None:
        tasks.remove(first_task)
        tasks.insert(0, first_task)
    turns = tuple(_single_turn(rng, scene, task, language, split=split) for task in tasks[:num_turns])
    return Conversation(
        scenes=(scene,),
        labels="none" if rng.random() < 0.85 else rng.choice(("before", "after")),
        question_first=rng.random() < 0.4,
        turns=turns,
        split=split,
        system=rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.08 else None,
    )


def change(rng: random.Random, scene: Objects | Number) -> Objects | Number:
    """The same scene drawn anew with one attribute changed, or (one time in eight) nothing changed."""
    again = replace(scene, layout_seed=rng.getrandbits(31))
    if rng.random() < 0.125:
        return scene
    if isinstance(again, Number):
        return replace(again, value=_other(rng, range(100), again.value))
    attribute = rng.choice(("colour", "shape", "count", "cell") if again.count == 1 else ("colour", "shape", "count"))
    match attribute:
        case "colour":
            return replace(again, colour=_other(rng, tuple(COLOURS), again.colour))
        case "shape":
            return replace(again, shape=_other(rng, SHAPES, again.shape))
        case "count":
            return replace(again, count=_other(rng, range(1, MAX_COUNT + 1), again.count))
        case _:
            return replace(again, cell=_other(rng, range(9), again.cell))


def _other(rng: random.Random, values: Sequence[T], current: T) -> T:
    return rng.choice([value for value in values if value != current])


def describe_change(before: Scene, after: Scene, language: str) -> str:
    """One sentence: what there was, what there is, and at its end the attribute that differs.

    The descriptions come first, so that a small model can look at them when it names the attribute.
    """
    old, new = placed(before, language), placed(after, language)
    ending = _change(before, after, language)
    return f"{old}에서 {_towards(new)} {ending}" if language == "ko" else f"From {old} to {new}: {ending}"


def _change(before: Scene, after: Scene, language: str) -> str:
    """Names the attribute that differs, or says that none does."""
    attribute = _changed_attribute(before, after)
    if language == "ko":
        return f"{_ATTRIBUTE_KO[attribute]} 바뀌었습니다." if attribute else "달라진 것이 없습니다."
    return f"{f'the {attribute}' if attribute else 'nothing'} changed."


_ATTRIBUTE_KO = {"number": "숫자가", "colour": "색이", "shape": "모양이", "count": "개수가", "position": "위치가"}


def _changed_attribute(before: Scene, after: Scene) -> str | None:
    match before, after:
        case Number(), Number():
            return "number" if before.value != after.value else None
        case Objects(), Objects():
            if before.colour != after.colour:
                return "colour"
            if before.shape != after.shape:
                return "shape"
            if before.count != after.count:
                return "count"
            return "position" if before.count == 1 and before.cell != after.cell else None
        case _:
            return None


def _changed_turn(rng: random.Random, scenes: tuple[Scene, ...], language: str) -> Turn:
    before, after = scenes
    ending = _change(before, after, language)
    return Turn("changed", _ask(rng, "changed", language), describe_change(before, after, language), ending)


def _which_turn(rng: random.Random, scenes: tuple[Scene, ...], language: str) -> Turn:
    number = rng.randrange(len(scenes))
    what = noun(scenes[number], language)
    # A small model copies what stood after the words that it has just said. So the question's own words lead to the
    # thing, the thing leads to its number, and the list that is read off the pictures first has things before numbers.
    seen = " ".join(f"{noun(scene, language)}: Image {place}." for place, scene in enumerate(scenes, 1))
    asked = what if language == "en" else _with_subject_particle(what)
    found = f"What shows {what}: Image {number + 1}." if language == "en" else f"이미지에 {what}: Image {number + 1}."
    return Turn("which", _ask(rng, "which", language).format(what=asked), f"{seen} {found}", found)


def _listed(scenes: Sequence[Scene], language: str) -> str:
    return " ".join(f"Image {number}: {noun(scene, language)}." for number, scene in enumerate(scenes, 1))


def _order_turn(rng: random.Random, scenes: tuple[Scene, ...], language: str) -> Turn:
    return Turn("order", _ask(rng, "order", language), _listed(scenes, language))


def _named_turn(rng: random.Random, scenes: tuple[Scene, ...], language: str) -> Turn:
    number = rng.randrange(len(scenes))
    text = noun(scenes[number], language)
    answer_text = f"{text[0].upper()}{text[1:]}." if language == "en" else f"{text}."
    return Turn("named", _ask(rng, "named", language).format(n=number + 1), answer_text)


_SEVERAL: dict[str, Callable[[random.Random, tuple[Scene, ...], str], Turn]] = {
    "changed": _changed_turn,
    "which": _which_turn,
    "order": _order_turn,
    "named": _named_turn,
}


@dataclass(frozen=True, slots=True)
class Source:
    """Where scenes come from; training in part draws them from a finite pool."""

    scene: Callable[[random.Random], Objects | Number] = random_scene
    change: Callable[[random.Random, Objects | Number], Objects | Number] = change


def several(
    rng: random.Random,
    count: int,
    *,
    split: bool,
    language: str | None = None,
    turn_tasks: tuple[str, ...] | None = None,
    source: Source = Source(),
) -> Conversation:
    """Two to four pictures in order, with one question for each of ``turn_tasks`` (None: three at random).

    Two pictures differ in one thing when the first question is what changed.
    """
    language = language or rng.choice(LANGUAGES)
    if turn_tasks is None:
        asks_change = count == 2 and rng.random() < 0.6
        turn_tasks = ("changed", "order", "named") if asks_change else tuple(rng.sample(("which", "order", "named"), 3))
    scenes = _distinct_scenes(rng, count, source)
    if turn_tasks[0] == "changed":
        scenes = (scenes[0], source.change(rng, scenes[0]))
    return Conversation(
        scenes=tuple(scenes),
        labels=rng.choice(("before", "before", "after", "none")),
        question_first=rng.random() < 0.25,
        turns=tuple(_SEVERAL[task](rng, scenes, language) for task in turn_tasks),
        split=split,
    )


def _distinct_scenes(rng: random.Random, count: int, source: Source) -> tuple[Objects | Number, ...]:
    scenes: list[Objects | Number] = []
    names: set[str] = set()
    while len(scenes) < count:
        scene = source.scene(rng)
        if (name := noun(scene, "en")) not in names:
            names.add(name)
            scenes.append(scene)
    return tuple(scenes)


def text_only(rng: random.Random, language: str | None = None) -> Conversation:
    """A turn without a picture."""
    language = language or rng.choice(LANGUAGES)
    turn = Turn("text_only", _ask(rng, "text_only", language), NO_PICTURE[language])
    return Conversation(scenes=(), labels="none", question_first=False, turns=(turn,), split=False)


def held_out(rng: random.Random, task: str, language: str) -> Conversation:
    """One conversation whose last turn examines ``task``; the tasks of :data:`EVALUATED`."""
    split = rng.random() < 0.5
    match task:
        case "number":
            return single(rng, random_number(rng), split=split, num_turns=1, language=language, first_task=task)
        case "receipt":
            return single(rng, random_receipt(rng), split=True, num_turns=1, language=language, first_task=task)
        case "position":
            return single(rng, random_objects(rng, 1), split=split, num_turns=1, language=language, first_task=task)
        case "shape" | "colour" | "count":
            return single(rng, random_objects(rng), split=split, num_turns=1, language=language, first_task=task)
        case "caption":
            return single(rng, random_scene(rng), split=split, num_turns=1, language=language, first_task=task)
        case "second_turn":
            return single(rng, random_scene(rng), split=split, num_turns=2, language=language)
        case "changed":
            return several(rng, 2, split=split, language=language, turn_tasks=(task,))
        case _:
            return several(rng, rng.randint(2, 4), split=split, language=language, turn_tasks=(task,))


EVALUATED = (
    "shape", "colour", "count", "position", "number", "caption",
    "changed", "which", "order", "named", "second_turn", "receipt",
)  # fmt: skip
