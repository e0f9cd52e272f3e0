"""docs/replicas.md: its files can be started from, and it leaves out no setting and no metric."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opsin.engine.replicas.config import RoutingConfig
from opsin.settings import ModelTable, configuration
from opsin.telemetry.replicas import ReplicaCollector, ReplicaSample

TEXT = (Path(__file__).parents[2] / "docs" / "replicas.md").read_text()
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_are_right(example: str, tmp_path: Path) -> None:
    (tmp_path / "opsin.toml").write_text(example)
    assert configuration({}, tmp_path / "opsin.toml").checked().each_model


def test_every_setting_is_there() -> None:
    names = {*ModelTable.model_fields, *RoutingConfig.model_fields}
    assert {name for name in names if not re.search(rf"\b{name}\b", TEXT)} == set()


def test_every_metric_is_there() -> None:
    collector = ReplicaCollector()
    collector.samples = (
        ReplicaSample(
            model="m", replica="r", state="a", states=("a",), requests=0, visual_tokens=0, ejections=0, retries=0
        ),
    )
    names = {sample.name for family in collector.collect() for sample in family.samples}
    assert set(re.findall(r"`(opsin_replica_\w+)`", TEXT)) == names
