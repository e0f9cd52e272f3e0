"""Transformers' own counting, asked about pictures that have a size and no memory."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from opsin.models.files import Document
from opsin.models.vision_files import VisionFiles
from opsin.vision.plan import Size
from tests import checkpoints

SIDES = st.one_of(st.integers(1, 64), st.integers(1, 2048), st.integers(1, 8192))
EXTREMES = ((1, 1), (1, 2), (1, 199), (201, 1), (1, 8192), (8192, 1), (8192, 8192), (40, 7999), (8191, 41))
EXACT = ((336, 336), (672, 336), (384, 768), (448, 448), (896, 448), (560, 1120), (560, 560), (1540, 1540), (640, 480))

_TORCHVISION = (
    "torchvision",
    "torchvision.transforms",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)


def over_sizes(*ties: tuple[int, int], max_examples: int = 100) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A property of ``width`` and ``height``.

    Always among them EXTREMES, EXACT, and ``ties``: sizes at which the last bit of a float or the order of a comparison
    decides, which random ones hardly ever are.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        for width, height in (*EXTREMES, *EXACT, *ties):
            test = example(width=width, height=height)(test)
        return settings(max_examples=max_examples, deadline=None)(given(width=SIDES, height=SIDES)(test))

    return decorate


def of_transformers(module: str) -> Any:
    """A module of Transformers' models, untyped: its types are partial and of no use to arithmetic.

    Without torchvision too, which some modules import for pixel work that no test does.
    """
    name = f"transformers.models.{module}"
    if find_spec("torchvision") is not None:
        return importlib.import_module(name)
    # What looks for torchvision by itself has to look before it seems to be there.
    importlib.import_module("transformers.image_processing_backends")
    stand_ins = {stub: ModuleType(stub) for stub in _TORCHVISION}
    sys.modules.update(stand_ins)
    try:
        return importlib.import_module(name)
    finally:
        for stub in stand_ins:
            del sys.modules[stub]


def pixels_without_memory(size: Size) -> Any:
    """Channels first, as the backends have it."""
    return np.broadcast_to(np.uint8(0), (3, size.height, size.width))


def files(model_type: str, image_processor: Any = None, processor: str = "{}", config: str = "{}") -> VisionFiles:
    """A checkpoint's files, the image processor's as Transformers writes it."""
    written = "{}" if image_processor is None else image_processor.to_json_string()
    return VisionFiles(
        model_type=model_type,
        config=Document("config.json", config.encode()),
        image_processor=Document("preprocessor_config.json", written.encode()),
        processor=Document("processor_config.json", processor.encode()),
    )


def tokenizer(**tokens: str) -> PreTrainedTokenizerFast:
    """One that knows special tokens by name, as ``image_token``; each is one token."""
    base = checkpoints.tokenizer()
    base.add_special_tokens({"additional_special_tokens": list(tokens.values())})
    for name, text in tokens.items():
        setattr(base, name, text)
        setattr(base, f"{name}_id", base.convert_tokens_to_ids(text))
    return base


def without_init(processor: type, **attributes: object) -> Any:
    """A processor for its arithmetic alone: its constructor wants a tokenizer and parts for video or sound."""
    bare = cast("Any", object.__new__(processor))
    for name, value in attributes.items():
        setattr(bare, name, value)
    return bare
