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
from opsin.vision.plan import Count


def run(args: argparse.Namespace) -> int:
    """Prints tiles and image tokens of each picture; returns the exit status."""
    settings = read(args).checked()
    _, family = load_vision(settings)
    media = load_pictures(args._pictures, settings.media)
    counts = [
        (name, family.count(picture.header.upright, Detail(args._detail)))
        for name, picture in zip(args._pictures, media, strict=True)
    ]
    total = sum(count.image_tokens for _, count in counts)
    if args._json:
        pictures = [{"picture": name, **_row(count)} for name, count in counts]
        print(json.dumps({"model": settings.model, "pictures": pictures, "image_tokens": total}))
        return 0
    table = Table("picture", "size", "used", "tiles", "image tokens")
    for name, count in counts:
        row = _row(count)
        table.add_row(escape(name), str(row["size"]), str(row["used"]), str(row["tiles"]), str(row["image_tokens"]))
    table.add_section()
    table.add_row("total", "", "", str(sum(count.num_tiles for _, count in counts)), str(total))
    Console().print(table)
    return 0


def _row(count: Count) -> dict[str, str | int]:
    return {
        "size": f"{count.original.width}x{count.original.height}",
        "used": f"{count.used.width}x{count.used.height}",
        "tiles": count.num_tiles,
        "image_tokens": count.image_tokens,
    }
