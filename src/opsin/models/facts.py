"""What is known of well-known checkpoints without their files: the table beside this module, typed.

It lets a model be counted and planned without network. A checkpoint's own files, where they are at hand, win.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from opsin.models.files import Document
from opsin.models.traits import Fusion, MixtureOfExperts, Traits
from opsin.models.vision_files import VisionFiles

TABLE = "facts.toml"


class Evidence(StrEnum):
    """What an entry rests on.

    READ: the checkpoint's files, a public copy of them, or the code of an engine. COUNT: remembered, and the parameter
    count that follows equals the published one. MEMORY: nothing of that; nobody has checked it.
    """

    READ = "read"
    COUNT = "count"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Billions. ``vision`` is the encoder with its connector."""

    total: float
    text: float | None = None
    vision: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextShape:
    """The language model. ``kv_bytes_*`` are for a 16-bit cache and given where they do not follow from the rest.

    ``full_attention_layers`` are those whose cache grows with every token, ``kv_bytes_per_request`` what the others
    take at most; ``deepstack_layers`` take features of their own from the encoder, each as wide as ``hidden_size``.
    """

    layers: int | None = None
    full_attention_layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden_size: int | None = None
    deepstack_layers: int = 0
    kv_bytes_per_token: int | None = None
    kv_bytes_per_request: int | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One checkpoint. ``vision_verified`` is about what counts its pictures, ``verified`` about all the rest."""

    model_id: str
    vision: VisionFiles
    vision_verified: bool
    vision_source: str
    parameters: Parameters | None
    text: TextShape
    traits: Traits
    verified: bool
    source: str


def facts_of(model_id: str) -> Facts | None:
    """The facts of a Hub id, None where it is not in the table."""
    return known_checkpoints().get(model_id)


@cache
def known_checkpoints() -> Mapping[str, Facts]:
    """All of the table, by Hub id."""
    data = files("opsin.models").joinpath(TABLE).read_bytes()
    table = msgspec.toml.decode(data, type=_Table)
    return {
        model_id: _facts(model_id, entry, table.vision[entry.vision]) for model_id, entry in table.checkpoint.items()
    }


_UNKNOWN = TextShape()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vision:
    """Excerpts of the files that decide about pictures, as they lie in a checkpoint."""

    evidence: Evidence
    source: str
    image_processor: dict[str, Any] | None = None
    processor: dict[str, Any] | None = None
    config: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checkpoint:
    model_type: str
    vision: str
    fusion: Fusion
    evidence: Evidence
    source: str = ""
    parameters: Parameters | None = None
    text: TextShape = _UNKNOWN
    moe: MixtureOfExperts | None = None


@dataclass(frozen=True, slots=True)
class _Table:
    vision: dict[str, _Vision]
    checkpoint: dict[str, _Checkpoint]


def _facts(model_id: str, entry: _Checkpoint, vision: _Vision) -> Facts:
    return Facts(
        model_id=model_id,
        vision=VisionFiles(
            model_type=entry.model_type,
            config=_document(vision.config, f"{TABLE}: {entry.vision}.config"),
            image_processor=_document(vision.image_processor, f"{TABLE}: {entry.vision}.image_processor"),
            processor=_document(vision.processor, f"{TABLE}: {entry.vision}.processor"),
        ),
        vision_verified=vision.evidence is Evidence.READ,
        vision_source=vision.source,
        parameters=entry.parameters,
        text=entry.text,
        traits=Traits(fusion=entry.fusion, moe=entry.moe),
        verified=entry.evidence is Evidence.READ,
        source=entry.source,
    )


def _document(excerpt: dict[str, Any] | None, name: str) -> Document:
    return Document(name, msgspec.json.encode(excerpt or {}))
