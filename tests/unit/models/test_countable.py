"""Where a model is looked for: its own files first, then the facts, the Hub last and only for what nobody knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsin.core.errors import ConfigError
from opsin.models.config import HubConfig
from opsin.models.countable import find_countable
from opsin.models.facts import facts_of

QWEN = "Qwen/Qwen2.5-VL-7B-Instruct"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture
def hub(tmp_path: Path) -> HubConfig:
    return HubConfig(download_dir=tmp_path)


def cached(folder: Path, model: str, **files: object) -> None:
    """As the Hub's own cache keeps a repository."""
    repository = folder / f"models--{model.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for name, content in files.items():
        (snapshot / f"{name}.json").write_text(json.dumps(content))


def test_facts_need_no_network(hub: HubConfig) -> None:
    found, facts = find_countable(QWEN, None, hub), facts_of(QWEN)
    assert facts is not None
    assert (found.vision, found.resolved, found.is_verified) == (facts.vision, None, True)
    assert (found.max_model_len, found.source) == (128_000, f"facts that opsin ships: {facts.vision_source}")
    assert not find_countable("zai-org/GLM-4.1V-9B-Thinking", None, hub).is_verified


def test_files_in_the_cache_win_over_the_facts(hub: HubConfig, tmp_path: Path) -> None:
    cached(tmp_path, QWEN, config={"model_type": "qwen2_5_vl", "text_config": {"max_position_embeddings": 77}})
    found = find_countable(QWEN, None, hub)
    assert (found.max_model_len, found.is_verified, found.source) == (77, True, f"its own files, {COMMIT}")


def test_a_cache_without_a_configuration_is_no_help(hub: HubConfig, tmp_path: Path) -> None:
    cached(tmp_path, QWEN, tokenizer_config={})
    assert find_countable(QWEN, None, hub).resolved is None


def test_a_revision_is_not_a_matter_of_facts(hub: HubConfig) -> None:
    with pytest.raises(ConfigError, match=f"model {QWEN}"):
        find_countable(QWEN, COMMIT, hub.model_copy(update={"offline": True}))


def test_a_folder_is_itself(hub: HubConfig, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llava", "max_position_embeddings": 5}')
    found = find_countable(str(tmp_path), None, hub)
    assert (found.vision.model_type, found.max_model_len) == ("llava", 5)
    assert found.source.startswith("its own files, local-")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"config\.json: field model_type is missing"):
        find_countable(str(tmp_path), None, hub)
    with pytest.raises(ConfigError, match="no such folder"):
        find_countable("./absent", None, hub)
