"""Digests that say whether two checkpoints prepare and answer alike. Knows file names and bytes, not their meaning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

PROCESSOR_FILES = (
    "preprocessor_config.json",
    "processor_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
"""What decides pixels and token ids; nothing else of a checkpoint does."""

CONFIG_FILES = ("config.json", "generation_config.json")

_SAMPLE_BYTES = 64 * 1024
_NUM_SAMPLES = 8


def processor_fingerprint(folder: Path) -> str:
    """sha256 (64 hex digits) over the names and bytes of the processor, chat template and tokenizer files."""
    return _sha256(_whole_files(folder, PROCESSOR_FILES))


def folder_revision(folder: Path) -> str:
    """``local-<12 hex>`` over configuration, processor and tokenizer files and a sample of the weights.

    Reads at most 512 KiB of each weights file, its header included, so it costs milliseconds and may miss a change of
    a few single weights; training changes all of them. Times of files play no part.
    """
    indices = sorted(path.name for path in folder.glob("*.safetensors.index.json"))
    described = _whole_files(folder, (*CONFIG_FILES, *PROCESSOR_FILES, *indices))
    weights = chain.from_iterable(_sampled(path) for path in sorted(folder.glob("*.safetensors")))
    return f"local-{_sha256(chain(described, weights))[:12]}"


def _sha256(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _whole_files(folder: Path, names: Iterable[str]) -> Iterator[bytes]:
    for name in names:
        path = folder / name
        if path.is_file():
            data = path.read_bytes()
            yield f"{name}:{len(data)}:".encode()
            yield data


def _sampled(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield f"{path.name}:{size}:".encode()
    step = max(_SAMPLE_BYTES, -(-size // _NUM_SAMPLES))
    with path.open("rb") as file:
        for offset in range(0, size, step):
            file.seek(offset)
            yield file.read(_SAMPLE_BYTES)
