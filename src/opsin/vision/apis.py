"""What pictures cost at proprietary APIs. No provider promises its rule, so these are estimates and labelled as such.

From what was measured at them in 2026: OpenAI's GPT-6 counts a 1024x1024 picture with 1,229 tokens (patches of 32x32
pixels, times 1.2) and one of 4032x3024 with 2,942; Anthropic's rule is patches of 28x28 pixels, up to 4,784 since
Claude 4.7 and 1,568 before; Gemini 3 counts about 1,100 for pictures of any size.
"""

from __future__ import annotations

from opsin.vision.estimate import Estimate

_FAMILIES = {
    "openai": Estimate(name="openai", factor=29, max_pixels=3000 * 29**2),  # 32 / sqrt(1.2), rounded down
    "anthropic": Estimate(name="anthropic", factor=28, max_pixels=4784 * 28**2),
    "gemini": Estimate(name="gemini", factor=28, max_pixels=1120 * 28**2),  # too low for pictures under a megapixel
}


def api_family(model: str) -> Estimate:
    """Who counts the pictures of ``PROVIDER/NAME``. Raises KeyError for a provider that is not known."""
    return _FAMILIES[model.partition("/")[0]]
