from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from opsin.core.errors import ConfigError
from opsin.core.stages import Stage
from opsin.engine.local.config import LocalEngineConfig, check_supported


def config(**changes: object) -> LocalEngineConfig:
    values: dict[str, object] = {
        "model_path": Path("model"),
        "model_type": "idefics3",
        "image_token_id": 5,
        "eos_token_ids": (6,),
        "image_mean": (0.5, 0.5, 0.5),
        "image_std": (0.5, 0.5, 0.5),
        "max_model_len": 128,
    }
    return LocalEngineConfig.model_validate({**values, **changes})


def test_it_survives_the_way_to_the_worker():
    before = config(delays={Stage.DECODE: 0.5})
    assert LocalEngineConfig.model_validate_json(before.model_dump_json()) == before


def test_only_stages_of_the_engine_can_be_delayed():
    with pytest.raises(ValidationError, match="media_load is not a stage of the engine"):
        config(delays={Stage.MEDIA_LOAD: 0.5})


def test_other_model_types_are_refused_by_name():
    check_supported(config(model_type="smolvlm"))
    with pytest.raises(ConfigError, match="'mllama' is not served by the local engine; supported: gemma3, idefics3"):
        check_supported(config(model_type="mllama"))
