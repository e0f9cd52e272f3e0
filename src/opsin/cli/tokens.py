"""``opsin tokens PICTURE…``: what pictures cost, from their headers alone. Nothing is decoded, no model is loaded."""

from __future__ import annotations

import argparse
import json

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from opsin.app import load_vision
from opsin.cli.flags import read
from opsin.cli.pictures import load_pictures
from opsin.core.conversation import Detail
from opsin.vision.plan import VisionPlan


def run(args: argparse.Namespace) -> int:
    """Prints tiles and image tokens of each picture; returns the exit status."""
    settings = read(args).checked()
    _, family = load_vision(settings)
    media = load_pictures(args._pictures, settings.media)
    plans = [
        (name, family.plan(picture.header.upright, Detail(args._detail)))
        for name, picture in zip(args._pictures, media, strict=True)
    ]
    total = sum(plan.image_tokens for _, plan in plans)
    if args._json:
        pictures = [{"picture": name, **_row(plan)} for name, plan in plans]
        print(json.dumps({"model": settings.model, "pictures": pictures, "image_tokens": total}))
        return 0
    table = Table("picture", "size", "used", "tiles", "image tokens")
    for name, plan in plans:
        row = _row(plan)
        table.add_row(escape(name), str(row["size"]), str(row["used"]), str(row["tiles"]), str(row["image_tokens"]))
    table.add_section()
    table.add_row("total", "", "", str(sum(plan.num_tiles for _, plan in plans)), str(total))
    Console().print(table)
    return 0


def _row(plan: VisionPlan) -> dict[str, str | int]:
    return {
        "size": f"{plan.original.width}x{plan.original.height}",
        "used": f"{plan.used.width}x{plan.used.height}",
        "tiles": plan.num_tiles,
        "image_tokens": plan.image_tokens,
    }
