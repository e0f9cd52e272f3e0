"""What a prompt, its pictures and its answer share: a model's context. Knows no text and no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from opsin.core.errors import ContextLengthExceeded
from opsin.gateway.budget import Fitted, Want, fit
from opsin.gateway.config import GatewayConfig
from opsin.vision.plan import Family

F = TypeVar("F", bound=Family)

ANSWER_TOKENS = 256
"""What scaled pictures leave of the context for an answer of no stated length, but at most an eighth of it."""


@dataclass(frozen=True, slots=True)
class Context(Generic[F]):
    """``max_model_len`` tokens; pictures are counted by ``family`` and within ``limits``."""

    family: F
    limits: GatewayConfig
    max_model_len: int

    def fit(self, wants: Sequence[Want], text_tokens: int, max_tokens: int | None) -> tuple[Fitted[F], ...]:
        """The pictures beside a text, as large as they can be.

        Raises:
            MediaError, ContextLengthExceeded: as ``budget.fit``; the latter also for a text that is too long.
        """
        left = self.left(text_tokens, max_tokens)
        if max_tokens is not None:
            return fit(self.family, wants, left - max_tokens, self.limits)
        try:
            return fit(self.family, wants, left - min(ANSWER_TOKENS, self.max_model_len // 8), self.limits)
        except ContextLengthExceeded:
            return fit(self.family, wants, left - 1, self.limits)

    def left(self, num_tokens: int, max_tokens: int | None) -> int:
        """What is left beside a prompt. Raises ContextLengthExceeded when it is too little to answer."""
        left = self.max_model_len - num_tokens
        if left < (max_tokens or 1):
            raise self.too_long(str(num_tokens), max_tokens)
        return left

    def too_long(self, num_tokens: str, max_tokens: int | None) -> ContextLengthExceeded:
        """For a prompt of so many tokens."""
        asked = "an answer takes at least 1" if max_tokens is None else f"{max_tokens} output tokens were asked for"
        return ContextLengthExceeded(
            f"the prompt has {num_tokens} tokens and {asked}, but max_model_len is {self.max_model_len}",
            param="max_tokens" if (max_tokens or 1) > self.max_model_len else "messages",
        )
