"""Plans the pictures of a conversation for an engine with a template and a processor of its own.

Known from sizes, before anything is decoded: what the pictures cost there, whether they fit beside the text, and at
which size each one has to be sent so that it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsin.core.conversation import Conversation
from opsin.gateway.budget import Fitted, Want, fit
from opsin.gateway.config import GatewayConfig
from opsin.gateway.context import Context
from opsin.gateway.plan_check import PlannedTokens
from opsin.prompt.length import TextLength, TextMeasure
from opsin.vision.bounds import bounded
from opsin.vision.by_size import BySize
from opsin.vision.plan import Count, Family, Size


@dataclass(frozen=True, slots=True)
class PlannedPicture:
    """``size`` is that at which the picture has to be sent, None where it can go as it came; ``least_size`` that below
    which the model would get less.

    ``scaled``: it is smaller than its ``detail`` asks for, because more would not fit.
    """

    count: Count
    size: Size | None
    least_size: Size | None
    scaled: bool


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """The pictures of one conversation, in order, and what the whole takes."""

    pictures: tuple[PlannedPicture, ...]
    tokens: PlannedTokens


@dataclass(frozen=True, slots=True)
class TextPlanner:
    """Plans pictures beside one text. ``max_model_len`` is None where nobody knows it: then the limits alone hold."""

    family: BySize
    text: TextLength
    limits: GatewayConfig
    max_model_len: int | None

    def plan(self, wants: Sequence[Want], max_tokens: int | None) -> MessagePlan:
        """Without pictures nothing is refused: the engine knows its own text best.

        Raises:
            MediaError: a limit of the operator is exceeded, or the model takes no picture of this shape.
            ContextLengthExceeded: the pictures do not fit beside the text.
        """
        fitted = self._fitted(wants, max_tokens) if wants else ()
        pictures = tuple(_planned(want, one, len(wants)) for want, one in zip(wants, fitted, strict=True))
        counts = [picture.count for picture in pictures]
        return MessagePlan(
            pictures,
            PlannedTokens(
                image_tokens=sum(count.image_tokens for count in counts),
                marker_tokens=sum(count.marker_tokens for count in counts),
                prompt_tokens=(
                    self.text.tokens + sum(count.prompt_tokens for count in counts) if self.text.is_exact else None
                ),
            ),
        )

    def _fitted(self, wants: Sequence[Want], max_tokens: int | None) -> tuple[Fitted[BySize], ...]:
        if self.max_model_len is None:
            return fit(self.family, wants, None, self.limits)
        return Context(self.family, self.limits, self.max_model_len).fit(wants, self.text.tokens, max_tokens)


class MessagePlanner:
    """For one model at one engine."""

    def __init__(self, *, family: Family, text: TextMeasure, limits: GatewayConfig, max_model_len: int | None) -> None:
        self._family = family
        self._text = text
        self._limits = limits
        self._max_model_len = max_model_len

    def beside(self, conversation: Conversation) -> TextPlanner:
        """Measures the text, which takes time in proportion to it. Raises InvalidRequest as ``bounded``."""
        family = BySize(self._family, bounded(self._family, conversation.bounds))
        return TextPlanner(family, self._text.length(conversation), self._limits, self._max_model_len)


def _planned(want: Want, fitted: Fitted[BySize], num_pictures: int) -> PlannedPicture:
    how = (want.size, want.detail, num_pictures)
    family = fitted.family
    return PlannedPicture(fitted.count, family.size_to_send(*how), family.least_size(*how), fitted.scaled)
