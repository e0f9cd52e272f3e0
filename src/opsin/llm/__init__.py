"""The library: ``LLM`` and what goes in and out of it. Knows no HTTP and no command line."""

from opsin.llm.llm import LLM
from opsin.llm.outputs import CompletionOutput, RequestOutput
from opsin.llm.sampling import SamplingParams

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams"]
