from __future__ import annotations

import pytest
from pydantic import ValidationError

from opsin.media.config import PILLOW_MAX_PIXELS, MediaConfig


def test_pillow_refuses_where_the_config_says_it_does() -> None:
    from PIL import Image

    assert Image.MAX_IMAGE_PIXELS is not None
    assert PILLOW_MAX_PIXELS == 2 * Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize(
    "field",
    [
        {"max_image_pixels": PILLOW_MAX_PIXELS + 1},
        {"max_decoding_bytes": 99_999_999},
        {"formats": []},
        {"formats": ["svg"]},
        {"render_workers": 0},
        {"render_timeout_s": float("inf")},
        {"unknown": 1},
    ],
)
def test_nonsense_is_refused(field: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        MediaConfig.model_validate(field)
