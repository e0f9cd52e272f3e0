"""opsin: a safe, cached, measured serving system for vision-language models.

``from opsin import LLM, SamplingParams``, or ``ImagePreprocessor``, loads the library only then: plain ``import opsin``
stays cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opsin.llm import LLM, RequestOutput, SamplingParams
    from opsin.preprocessing import ImagePreprocessor

__version__ = "0.1.0"
__all__ = ["LLM", "ImagePreprocessor", "RequestOutput", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    if name == "ImagePreprocessor":
        return import_module("opsin.preprocessing").ImagePreprocessor
    if name in __all__:
        return getattr(import_module("opsin.llm"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
