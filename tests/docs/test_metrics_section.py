"""docs/api.md names only metrics that there are."""

from __future__ import annotations

import re
from pathlib import Path

from opsin.core.stages import Stage
from opsin.telemetry.metrics import Metrics
from tests.unit.telemetry.test_metrics import SEVEN

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_the_section_names_the_seven_and_no_strangers() -> None:
    section = PAGE.read_text().partition("\n## Metrics\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`((?:vlm|opsin)_\w+)`", section))
    assert set(SEVEN) <= named
    page = Metrics(stages=frozenset(Stage), cache=True, kv=True).render().decode()
    there = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))
    assert named <= there | {f"{name}_total" for name in there}
