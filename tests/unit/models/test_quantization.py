"""A checkpoint's quantization: named, expected, and backed by packages that are there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from opsin.core.errors import ConfigError
from opsin.models.card import ModelCard, load_card
from opsin.models.hub import resolve
from opsin.models.quantization import PACKAGES, check_quantization
from opsin.settings import Settings


def card(**changes: Any) -> ModelCard:
    """The demo model's, changed."""
    return replace(load_card(resolve(Settings().model_location)), **changes)


@pytest.mark.parametrize(
    ("stated", "method"),
    [
        (None, None),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
        ({"quantization_config": {"load_in_4bit": True}}, "bitsandbytes"),
        ({"text_config": {"quantization_config": {"quant_method": "compressed-tensors"}}}, "compressed-tensors"),
    ],
)
def test_the_card_names_the_method(tmp_path: Path, stated: dict[str, Any] | None, method: str | None) -> None:
    assert load_card(resolve(str(checkpoint(tmp_path, **stated or {})))).quantization == method


def test_a_nameless_quantization_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not name its quant_method"):
        load_card(resolve(str(checkpoint(tmp_path, quantization_config={"bits": 4}))))


def checkpoint(folder: Path, **config: Any) -> Path:
    """The demo model's small files with parts of config.json replaced."""
    for path in Path(Settings().model_location).glob("*.json*"):
        (folder / path.name).write_bytes(path.read_bytes())
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | config))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def test_every_method_here_is_one_of_transformers() -> None:
    # Transformers tells bitsandbytes' two widths apart, checkpoints do not.
    assert set(PACKAGES) - {"bitsandbytes"} <= set(AUTO_QUANTIZER_MAPPING)


@pytest.mark.parametrize("wanted", [None, "fp8", "fp8_marlin"])
def test_the_checkpoints_own_is_honoured(wanted: str | None) -> None:
    check_quantization(card(quantization="fp8"), wanted)


@pytest.mark.parametrize(
    ("method", "wanted", "message"),
    [
        (None, "awq", "--quantization awq: the checkpoint is not quantized, and opsin does not quantize"),
        ("fp8", "awq", "--quantization awq: the checkpoint is quantized with fp8, which is honoured without the flag"),
        ("awq", "awq", "quantized with awq, which needs: pip install gptqmodel$"),
        ("quanto", None, "quantized with quanto, which needs: pip install optimum-quanto$"),
        ("zip", None, "quantized with zip, which Transformers does not load; it loads aqlm"),
    ],
)
def test_refusals_say_what_to_do(method: str | None, wanted: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_quantization(card(quantization=method), wanted)
