"""``opsin preprocess FILE…``: pictures made ready for a model, in the sandbox and with the tiers of a server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pybase64

from opsin.core.errors import MediaError
from opsin.preprocessing import ImagePreprocessor


def add(command: argparse.ArgumentParser) -> None:
    """Its arguments."""
    command.add_argument("_files", nargs="+", type=Path, metavar="FILE", help="pictures")
    of_model = "both sides become multiples of its visual tokens (default 28)"
    command.add_argument("--model", dest="_model", metavar="MODEL", help=of_model)
    command.add_argument("--max-side", dest="_max_side", type=int, default=None, metavar="N", help="default 2048")
    command.add_argument("--min-side", dest="_min_side", type=int, default=28, metavar="N", help="default 28")
    formats = "jpeg:QUALITY or png (default jpeg:85)"
    command.add_argument("--format", dest="_format", default="jpeg:85", metavar="FORMAT", help=formats)
    command.add_argument("--redis-url", dest="_redis_url", metavar="URL", help="keep results there for an hour")
    command.add_argument(
        "--base64",
        dest="_base64",
        action="store_true",
        help="print base64, a line for each, in place of writing files",
    )
    command.add_argument(
        "--output-dir",
        dest="_folder",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="for written files (default .)",
    )


def run(args: argparse.Namespace) -> int:
    """Returns 0 when all were made ready; says of each that was not why.

    Raises:
        ConfigError: a value is wrong, or there is no such model.
    """
    failed = False
    with ImagePreprocessor(
        args._max_side,
        args._min_side,
        args._redis_url,
        model=args._model,
        image_format=args._format,
        output="bytes",
    ) as preprocessor:
        for path in args._files:
            try:
                data = preprocessor.process(path.read_bytes())
            except (OSError, MediaError) as error:
                failed = True
                reason = error.message if isinstance(error, MediaError) else error.strerror
                print(f"opsin: {path}: {reason}", file=sys.stderr)
                continue
            assert isinstance(data, bytes), "asked for"
            if args._base64:
                print(pybase64.b64encode(data).decode())
            else:
                written = args._folder / f"{path.stem}.opsin.{args._format.partition(':')[0]}"
                written.write_bytes(data)
                print(written)
    return int(failed)
