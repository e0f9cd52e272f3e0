"""What a prompt and its pictures become together, under all limits: known from sizes, before anything is decoded.

Shared by requests that are answered and by those that only ask what one would cost, so that the two cannot disagree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from opsin.core.conversation import UNBOUNDED, Conversation, Prompt
from opsin.core.errors import UnsupportedParameter
from opsin.gateway.budget import Fitted, Want, check
from opsin.gateway.config import GatewayConfig
from opsin.gateway.context import Context
from opsin.gateway.message_plan import MessagePlanner, TextPlanner
from opsin.prompt.build import PromptBuilder, TokenisedPrompt
from opsin.prompt.guard import Guarded, TextGuard
from opsin.vision.bounds import bounded
from opsin.vision.plan import NativeFamily

LONG_TEXT_CHARS = 8192
"""Longer texts are read beside the event loop; the hop costs more than tokenising a short one."""


@dataclass(frozen=True, slots=True)
class FittedPrompt:
    """The tokens of the text, and what each picture becomes beside it."""

    tokenised: TokenisedPrompt
    pictures: tuple[Fitted[NativeFamily], ...]


class PromptFitter:
    """For engines that read token ids: the length of the text is known to the token."""

    def __init__(
        self, *, family: NativeFamily, builder: PromptBuilder, limits: GatewayConfig, max_model_len: int
    ) -> None:
        self.max_model_len = max_model_len
        self._family = family
        self._builder = builder
        self._limits = limits

    async def fit(self, prompt: Prompt, wants: Sequence[Want], max_tokens: int | None) -> FittedPrompt:
        """A settled prompt with its pictures, as large as they can be.

        Raises:
            MediaError, ContextLengthExceeded: as ``budget.fit``; the latter also for a text that is too long.
            InvalidRequest: as ``bounded`` and ``PromptBuilder.tokenise``.
        """
        context = Context(self.family_for(prompt), self._limits, self.max_model_len)
        self._refuse_hopeless(context, prompt, wants, max_tokens)
        tokenised = await self.tokenised(prompt)
        return FittedPrompt(tokenised, context.fit(wants, tokenised.text_tokens, max_tokens))

    def family_for(self, prompt: Prompt) -> NativeFamily:
        """The operator's, lowered to what the client asks for. Raises InvalidRequest."""
        return bounded(self._family, prompt.bounds)

    async def tokenised(self, prompt: Prompt) -> TokenisedPrompt:
        """The text alone. Raises InvalidRequest."""
        if prompt.num_chars > LONG_TEXT_CHARS:
            return await asyncio.to_thread(self._builder.tokenise, prompt)
        return self._builder.tokenise(prompt)

    def left(self, num_tokens: int, max_tokens: int | None) -> int:
        """See Context."""
        return Context(self._family, self._limits, self.max_model_len).left(num_tokens, max_tokens)

    def _refuse_hopeless(
        self, context: Context[NativeFamily], prompt: Prompt, wants: Sequence[Want], max_tokens: int | None
    ) -> None:
        """For next to nothing: pictures over a limit, and a long text that cannot fit however it is tokenised."""
        room = None
        if prompt.num_chars > LONG_TEXT_CHARS:
            least = self._builder.least_tokens(prompt)
            room = self.max_model_len - least - (max_tokens or 1)
            if room < 0:
                raise context.too_long(f"at least {least}", max_tokens)
        check(context.family, wants, room, self._limits)


@dataclass(frozen=True, slots=True)
class ReadConversation:
    """A conversation as it is sent. ``planner`` plans pictures beside it, None where the engine's model is unknown."""

    guarded: Guarded
    planner: TextPlanner | None


class MessageFitter:
    """For engines with a template of their own. Texts are kept from spelling special tokens, because such an engine
    tokenises them together with its template; pictures are planned as soon as its model is known (``plan_with``)."""

    def __init__(self, guard: TextGuard) -> None:
        self._guard = guard
        self._planner: MessagePlanner | None = None
        self.max_model_len: int | None = None
        """What the engine says, once it runs; None also where it does not."""

    def plan_with(self, planner: MessagePlanner) -> None:
        """The engine's model is known from now on."""
        self._planner = planner

    async def read(self, conversation: Conversation) -> ReadConversation:
        """The text as it is sent, and what it takes, where that can be said.

        Raises:
            InvalidRequest: as ``TextGuard.guard`` and ``bounded``; for all bounds on pictures where no model is known.
        """
        if conversation.num_chars > LONG_TEXT_CHARS:
            return await asyncio.to_thread(self._read, conversation)
        return self._read(conversation)

    def _read(self, conversation: Conversation) -> ReadConversation:
        planner = self._planner
        if planner is None and conversation.bounds != UNBOUNDED:
            raise UnsupportedParameter(
                "'mm_processor_kwargs' needs the local engine, or an upstream whose model is known (--model)",
                param="mm_processor_kwargs",
            )
        guarded = self._guard.guard(conversation)
        return ReadConversation(guarded, planner.beside(guarded.conversation) if planner else None)
