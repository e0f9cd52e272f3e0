"""``make demo``: the real server, the official ``openai`` client, shipped pictures, and where the time went."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from PIL import Image
from rich.console import Console

from opsin.demo.examples import EXAMPLES, path
from opsin.demo.tasks import answer, caption, describe_change
from opsin.demo.wire import png_url

try:
    from openai import OpenAI
except ImportError:
    raise SystemExit("the demo asks through the official openai client: pip install 'opsin[local,demo]'") from None

BAR = 40

ENCODED = "vision_encode_ms"

NEXT = (
    "\nNext: 'make serve' (or 'opsin serve') serves this model on http://127.0.0.1:8000, and the README, "
    """under "Serve", asks it by curl and from Python; 'opsin ask PICTURE QUESTION' asks without a server."""
)


@dataclass(frozen=True, slots=True)
class Question:
    """Shipped pictures, a question, and the right answer."""

    title: str
    pictures: tuple[str, ...]
    text: str
    answer: str
    detail: str = "auto"

    def content(self) -> list[dict[str, Any]]:
        """The user message's parts."""
        parts: list[dict[str, Any]] = []
        for number, name in enumerate(self.pictures, 1):
            if len(self.pictures) > 1:
                parts.append({"type": "text", "text": f"Image {number}:"})
            url = png_url(Image.open(path(name)))
            parts.append({"type": "image_url", "image_url": {"url": url, "detail": self.detail}})
        return [*parts, {"type": "text", "text": self.text}]


RECEIPT = EXAMPLES["receipt"]

QUESTIONS = (
    Question(
        "One picture", ("red_circle",), "What is in this picture?", caption(EXAMPLES["red_circle"], "en", split=True)
    ),
    Question(
        "Two pictures, in order",
        ("before", "after"),
        "What changed?",
        describe_change(EXAMPLES["before"], EXAMPLES["after"], "en"),
    ),
    Question(
        "The same two, swapped",
        ("after", "before"),
        "What changed?",
        describe_change(EXAMPLES["after"], EXAMPLES["before"], "en"),
    ),
    Question(
        "Small print, cut into tiles",
        ("receipt",),
        "What is the total?",
        answer("receipt", RECEIPT, "en", split=True),
        detail="high",
    ),
    Question(
        "Small print, not cut",
        ("receipt",),
        "What is the total?",
        answer("receipt", RECEIPT, "en", split=False),
        detail="low",
    ),
    Question(
        "한국어로",
        ("three_green_squares",),
        "이 이미지를 설명해주세요.",
        caption(EXAMPLES["three_green_squares"], "ko", split=True),
    ),
)


@contextmanager
def server() -> Generator[str]:
    """``opsin serve`` on a free port; yields its base URL."""
    command = [sys.executable, "-m", "opsin", "serve", "--port", "0", "--log-level", "warning"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603 - our own interpreter
    try:
        yield _announced_url(process)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _announced_url(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    output = ""
    for line in process.stderr:
        output += line
        if found := re.search(r"on (http://\S+)", line):
            return found.group(1)
    raise SystemExit(f"the server did not start:\n{output}")


def ask(client: OpenAI, question: Question, console: Console) -> bool:
    """Asks, prints answer, cost and timeline; True if the answer is right."""
    messages: Any = [{"role": "user", "content": question.content()}]
    completion = client.chat.completions.create(model="demo", messages=messages, max_tokens=64, temperature=0)
    given = (completion.choices[0].message.content or "").strip()
    right = given == question.answer
    console.print(f"\n[bold]{question.title}[/]  {' '.join(f'{name}.png' for name in question.pictures)}")
    console.print(f"  [cyan]{question.text}[/]")
    console.print(f"  [{'green' if right else 'red'}]{given}[/]" + ("" if right else f"   (right: {question.answer})"))
    usage = completion.usage
    details: Any = usage.prompt_tokens_details if usage else None
    if usage is not None and details is not None:
        console.print(
            f"  {details.image_tokens} image tokens of {usage.prompt_tokens} prompt tokens, "
            f"{usage.completion_tokens} output tokens"
        )
    timeline = (completion.model_extra or {})["opsin"]["timeline"]
    print_timeline(timeline, console)
    if ENCODED not in timeline:
        console.print("    no vision_encode: what the encoder made of these pictures was kept from the question before")
    return right


def print_timeline(timeline: dict[str, float], console: Console) -> None:
    """One bar per stage, each starting where the one before ended."""
    total = timeline["total_ms"]
    start = 0.0
    for name, duration in timeline.items():
        if name == "total_ms" or not name.endswith("_ms"):
            continue
        left, width = round(start / total * BAR), max(1, round(duration / total * BAR))
        bar = " " * min(left, BAR - 1) + "━" * width
        console.print(f"    {name.removesuffix('_ms'):<14} {duration:8.1f} ms  [blue]{bar}[/]", highlight=False)
        start += duration
    console.print(f"    {'total':<14} {total:8.1f} ms", highlight=False)


def main() -> int:
    """Returns 0 if every answer is right."""
    parser = argparse.ArgumentParser(prog="python -m opsin.demo", description=__doc__)
    parser.add_argument("--svg", metavar="FILE", help="also save what is printed as a picture")
    args = parser.parse_args()
    console = Console(record=args.svg is not None, width=100 if args.svg else None)
    console.print("Starting [bold]opsin serve[/] with the demo model …")
    with server() as url, OpenAI(base_url=f"{url}/v1", api_key="not-needed", max_retries=0) as client:
        right = [ask(client, question, console) for question in QUESTIONS]
    console.print(f"\n{sum(right)} of {len(right)} answers right.")
    console.print(NEXT, highlight=False)
    if args.svg:
        console.save_svg(args.svg, title="make demo")
    return 0 if all(right) else 1


if __name__ == "__main__":
    raise SystemExit(main())
