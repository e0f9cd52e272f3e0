"""Limits on visual tokens: named with their value, and met exactly."""

from __future__ import annotations

import pytest

from opsin.app import load_local_model
from opsin.core.conversation import Detail
from opsin.core.errors import MediaError
from opsin.gateway.budget import check_image_tokens
from opsin.gateway.config import GatewayConfig
from opsin.media.types import ImageFormat, ImageHeader, MediaBytes
from opsin.settings import Settings
from opsin.vision.plan import Count, Size

MEDIA = [
    MediaBytes(b"", "", ImageHeader(ImageFormat.PNG, Size(400, 800), 1, 1), f"messages.0.content.{place}")
    for place in range(2)
]


@pytest.fixture(scope="module")
def counts() -> list[Count]:
    """One view of 16 tokens, and three tiles of 16."""
    family = load_local_model(Settings()).family
    return [family.plan(MEDIA[0].header.upright, detail) for detail in (Detail.LOW, Detail.HIGH)]


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("max_image_tiles", 3, "messages.0.content.1"),
        ("max_image_tokens", 3 * 16, "messages.0.content.1"),
        ("max_request_image_tokens", 4 * 16, "messages"),
    ],
)
def test_the_limit_is_met_exactly(counts: list[Count], field: str, value: int, param: str) -> None:
    check_image_tokens(MEDIA, counts, GatewayConfig.model_validate({field: value}))
    with pytest.raises(MediaError, match=rf" {value} .* {value - 1} \({field}\)") as refused:
        check_image_tokens(MEDIA, counts, GatewayConfig.model_validate({field: value - 1}))
    assert (refused.value.code, refused.value.param) == ("too_many_image_tokens", param)


def test_without_limits_the_context_decides(counts: list[Count]) -> None:
    check_image_tokens(MEDIA, counts, GatewayConfig())
