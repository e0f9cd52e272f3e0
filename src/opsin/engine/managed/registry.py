"""The engines that opsin can start, by the name that ``--engine`` takes."""

from __future__ import annotations

from opsin.engine.managed.llama_cpp import LLAMA_CPP
from opsin.engine.managed.ramalama import RAMALAMA
from opsin.engine.managed.sglang import SGLANG
from opsin.engine.managed.vllm import VLLM

PROGRAMS = {engine.name: engine for engine in (VLLM, SGLANG, LLAMA_CPP, RAMALAMA)}
