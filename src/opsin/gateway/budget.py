"""How large the pictures of a request may be for the model: refused, or scaled down until all of them fit.

Works on sizes alone, before anything is decoded or queued, and for every family. ``auto`` scales pictures whose
``detail`` is ``auto`` or ``low``, ``downscale`` all of them, ``reject`` none. What all pictures share is divided
fairly: each is sure of an equal part, and what one does not need is for those that need more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from opsin.core.conversation import Detail
from opsin.core.errors import Code, ContextLengthExceeded, InvalidRequest, MediaError
from opsin.gateway.config import GatewayConfig, OverBudget
from opsin.vision.budget import image_tokens, within
from opsin.vision.plan import Count, Family, Size

F = TypeVar("F", bound=Family)
F_co = TypeVar("F_co", bound=Family, covariant=True)


@dataclass(frozen=True, slots=True)
class Want:
    """One picture as it was asked for: its upright size, and its place in the request for error messages."""

    size: Size
    detail: Detail
    param: str


@dataclass(frozen=True, slots=True)
class Fitted(Generic[F_co]):
    """What one picture becomes: counted by ``family``, which is a lowered one where ``scaled``."""

    family: F_co
    count: Count
    scaled: bool


def fit(family: F, wants: Sequence[Want], room: int | None, limits: GatewayConfig) -> tuple[Fitted[F], ...]:
    """Each picture as large as ``limits`` and ``room`` allow.

    ``family`` is the operator's, already lowered to what the client asked for. ``room`` is in prompt tokens: what the
    context leaves for all pictures, markers included; None where nobody knows.

    Raises:
        MediaError: a limit of the operator is exceeded and nothing more may be scaled; both numbers are named. Also a
            picture of a shape that the family does not take.
        ContextLengthExceeded: the same for ``room``.
    """
    demand = _demand(family, wants, room, limits)
    demand.refuse_excess()
    return demand.shared()


def check(family: Family, wants: Sequence[Want], room: int | None, limits: GatewayConfig) -> None:
    """Refuses what ``fit`` refuses, without finding out how far the rest has to be scaled. Raises as ``fit`` does."""
    _demand(family, wants, room, limits).refuse_excess()


@dataclass(frozen=True, slots=True)
class _Limit:
    """At most ``most`` by ``measure``, of one picture or of all together."""

    measure: Callable[[Count], int]
    most: int
    unit: str
    name: str
    error: type[InvalidRequest] = MediaError
    code: Code = Code.TOO_MANY_IMAGE_TOKENS

    def of_all(self, counts: Iterable[Count]) -> int:
        """The sum."""
        return sum(map(self.measure, counts))

    def share(self, waiting: Sequence[_Picture], taken: Iterable[Count]) -> _Limit:
        """The part of the first one of ``waiting``: what every one of them can have that asks for so much."""
        left = self.most - self.of_all(taken)
        bounds = [(self.measure(picture.least), self.measure(picture.asked)) for picture in waiting]
        return replace(self, most=max(_level(bounds, left), bounds[0][0]))

    def refuse_excess(self, pictures: Sequence[_Picture]) -> None:
        """Raises if these are over it together however far they are scaled."""
        value = self.of_all(picture.least for picture in pictures)
        if value <= self.most:
            return
        subject = "The picture takes" if len(pictures) == 1 else "All pictures together take"
        scaled = any(picture.least != picture.asked for picture in pictures)
        how = "scaled down as far as the detail allows" if scaled else "with the detail asked for"
        raise self.error(
            f"{subject} {value} {self.unit} {how}; the limit is {self.most} ({self.name}).",
            code=self.code,
            param=pictures[0].want.param if len(pictures) == 1 else "messages",
        )


def _level(bounds: Sequence[tuple[int, int]], left: int) -> int:
    """The highest number such that ``left`` is enough when each gets it, but never out of its own two bounds."""

    def needed(level: int) -> int:
        return sum(min(most, max(least, level)) for least, most in bounds)

    steps = sorted({0, left, *(bound for pair in bounds for bound in pair if bound < left)})
    below = steps[bisect_right(steps, left, key=needed) - 1]
    # Up to the next step the need rises by one for each that is between its bounds.
    num_rising = sum(least <= below < most for least, most in bounds)
    return below + (left - needed(below)) // num_rising if num_rising else left


def _single_limits(limits: GatewayConfig) -> Iterator[_Limit]:
    if limits.max_image_tiles is not None:
        yield _Limit(_num_tiles, limits.max_image_tiles, "tiles", "max_image_tiles")
    if limits.max_image_tokens is not None:
        yield _Limit(image_tokens, limits.max_image_tokens, "visual tokens", "max_image_tokens")


def _joint_limits(limits: GatewayConfig, room: int | None) -> Iterator[_Limit]:
    if limits.max_request_image_tokens is not None:
        yield _Limit(image_tokens, limits.max_request_image_tokens, "visual tokens", "max_request_image_tokens")
    if room is not None:
        yield _Limit(
            _prompt_tokens,
            max(room, 0),
            "tokens of the context",
            "max_model_len less text and output, at least one token",
            ContextLengthExceeded,
            Code.CONTEXT_LENGTH_EXCEEDED,
        )


def _num_tiles(count: Count) -> int:
    return count.num_tiles


def _prompt_tokens(count: Count) -> int:
    return count.prompt_tokens


@dataclass(frozen=True, slots=True)
class _Picture:
    """What was ``asked`` for, and the ``least`` that it may become: the same where it may not be scaled."""

    want: Want
    asked: Count
    least: Count

    @property
    def order(self) -> tuple[int, int, int, int, str]:
        """Who asks for less comes first; equal only for pictures that are alike."""
        size = self.want.size
        return self.asked.prompt_tokens, self.asked.image_tokens, size.width, size.height, self.want.detail


@dataclass(frozen=True, slots=True)
class _Demand(Generic[F]):
    """The pictures of a request and their limits: ``single`` ones of each, ``joint`` ones of all together."""

    family: F
    pictures: Sequence[_Picture]
    single: Sequence[_Limit]
    joint: Sequence[_Limit]

    def refuse_excess(self) -> None:
        """Raises for the first limit that even the least exceeds."""
        for picture in self.pictures:
            for limit in self.single:
                limit.refuse_excess([picture])
        for limit in self.joint:
            limit.refuse_excess(self.pictures)

    def shared(self) -> tuple[Fitted[F], ...]:
        """Each picture as large as it can be; whoever asks for less comes first and leaves the rest to the others."""
        waiting = sorted(range(len(self.pictures)), key=lambda place: self.pictures[place].order)
        fitted: dict[int, Fitted[F]] = {}
        while waiting:
            in_turn = [self.pictures[place] for place in waiting]
            taken = [picture.count for picture in fitted.values()]
            shares = [limit.share(in_turn, taken) for limit in self.joint]
            fitted[waiting.pop(0)] = self._fitted(in_turn[0], [*self.single, *shares])
        return tuple(fitted[place] for place in range(len(self.pictures)))

    def _fitted(self, picture: _Picture, limits: Sequence[_Limit]) -> Fitted[F]:
        def fits(count: Count) -> bool:
            return all(limit.measure(count) <= limit.most for limit in limits)

        if fits(picture.asked):
            return Fitted(self.family, picture.asked, scaled=False)
        size, detail, num_pictures = picture.want.size, picture.want.detail, len(self.pictures)
        lowered = within(self.family, size, fits, detail=detail, num_pictures=num_pictures)
        assert lowered is not None, "the least fits"
        return Fitted(lowered, lowered.count(size, detail, num_pictures), scaled=True)


def _demand(family: F, wants: Sequence[Want], room: int | None, limits: GatewayConfig) -> _Demand[F]:
    """Counts the pictures. Raises MediaError for a shape that the family does not take."""
    caps = family.caps()
    lowest = family.with_max_pixels(caps[0]) if caps else family
    pictures = [_picture(family, lowest, want, len(wants), limits.over_budget) for want in wants]
    return _Demand(family, pictures, list(_single_limits(limits)), list(_joint_limits(limits, room)))


def _picture(family: Family, lowest: Family, want: Want, num_pictures: int, over_budget: OverBudget) -> _Picture:
    asked = family.count(want.size, want.detail, num_pictures)
    if not _may_scale(want.detail, over_budget):
        return _Picture(want, asked, asked)
    try:
        return _Picture(want, asked, lowest.count(want.size, want.detail, num_pictures))
    except MediaError:  # so thin that nothing of it would be left, and then it takes little as it is
        return _Picture(want, asked, asked)


def _may_scale(detail: Detail, over_budget: OverBudget) -> bool:
    match over_budget:
        case OverBudget.AUTO:
            return detail in (Detail.AUTO, Detail.LOW)
        case OverBudget.REJECT:
            return False
        case OverBudget.DOWNSCALE:
            return True
