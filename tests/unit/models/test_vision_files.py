"""What a folder says about pictures, without a tokenizer or chat template in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opsin.core.errors import ConfigError
from opsin.models.files import ImageProcessorFile
from opsin.models.vision_files import read_vision_files


def written(folder: Path, **documents: Any) -> Path:
    for name, content in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_three_files(tmp_path: Path) -> None:
    files = read_vision_files(
        written(tmp_path, config={"model_type": "qwen2_vl"}, preprocessor_config={"image_mean": [1]})
    )
    assert files.model_type == "qwen2_vl"
    assert files.image_processor.read(ImageProcessorFile).image_mean == [1]
    assert files.processor.data is None


@pytest.mark.parametrize("nested", [{"image_mean": [2]}, None])
def test_a_nested_image_processor_wins(tmp_path: Path, nested: Any) -> None:
    folder = written(
        tmp_path,
        config={"model_type": "gemma4"},
        processor_config={"image_processor": nested},
        preprocessor_config={"image_mean": [1]},
    )
    assert read_vision_files(folder).image_processor.read(ImageProcessorFile).image_mean == [2 if nested else 1]


def test_a_broken_field_of_a_nested_one_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path, config={"model_type": "x"}, processor_config={"image_processor": {"image_mean": 1}})
    with pytest.raises(ConfigError, match=r"processor_config\.json: image_processor: field image_mean has the wrong"):
        read_vision_files(folder).image_processor.read(ImageProcessorFile)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: missing"):
        read_vision_files(tmp_path)
    files = read_vision_files(written(tmp_path, config={"model_type": "deepseek_vl_v2"}))
    assert files.image_processor.read_if_any(ImageProcessorFile) == ImageProcessorFile()
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json: missing"):
        files.image_processor.read(ImageProcessorFile)
