"""What a chat request would cost, for ``POST /v1/tokens`` and ``opsin tokens``. Decodes nothing and asks no engine.

A counter is to a preparer what a price is to a sale: it goes the same way as far as that is known from sizes. What a
request would be refused for its size becomes part of the answer, and everything else that is wrong with it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from opsin.core.conversation import UNBOUNDED, Conversation, MediaRef, PixelBounds
from opsin.core.errors import Code, InvalidRequest
from opsin.core.warnings import AnswerWarning
from opsin.gateway.budget import Fitted, Want, fit
from opsin.gateway.chat import check_min_tokens
from opsin.gateway.config import GatewayConfig
from opsin.gateway.fitting import LONG_TEXT_CHARS, MessageFitter, PromptFitter
from opsin.gateway.message_plan import PlannedPicture, TextPlanner
from opsin.gateway.prepare import downscale_warnings
from opsin.media.label import label_warnings
from opsin.media.types import Glance, LiftedMedia
from opsin.prompt.build import PromptBuilder
from opsin.protocol.request import ChatCompletionRequest, to_conversation
from opsin.protocol.response import ImageCount, TokenCount, TurnedCount, WarningObject, error_object
from opsin.vision.bounds import bounded
from opsin.vision.plan import Count, Family, Size

_OF_SIZE = frozenset({Code.TOO_MANY_IMAGE_TOKENS, Code.CONTEXT_LENGTH_EXCEEDED})


@dataclass(frozen=True, slots=True)
class View:
    """A picture that is to be counted. Unless ``is_settled`` it may turn out to lie on its side."""

    want: Want
    is_settled: bool = True

    @property
    def turned(self) -> Want:
        """The other way round, where that is possible."""
        size = self.want.size
        return self.want if self.is_settled else replace(self.want, size=Size(size.height, size.width))


@dataclass(frozen=True, slots=True)
class CountedPicture:
    """``count`` is None where the engine alone knows; ``turned`` is another one if the picture lies on its side."""

    size: Size
    count: Count | None = None
    scaled: bool = False
    turned: Count | None = None

    @property
    def is_exact(self) -> bool:
        """Whether this is what the picture will cost."""
        return self.count is not None and self.count.exact and self.turned is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """``text_tokens`` are all that are not the pictures', the template's among them; None where nobody counted them.

    ``refusal`` is what the request would be told for its size; its pictures are then counted as they were asked for.
    ``is_limited``: somebody here knows what fits, and not the engine alone. ``max_tokens`` is the output that is asked
    for, or else all that there is room for; None where nobody here limits it.
    """

    pictures: tuple[CountedPicture, ...]
    text_tokens: int | None = None
    max_model_len: int | None = None
    refusal: InvalidRequest | None = None
    is_limited: bool = True
    max_tokens: int | None = None
    warnings: tuple[AnswerWarning, ...] = ()

    @property
    def image_tokens(self) -> int | None:
        """Of all pictures."""
        return self._sum(lambda count: count.image_tokens)

    @property
    def marker_tokens(self) -> int | None:
        """Of all pictures."""
        return self._sum(lambda count: count.marker_tokens)

    @property
    def cross_attention_tokens(self) -> int | None:
        """Of all pictures."""
        return self._sum(lambda count: count.cross_attention_tokens)

    @property
    def prompt_tokens(self) -> int | None:
        """Text and pictures."""
        of_pictures = self._sum(lambda count: count.prompt_tokens)
        return None if of_pictures is None or self.text_tokens is None else self.text_tokens + of_pictures

    @property
    def fits(self) -> bool | None:
        """None where nobody knows; of a picture that may lie on its side both ways have to."""
        if self.refusal is not None:
            return False
        return True if self.is_limited else None

    def _sum(self, measure: Callable[[Count], int]) -> int | None:
        counts = [picture.count for picture in self.pictures]
        return None if None in counts else sum(measure(count) for count in counts if count is not None)


class Counter(Protocol):
    """Counts the prompts of one kind of engine."""

    async def count(self, prompt: Conversation, views: Sequence[View], max_tokens: int | None) -> Counted:
        """Of the pictures in ``views``, in order. Raises InvalidRequest for all that is wrong but the size."""
        ...


class PromptCounter:
    """For engines that read token ids: to the token, by the same steps as the request itself."""

    def __init__(self, fitter: PromptFitter, builder: PromptBuilder) -> None:
        self._fitter = fitter
        self._builder = builder

    async def count(self, prompt: Conversation, views: Sequence[View], max_tokens: int | None) -> Counted:
        """See Counter."""
        settled = self._builder.settle(prompt)
        wants, turned = [view.want for view in views], [view.turned for view in views]
        try:
            fitted = await self._fitter.fit(settled, wants, max_tokens)
            on_their_sides = fitted if turned == wants else await self._fitter.fit(settled, turned, max_tokens)
        except InvalidRequest as error:
            is_short = prompt.num_chars <= LONG_TEXT_CHARS
            text_tokens = (await self._fitter.tokenised(settled)).text_tokens if is_short else None
            counted = _as_asked(self._fitter.family_for(settled), views, error)
            return replace(counted, text_tokens=text_tokens, max_model_len=self._fitter.max_model_len)
        counted = _merged(views, fitted.pictures, on_their_sides.pictures)
        text_tokens = fitted.tokenised.text_tokens
        prompt_tokens = text_tokens + sum(picture.count.prompt_tokens for picture in fitted.pictures)
        max_model_len = self._fitter.max_model_len
        max_tokens = max_tokens or max_model_len - prompt_tokens
        return replace(counted, text_tokens=text_tokens, max_model_len=max_model_len, max_tokens=max_tokens)


class PictureCounter:
    """Where no tokenizer is at hand: the pictures alone, as if no text stood beside them."""

    def __init__(self, family: Family, limits: GatewayConfig, max_model_len: int | None) -> None:
        self._family = family
        self._limits = limits
        self._max_model_len = max_model_len

    async def count(self, prompt: Conversation, views: Sequence[View], max_tokens: int | None) -> Counted:
        """See Counter."""
        return self.count_pictures(views, max_tokens, prompt.bounds)

    def count_pictures(
        self, views: Sequence[View], max_tokens: int | None = None, bounds: PixelBounds = UNBOUNDED
    ) -> Counted:
        """The same without a prompt."""
        family = bounded(self._family, bounds)
        room = None if self._max_model_len is None else self._max_model_len - (max_tokens or 1)
        counted = _both_ways(family, views, lambda wants: fit(family, wants, room, self._limits))
        return replace(counted, max_model_len=self._max_model_len)


class MessageCounter:
    """For engines with a template of their own: the plan of the request itself, or sizes where no model is known."""

    def __init__(self, fitter: MessageFitter) -> None:
        self._fitter = fitter

    async def count(self, prompt: Conversation, views: Sequence[View], max_tokens: int | None) -> Counted:
        """See Counter."""
        read = await self._fitter.read(prompt)
        counted = (
            _planned(read.planner, views, max_tokens) if read.planner else _sizes(views, self._fitter.max_model_len)
        )
        return replace(counted, warnings=(*read.guarded.warnings, *counted.warnings))


class Loader(Protocol):
    """Looks at the pictures of one request."""

    async def glance(self, scope: str, refs: Sequence[MediaRef], lifted: LiftedMedia) -> tuple[Glance, ...]:
        """In order. Raises MediaError, and NotFound for a file that this tenant did not upload."""
        ...


class CountService:
    """Counts chat requests. Knows no HTTP."""

    def __init__(self, loader: Loader, counter: Counter) -> None:
        self._loader = loader
        self._counter = counter

    async def count(self, scope: str, request: ChatCompletionRequest, lifted: LiftedMedia) -> Counted:
        """Raises OpsinError where the request would be refused for another reason than its size."""
        conversation = to_conversation(request)
        refs = tuple(conversation.media())
        glances = await self._loader.glance(scope, refs, lifted)
        views = [
            View(Want(glance.header.upright, ref.detail, glance.param), glance.is_settled)
            for ref, glance in zip(refs, glances, strict=True)
        ]
        counted = await self._counter.count(conversation, views, request.output_tokens)
        counted = replace(counted, warnings=(*label_warnings(glances), *counted.warnings))
        return _with_output(counted, request)


def _with_output(counted: Counted, request: ChatCompletionRequest) -> Counted:
    """The least output that is asked for has to fit, too."""
    if counted.refusal is not None:
        return counted
    try:
        check_min_tokens(request, counted.max_tokens)
    except InvalidRequest as error:
        return replace(counted, refusal=error)
    return counted


def _sizes(views: Sequence[View], max_model_len: int | None) -> Counted:
    pictures = tuple(CountedPicture(view.want.size) for view in views)
    return Counted(pictures=pictures, max_model_len=max_model_len, is_limited=False)


def _planned(planner: TextPlanner, views: Sequence[View], max_tokens: int | None) -> Counted:
    """An estimate of the text decides what fits, as it does for the request, but is told to nobody."""
    counted = _both_ways(planner.family, views, lambda wants: planner.plan(wants, max_tokens).pictures)
    return replace(
        counted,
        text_tokens=planner.text.tokens if planner.text.is_exact else None,
        max_model_len=planner.max_model_len,
        is_limited=bool(views) and planner.max_model_len is not None,
    )


def _both_ways(
    family: Family, views: Sequence[View], fitted: Callable[[Sequence[Want]], Sequence[Fitted[Family] | PlannedPicture]]
) -> Counted:
    """As ``fitted`` has the pictures, and once more where some may lie on their sides."""
    wants, turned = [view.want for view in views], [view.turned for view in views]
    try:
        upright = fitted(wants)
        on_their_sides = upright if turned == wants else fitted(turned)
    except InvalidRequest as error:
        return _as_asked(family, views, error)
    return _merged(views, upright, on_their_sides)


def _merged(
    views: Sequence[View],
    fitted: Sequence[Fitted[Family] | PlannedPicture],
    turned: Sequence[Fitted[Family] | PlannedPicture],
) -> Counted:
    pictures = tuple(
        CountedPicture(view.want.size, one.count, one.scaled, None if one.count == other.count else other.count)
        for view, one, other in zip(views, fitted, turned, strict=True)
    )
    return Counted(pictures=pictures, warnings=tuple(downscale_warnings([view.want for view in views], fitted)))


def _as_asked(family: Family, views: Sequence[View], refusal: InvalidRequest) -> Counted:
    """Raises ``refusal`` itself unless it is about size."""
    if refusal.code not in _OF_SIZE:
        raise refusal

    def asked(want: Want) -> Fitted[Family]:
        return Fitted(family, family.count(want.size, want.detail, len(views)), scaled=False)

    counted = _merged(views, [asked(view.want) for view in views], [asked(view.turned) for view in views])
    return replace(counted, refusal=refusal)


def to_wire(counted: Counted, *, model: str) -> TokenCount:
    """As clients see it."""
    return TokenCount(
        model=model,
        text_tokens=counted.text_tokens,
        image_tokens=counted.image_tokens,
        marker_tokens=counted.marker_tokens,
        prompt_tokens=counted.prompt_tokens,
        max_model_len=counted.max_model_len,
        fits=counted.fits,
        images=[_image(picture) for picture in counted.pictures],
        cross_attention_tokens=counted.cross_attention_tokens or 0,
        refusal=error_object(counted.refusal) if counted.refusal else None,
        warnings=[WarningObject(warning.code, warning.message, warning.param) for warning in counted.warnings],
    )


def _image(picture: CountedPicture) -> ImageCount:
    count = picture.count
    return ImageCount(
        width=picture.size.width,
        height=picture.size.height,
        used_width=count.used.width if count else None,
        used_height=count.used.height if count else None,
        tiles=count.num_tiles if count else None,
        image_tokens=count.image_tokens if count else None,
        marker_tokens=count.marker_tokens if count else None,
        exact=picture.is_exact,
        scaled=picture.scaled,
        cross_attention_tokens=count.cross_attention_tokens if count else 0,
        turned=_turned(picture.turned) if picture.turned else None,
    )


def _turned(count: Count) -> TurnedCount:
    used = count.used
    return TurnedCount(count.image_tokens, count.marker_tokens, count.num_tiles, used.width, used.height)
