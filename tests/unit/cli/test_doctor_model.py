"""``opsin doctor model``: a line for each size, and an exit status that scripts can use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsin.cli.main import main
from opsin.doctor_model import SIZES


def test_the_demo_model_is_rendered_as_its_own_processor_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "model", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["comparisons"]
    assert [(row["size"]["width"], row["size"]["height"]) for row in rows] == [(s.width, s.height) for s in SIZES]
    assert {(row["verdict"], row["difference"], row["renderer"]) for row in rows} == {("equal", 0, "recipe")}
    assert all(row["ours"] == row["theirs"] and row["ours"]["image_tokens"] for row in rows)


def save(folder: Path, model_type: str, image_processor: str) -> str:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    stated = {"image_processor_type": image_processor, "size": {"height": 64, "width": 64}}
    (folder / "preprocessor_config.json").write_text(json.dumps(stated))
    return str(folder)


def test_a_checkpoint_with_another_familys_processor_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Siglip's filter is bicubic where the file says nothing, Gemma 3's is bilinear."""
    assert main(["doctor", "model", save(tmp_path, "gemma3", "SiglipImageProcessor"), "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["comparisons"]
    assert {row["verdict"] for row in rows if row["size"]["width"] > 1} == {"DIFFERENT"}
    assert all(row["difference"] > 0 for row in rows if row["size"]["width"] > 1)
    assert main(["doctor", "model", str(tmp_path)]) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_a_processor_that_transformers_does_not_know_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "model", save(tmp_path, "gemma3", "NobodysImageProcessor")]) == 1
    assert "Transformers cannot load its image processor: " in capsys.readouterr().err
