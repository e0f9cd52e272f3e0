"""How the tokens of an answer are chosen, as vLLM's users write it."""

from __future__ import annotations

from dataclasses import dataclass

from opsin.core.errors import UnsupportedParameter
from opsin.protocol.request import SamplingFields, check_sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Names and meaning are vLLM's; ranges are those of a request over HTTP.

    None leaves a field to the model: its ``generation_config.json`` where that says something, as over HTTP. So
    ``max_tokens`` is as many as fit into ``max_model_len``, not vLLM's surprising 16. ``temperature`` 0 is greedy;
    ``top_k`` 0 or -1 is off.

    Raises:
        InvalidRequest: a value is out of range; says which one, and what it was.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    n: int = 1

    def __post_init__(self) -> None:
        if self.n != 1:
            raise UnsupportedParameter(f"'n' must be 1, one answer for each prompt; got {self.n!r}", param="n")
        self.to_fields()

    def to_fields(self) -> SamplingFields:
        """The same for a request."""
        return check_sampling(self.to_wire())

    def to_wire(self) -> dict[str, object]:
        """The fields of a request's JSON."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "seed": self.seed,
            "stop": self.stop,
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens,
            "ignore_eos": self.ignore_eos,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
        }
