"""Exact match of the demo model per task, through opsin's own path: media workers, templates, engine.

    python -m opsin.demo.evaluate

Pictures and questions come from a seed that training never sees.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import Counter

from rich.console import Console
from rich.progress import track
from rich.table import Table

from opsin.app import Application, build
from opsin.core.ids import new_request_id
from opsin.demo.tasks import EVALUATED, LANGUAGES, Conversation, held_out
from opsin.demo.wire import to_openai
from opsin.gateway.chat import collect
from opsin.protocol.request import parse_request
from opsin.settings import load_settings

HELD_OUT_SEED = 20_261_129


async def ask(application: Application, conversation: Conversation) -> str:
    """The model's greedy answer."""
    body = json.dumps({"messages": to_openai(conversation), "max_tokens": 96, "temperature": 0}).encode()
    answer = application.gateway.models.default.chat.answer(
        parse_request(body), request_id=new_request_id(), tenant="evaluation"
    )
    return (await collect(answer)).text


async def evaluate(model: str, per_task: int, seed: int, *, show: bool) -> tuple[Counter[str], Counter[str]]:
    """Right answers and questions per ``task/language``."""
    application = build(load_settings({"model": model}))
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    rng = random.Random(seed)
    cases = [(task, language) for task in EVALUATED for language in LANGUAGES for _ in range(per_task)]
    try:
        await application.start()
        for task, language in track(cases, console=Console(stderr=True), description="evaluating"):
            conversation = held_out(rng, task, language)
            answer = (await ask(application, conversation)).strip()
            wanted = conversation.turns[-1].answer
            asked[f"{task}/{language}"] += 1
            right[f"{task}/{language}"] += answer == wanted
            if show and answer != wanted:
                print(f"{task}/{language}: {conversation.turns[-1].question!r} → {answer!r}, not {wanted!r}")
    finally:
        await application.close()
    return right, asked


def main() -> int:
    """Prints the table; the exit status is 0 if overall ≥ 95 % and every task ≥ 85 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--per-task", type=int, default=40, help="questions per task and language")
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEED)
    parser.add_argument("--show", action="store_true", help="print every wrong answer")
    args = parser.parse_args()
    right, asked = asyncio.run(evaluate(args.model, args.per_task, args.seed, show=args.show))
    table = Table("task", *LANGUAGES, "exact match")
    worst = 1.0
    for task in EVALUATED:
        keys = [f"{task}/{language}" for language in LANGUAGES]
        share = sum(right[key] for key in keys) / sum(asked[key] for key in keys)
        worst = min(worst, share)
        table.add_row(task, *(f"{right[key]}/{asked[key]}" for key in keys), f"{share:.1%}")
    overall = right.total() / asked.total()
    table.add_section()
    table.add_row("overall", "", "", f"{overall:.1%}")
    Console().print(table)
    return 0 if overall >= 0.95 and worst >= 0.85 else 1


if __name__ == "__main__":
    raise SystemExit(main())
