"""``opsin preprocess FILE…``: pictures made ready for a model, in the sandbox and with the tiers of a server."""

from __future__ import annotations

import argparse
import errno
import sys
from pathlib import Path

import pybase64

from opsin.cli.flags import add_flags
from opsin.core.errors import ConfigError, MediaError, MediaTooLarge
from opsin.preprocessing import ImagePreprocessor

_STANDARD_INPUT = Path("-")


def add(command: argparse.ArgumentParser) -> None:
    """Its arguments."""
    command.add_argument("_files", nargs="+", type=Path, metavar="FILE", help="pictures; - is standard input")
    of_model = "both sides become multiples of its visual tokens (default 28)"
    command.add_argument("--model", dest="_model", metavar="MODEL", help=of_model)
    longest = "pixels of the longest side; larger pictures are scaled down (default 2048, or MAX_IMAGE_SIZE)"
    shortest = "pixels of which neither side has fewer (default 28)"
    command.add_argument("--max-side", dest="_max_side", type=int, default=None, metavar="N", help=longest)
    command.add_argument("--min-side", dest="_min_side", type=int, default=28, metavar="N", help=shortest)
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
        help="for written files, NAME.opsin.jpeg; it has to be there (default .)",
    )
    command.add_argument(
        "--overwrite", dest="_overwrite", action="store_true",
        help="replace files that are there; without it a file of other content is left, and an error",
    )  # fmt: skip
    add_flags(command)
    command.epilog = (
        "A larger picture needs higher limits: media.* in the file, or OPSIN_MEDIA__MAX_IMAGE_BYTES, "
        "OPSIN_MEDIA__MAX_IMAGE_PIXELS, OPSIN_MEDIA__MAX_DECODED_BYTES_PER_IMAGE in the environment."
    )


def run(args: argparse.Namespace) -> int:
    """Returns 0 when all were made ready; says of each that was not why.

    Raises:
        ConfigError: a value is wrong, or there is no such model, folder or settings file.
    """
    if not args._base64 and not args._folder.is_dir():
        raise ConfigError(f"--output-dir {args._folder}: there is no such folder")
    failed, written = False, set[Path]()
    with ImagePreprocessor(
        args._max_side,
        args._min_side,
        args._redis_url,
        model=args._model,
        image_format=args._format,
        output="bytes",
        config=args._config,
    ) as preprocessor:
        for path in args._files:
            try:
                data = preprocessor.process(_read(path, preprocessor.max_image_bytes))
                assert isinstance(data, bytes), "asked for"
                shown = pybase64.b64encode(data).decode() if args._base64 else _written(args, path, data, written)
            except (OSError, MediaError) as error:
                failed = True
                reason = error.message if isinstance(error, MediaError) else error.strerror
                print(f"opsin: {path}: {reason}", file=sys.stderr)
            else:
                print(shown)
    return int(failed)


def _target(args: argparse.Namespace, path: Path) -> Path:
    stem = "stdin" if path == _STANDARD_INPUT else path.stem
    return args._folder / f"{stem}.opsin.{args._format.partition(':')[0]}"


def _read(path: Path, max_bytes: int) -> bytes:
    """Raises OSError, MediaTooLarge; reads no more than it has to know that."""
    if path == _STANDARD_INPUT:
        data = sys.stdin.buffer.read(max_bytes + 1)
    else:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise MediaTooLarge(f"The picture has more than {max_bytes} bytes (max_image_bytes).")
    return data


def _written(args: argparse.Namespace, path: Path, data: bytes, written: set[Path]) -> Path:
    """Where ``data`` is now; raises OSError, also where that is among those that were ``written`` just now."""
    target = _target(args, path)
    if target in written:
        raise FileExistsError(errno.EEXIST, f"{target} has just been written from another one of these pictures")
    try:
        if args._overwrite:
            target.write_bytes(data)
        else:
            _create(target, data)
    except OSError as error:
        raise OSError(error.errno, f"{target}: {error.strerror}") from None
    written.add(target)
    return target


def _create(target: Path, data: bytes) -> None:
    """Where these very bytes are there already, nothing has to be done: a script may run twice. Raises OSError."""
    try:
        file = target.open("xb")
    except FileExistsError:
        if _holds(target, data):
            return
        raise FileExistsError(
            errno.EEXIST, "this file is there and holds something else; --overwrite replaces it"
        ) from None
    try:
        with file:
            file.write(data)
    except OSError:
        target.unlink(missing_ok=True)  # half a picture would be in the way of the next try
        raise


def _holds(target: Path, data: bytes) -> bool:
    return target.is_file() and target.stat().st_size == len(data) and target.read_bytes() == data
