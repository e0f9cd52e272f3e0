"""From a prompt and its loaded pictures to what an engine reads.

One preparer per kind of engine: a TOKENS engine gets token ids and rendered pixels, a MESSAGES engine gets the
conversation and files. Both run between ``media.load`` and ``engine.submit``.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from opsin.cache.keys import FeatureKeys, Scopes, picture_name
from opsin.cache.rendering import Made
from opsin.cache.store import MISS
from opsin.core.conversation import Conversation, Prompt, RawPrompt
from opsin.core.errors import UnsupportedParameter
from opsin.core.together import together
from opsin.core.warnings import AnswerWarning, WarningCode
from opsin.engine.api import ChatPrompt, Engine, Picture, TokenPrompt
from opsin.gateway.budget import Fitted, Want
from opsin.gateway.cache_header import CacheFindings
from opsin.gateway.fitting import MessageFitter, PromptFitter, ReadConversation
from opsin.gateway.message_plan import PlannedPicture
from opsin.gateway.plan_check import PlannedTokens
from opsin.gateway.sending import Rewrite, Sending, conversion_warnings
from opsin.media.encoding import Encoding
from opsin.media.types import ImageHeader, MediaBytes, RenderedPicture
from opsin.prompt.build import PromptBuilder
from opsin.telemetry.metrics import Metrics
from opsin.tenants.lanes import Cost
from opsin.vision.plan import Count, Family, RenderRecipe, Size, VisionPlan, planned

_GUESSED_PATCH = 28
_MAX_GUESSED_TOKENS = 4096
_CHARS_PER_TOKEN = 4
"""For the order of turns, and for limits where no model is known; never told as a count."""


@dataclass(frozen=True, slots=True)
class UsedPicture:
    """A picture as its file says, and what the model gets of it: None where the engine alone knows.

    ``found`` is what the caches had of it. ``scaled``: it is smaller than its ``detail`` asks for, because more would
    not fit. ``sent`` is the file that went to the engine in the place of the one that came.
    """

    header: ImageHeader
    found: CacheFindings
    count: Count | None = None
    scaled: bool = False
    sent: Rewrite | None = None


@dataclass(frozen=True, slots=True)
class Lookups:
    """How many pictures of a request the engine had, and how many not, as far as it could be known before."""

    hits: int
    misses: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """What ``engine.submit`` needs; ``max_tokens`` is what the context leaves, None if the limit is unknown.

    ``used`` are the pictures in order. ``text`` is the rendered prompt, each picture one placeholder; None where the
    engine applies its own template. ``warnings`` are about the prompt. ``planned`` is what the engine should count,
    None where it alone knows. ``lookups`` are not counted yet: the answer will tell whether they were right.
    """

    prompt: TokenPrompt | ChatPrompt
    pictures: tuple[Picture, ...]
    used: tuple[UsedPicture, ...]
    max_tokens: int | None
    text: str | None = None
    warnings: tuple[AnswerWarning, ...] = ()
    planned: PlannedTokens | None = None
    lookups: Lookups | None = None


class Renderer(Protocol):
    """Decodes pictures apart from this process, and may remember within a scope what became of them."""

    async def render(self, scope: str, media: MediaBytes, recipe: RenderRecipe) -> Made[RenderedPicture]:
        """The tiles of a picture. Raises MediaError."""
        ...

    async def verify(self, scope: str, media: MediaBytes) -> Made[None]:
        """Decodes a picture completely, of which nothing is left. Raises MediaError."""
        ...

    async def scale(self, scope: str, media: MediaBytes, size: Size, encoding: Encoding) -> Made[MediaBytes]:
        """A picture scaled down and written anew. Raises MediaError."""
        ...


class Gate(Protocol):
    """Where a request waits once it is known what it takes."""

    async def enter(self, cost: Cost) -> None:
        """Returns when it may go on. Raises RateLimited, MediaError, Overloaded."""
        ...


class Preparer(Protocol):
    """Prepares one request; may take leases that end with the request.

    Passes ``gate`` once, when all sizes are known and before a picture is decoded or a lease taken.
    """

    async def prepare(
        self,
        request_id: str,
        scope: str,
        prompt: Prompt,
        media: Sequence[MediaBytes],
        max_tokens: int | None,
        gate: Gate,
    ) -> Prepared:
        """Raises MediaError for a picture that cannot be rendered or is over a limit, ContextLengthExceeded for one
        that does not fit, InvalidRequest for a prompt that this engine cannot read."""
        ...


class TokenPreparer:
    """For engines that read token ids and pixels: plan → budget → reserve → render → build."""

    def __init__(
        self,
        *,
        fitter: PromptFitter,
        keys: FeatureKeys,
        scopes: Scopes,
        engine: Engine,
        renderer: Renderer,
        builder: PromptBuilder,
        metrics: Metrics,
    ) -> None:
        self._fitter = fitter
        self._keys = keys
        self._scopes = scopes
        self._engine = engine
        self._renderer = renderer
        self._builder = builder
        self._metrics = metrics

    async def prepare(
        self,
        request_id: str,
        scope: str,
        prompt: Prompt,
        media: Sequence[MediaBytes],
        max_tokens: int | None,
        gate: Gate,
    ) -> Prepared:
        """See Preparer."""
        prompt = self._builder.settle(prompt)
        wants = wanted(prompt, media)
        fitted = await self._fitter.fit(prompt, wants, max_tokens)
        plans = [
            planned(one.family, want.size, want.detail, len(wants))
            for want, one in zip(wants, fitted.pictures, strict=True)
        ]
        image_tokens = sum(plan.image_tokens for plan in plans)
        await gate.enter(Cost(image_tokens, fitted.tokenised.text_tokens))
        keys = [self._keys.key(scope, picture.sha256, plan) for picture, plan in zip(media, plans, strict=True)]
        reservation = await self._engine.reserve(request_id, keys)
        self._count_lookups(keys, reservation.leased)
        ready = await self._render(scope, media, plans, keys, reservation.leased)
        built = self._builder.expand(fitted.tokenised, plans)
        left = self._fitter.left(len(built.ids), max_tokens)
        return Prepared(
            prompt=TokenPrompt(built.ids),
            pictures=tuple(one.picture for one in ready),
            used=tuple(
                UsedPicture(picture.header, one.found, fit.count, fit.scaled)
                for picture, one, fit in zip(media, ready, fitted.pictures, strict=True)
            ),
            max_tokens=max_tokens or left,
            text=built.text,
            warnings=tuple(downscale_warnings(wants, fitted.pictures)),
            planned=PlannedTokens(
                image_tokens=image_tokens,
                marker_tokens=sum(plan.marker_tokens for plan in plans),
                prompt_tokens=len(built.ids),
            ),
        )

    def _count_lookups(self, keys: Sequence[str], leased: frozenset[str]) -> None:
        hits = sum(key in leased for key in keys)
        self._metrics.looked_up(hits=hits, misses=len(keys) - hits)

    async def _render(
        self,
        scope: str,
        media: Sequence[MediaBytes],
        plans: Sequence[VisionPlan],
        keys: Sequence[str],
        leased: frozenset[str],
    ) -> tuple[_Ready, ...]:
        return await together(
            self._picture(scope, picture, plan, key, known=key in leased)
            for picture, plan, key in zip(media, plans, keys, strict=True)
        )

    async def _picture(self, scope: str, media: MediaBytes, plan: VisionPlan, key: str, *, known: bool) -> _Ready:
        made = None
        if not known:
            with _measured(self._metrics):
                made = await self._renderer.render(scope, media, plan.recipe)
        picture = Picture(
            key=key,
            image_tokens=plan.image_tokens,
            num_tiles=plan.num_tiles,
            origin=self._scopes.record(scope, media.sha256),
            upright=plan.original,
            rendered=made and made.result,
        )
        return _ready(picture, media, made, known=known)


class MessagePreparer:
    """For engines with a template of their own. Every picture is decoded once in the sandbox, then sent as it came.

    Where the engine's model is known, pictures are counted and limited before that. One that has to be smaller, or that
    the engine does not read, is written anew; ``offload`` has all of them written that are larger than it needs. What
    is leased was decoded when it was sent.
    """

    def __init__(
        self,
        *,
        fitter: MessageFitter,
        scopes: Scopes,
        engine: Engine,
        renderer: Renderer,
        metrics: Metrics,
        offload: Encoding | None = None,
    ) -> None:
        self._fitter = fitter
        self._scopes = scopes
        self._engine = engine
        self._renderer = renderer
        self._metrics = metrics
        self._offload = offload

    async def prepare(
        self,
        request_id: str,
        scope: str,
        prompt: Prompt,
        media: Sequence[MediaBytes],
        max_tokens: int | None,
        gate: Gate,
    ) -> Prepared:
        """See Preparer."""
        conversation = _as_chat(prompt)
        read = await self._fitter.read(conversation)
        plan = _plan(read, conversation, media, max_tokens)
        await gate.enter(plan.cost)
        files = self._files(media, plan)
        salted = self._scopes.salted(scope)  # by another salt nothing is found of what such an engine cannot delete
        keys = [file.key(salted) for file in files]
        leased = (await self._engine.reserve(request_id, keys)).leased if keys else frozenset[str]()
        ready = await together(
            self._picture(scope, file, key, known=key in leased) for file, key in zip(files, keys, strict=True)
        )
        hits = sum(key in leased for key in keys)
        return Prepared(
            prompt=ChatPrompt(read.guarded.conversation),
            pictures=tuple(one.picture for one in ready),
            used=tuple(file.used(one.found) for file, one in zip(files, ready, strict=True)),
            max_tokens=max_tokens,
            warnings=(*plan.warnings, *conversion_warnings(media, [file.rewrite for file in files])),
            planned=plan.tokens,
            lookups=Lookups(hits, len(keys) - hits),
        )

    def _files(self, media: Sequence[MediaBytes], plan: _Plan) -> list[_File]:
        sending = Sending(self._engine.capabilities(), self._offload)
        return [
            _File(picture, planned, sending.rewrite(picture.header, planned))
            for picture, planned in zip(media, plan.pictures, strict=True)
        ]

    async def _picture(self, scope: str, file: _File, key: str, *, known: bool) -> _Ready:
        count = file.plan.count if file.plan else None
        made = await self._written(scope, file, known=known)
        picture = Picture(
            key=key,
            image_tokens=count.image_tokens if count else None,
            num_tiles=count.num_tiles if count else None,
            origin=self._scopes.record(scope, file.media.sha256),
            media=made.result if made else file.media,
        )
        return _ready(picture, file.media, made, known=known)

    async def _written(self, scope: str, file: _File, *, known: bool) -> Made[MediaBytes] | None:
        """None for one that goes as it came and was decoded before."""
        if file.rewrite is None and known:
            return None
        with _measured(self._metrics):
            if file.rewrite is not None:
                return await self._renderer.scale(scope, file.media, file.rewrite.size, file.rewrite.encoding)
            verified = await self._renderer.verify(scope, file.media)
            return Made(file.media, verified.outcome)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a conversation costs and becomes; ``tokens`` and each of ``pictures`` are None where no model is known."""

    cost: Cost
    pictures: tuple[PlannedPicture | None, ...]
    tokens: PlannedTokens | None
    warnings: tuple[AnswerWarning, ...]


