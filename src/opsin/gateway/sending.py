"""As which file a picture goes to an engine that reads files: as it came, or written anew. Knows no pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opsin.core.warnings import AnswerWarning, WarningCode
from opsin.engine.api import Capabilities
from opsin.gateway.message_plan import PlannedPicture
from opsin.media.encoding import Encoding, closest_to
from opsin.media.types import ImageHeader, MediaBytes
from opsin.vision.plan import Size


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A file that takes the place of the one that came, upright and without its metadata.

    ``converted``: the engine would not have read that one right.
    """

    size: Size
    encoding: Encoding
    converted: bool

    @property
    def name(self) -> str:
        """Equal only for the same pixels of the same picture."""
        return f"{self.size.width}x{self.size.height} {self.encoding.name}"


@dataclass(frozen=True, slots=True)
class Sending:
    """What one engine reads, and in which encoding it is relieved of pictures larger than it needs, if at all."""

    engine: Capabilities
    offload: Encoding | None

    def rewrite(self, header: ImageHeader, plan: PlannedPicture | None) -> Rewrite | None:
        """None: the picture goes as it came. ``plan`` is None where nobody knows what the engine makes of it."""
        reads = self._reads(header)
        size = plan.size if plan else None
        if self.offload is not None and plan is not None and plan.least_size is not None:
            return Rewrite(plan.least_size, self.offload, not reads)
        if size is None and reads:
            return None
        return Rewrite(size or header.upright, closest_to(header.format), not reads)

    def _reads(self, header: ImageHeader) -> bool:
        formats = self.engine.picture_formats
        turned = header.orientation != 1 and self.engine.ignores_orientation
        return not turned and (formats is None or header.format in formats)


def conversion_warnings(media: Sequence[MediaBytes], rewrites: Sequence[Rewrite | None]) -> Iterator[AnswerWarning]:
    """One for each picture that is sent in another format, or turned, as the engine would misread it."""
    for picture, rewrite in zip(media, rewrites, strict=True):
        if rewrite is not None and rewrite.converted:
            header, to = picture.header, rewrite.encoding.format
            turned = " and upright" if header.orientation != 1 else ""
            yield AnswerWarning(
                WarningCode.IMAGE_CONVERTED,
                f"The engine does not read this {header.format.written} as it is; it got it as {to.written}{turned}.",
                picture.param,
            )
