"""What the pictures of a request may cost the model: checked on their plans, before anything is decoded or queued."""

from __future__ import annotations

from collections.abc import Sequence

from opsin.core.errors import Code, MediaError
from opsin.gateway.config import GatewayConfig
from opsin.media.types import MediaBytes
from opsin.vision.plan import Count


def check_image_tokens(media: Sequence[MediaBytes], counts: Sequence[Count], config: GatewayConfig) -> None:
    """Raises MediaError (``too_many_image_tokens``) that names the limit, the value and the first picture over it."""
    for picture, count in zip(media, counts, strict=True):
        _check("The picture", count.num_tiles, "tiles", config.max_image_tiles, "max_image_tiles", picture.param)
        _check("The picture", count.image_tokens, "tokens", config.max_image_tokens, "max_image_tokens", picture.param)
    total = sum(count.image_tokens for count in counts)
    _check(
        "All pictures together",
        total,
        "tokens",
        config.max_request_image_tokens,
        "max_request_image_tokens",
        "messages",
    )


def _check(what: str, value: int, unit: str, limit: int | None, name: str, param: str) -> None:
    if limit is not None and value > limit:
        raise MediaError(
            f"{what} would take {value} visual {unit} with the detail asked for; the limit is {limit} ({name}).",
            code=Code.TOO_MANY_IMAGE_TOKENS,
            param=param,
        )