def _as_chat(prompt: Prompt) -> Conversation:
    """Raises UnsupportedParameter for a prompt that only a tokenizer of ours could read."""
    if not isinstance(prompt, RawPrompt):
        return prompt
    if not prompt.pictures or not isinstance(prompt.text, str):
        raise UnsupportedParameter(
            "a raw prompt needs the local engine: this one applies its own template; send a chat instead",
            param="prompt",
        )
    return prompt.as_turn()


def _plan(
    read: ReadConversation, conversation: Conversation, media: Sequence[MediaBytes], max_tokens: int | None
) -> _Plan:
    """Raises as ``TextPlanner.plan``."""
    if read.planner is None:
        guessed = Cost(sum(map(_guessed_tokens, media)), conversation.num_chars // _CHARS_PER_TOKEN)
        return _Plan(guessed, (None,) * len(media), None, read.guarded.warnings)
    wants = wanted(conversation, media)
    plan = read.planner.plan(wants, max_tokens)
    return _Plan(
        cost=Cost(plan.tokens.image_tokens, read.planner.text.tokens),
        pictures=plan.pictures,
        tokens=plan.tokens,
        warnings=(*read.guarded.warnings, *downscale_warnings(wants, plan.pictures)),
    )


@dataclass(frozen=True, slots=True)
class _Ready:
    """A picture as the engine gets it, and what the caches had of it."""

    picture: Picture
    found: CacheFindings


def _ready(
    picture: Picture, media: MediaBytes, made: Made[RenderedPicture] | Made[MediaBytes] | None, *, known: bool
) -> _Ready:
    """``made`` is None where the sandbox was not needed, ``known`` what the engine has already."""
    found = CacheFindings(
        record=picture.origin,
        media=media.url_outcome,
        render=made and made.outcome,
        features="hit" if known else MISS,
    )
    return _Ready(picture, found)


@dataclass(frozen=True, slots=True)
class _File:
    """A picture that came, what it becomes, and as which file it goes on."""

    media: MediaBytes
    plan: PlannedPicture | None
    rewrite: Rewrite | None

    def key(self, scope: str) -> str:
        """Names what the engine gets."""
        return picture_name(scope, self.media.sha256, self.rewrite.name if self.rewrite else "")

    def used(self, found: CacheFindings) -> UsedPicture:
        """For the answer."""
        if self.plan is None:
            return UsedPicture(self.media.header, found, sent=self.rewrite)
        return UsedPicture(self.media.header, found, self.plan.count, self.plan.scaled, self.rewrite)


def _guessed_tokens(media: MediaBytes) -> int:
    """Of a picture whose model nobody knows: a token for 28 x 28 pixels, as Qwen's, and at most 4096."""
    size = media.header.upright
    return min(_MAX_GUESSED_TOKENS, -(-size.width // _GUESSED_PATCH) * -(-size.height // _GUESSED_PATCH))


@contextmanager
def _measured(metrics: Metrics) -> Generator[None]:
    """The work of a sandbox worker on one picture."""
    started = time.monotonic()
    yield
    metrics.preprocess.observe(time.monotonic() - started)


def wanted(prompt: Prompt, media: Sequence[MediaBytes]) -> list[Want]:
    """The pictures of a prompt as they were asked for."""
    return [
        Want(picture.header.upright, ref.detail, picture.param)
        for picture, ref in zip(media, prompt.media(), strict=True)
    ]


def downscale_warnings(
    wants: Sequence[Want], fitted: Sequence[Fitted[Family] | PlannedPicture]
) -> Iterator[AnswerWarning]:
    """One for each picture that a budget made smaller."""
    for want, one in zip(wants, fitted, strict=True):
        if one.scaled:
            used, tokens = one.count.used, one.count.image_tokens
            yield AnswerWarning(
                WarningCode.IMAGE_DOWNSCALED,
                f"The picture is read at {used.width} x {used.height} pixels, {tokens} visual tokens: more do not fit.",
                want.param,
            )
