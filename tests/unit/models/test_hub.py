"""Folders, the Hub's cache, and a Hub that serves or refuses (tests/hubs.py)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from huggingface_hub import constants
from pydantic import SecretStr

from opsin.core.errors import ConfigError
from opsin.models.config import HubConfig
from opsin.models.hub import fetch_weights, resolve
from tests.hubs import COMMIT, refusing_hub, serving_hub


def checkpoint(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(3_000_000))
    return folder


def revision_of(folder: Path) -> str | None:
    return resolve(str(folder)).revision


def test_folder_is_its_own_revision(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "mine")
    found = resolve(str(folder))
    assert (found.path, found.model_id) == (folder, "mine")
    assert found.revision is not None
    assert found.revision.startswith("local-")
    assert len(found.revision) == len("local-") + 12
    assert revision_of(checkpoint(tmp_path / "copy")) == found.revision


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"])
def test_revision_follows_content(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path)
    before = revision_of(folder)
    (folder / name).write_bytes(b"\1" * 3_000_000)
    assert revision_of(folder) != before


def test_revision_ignores_other_files(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    before = revision_of(folder)
    (folder / "README.md").write_text("hello")
    assert revision_of(folder) == before


def test_folder_takes_no_revision(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="revision: applies to Hub ids"):
        resolve(str(tmp_path), "main")


@pytest.mark.parametrize("model", ["./not-there", "/not/there", "~/not-there-at-all"])
def test_missing_folder_is_not_asked_of_the_hub(model: str) -> None:
    with pytest.raises(ConfigError, match=f"model {model}: there is no such folder"):
        resolve(model)


def cached(cache: Path) -> Path:
    """The Hub's cache as the library lays it out: snapshots by commit, branches under refs."""
    repository = cache / "models--owner--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "snapshots").mkdir()
    return checkpoint(repository / "snapshots" / COMMIT)


def test_unpinned_id_warns_with_the_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    snapshot = cached(tmp_path)
    with caplog.at_level(logging.WARNING, logger="opsin"):
        found = resolve("owner/name", hub=offline(tmp_path))
    assert (found.path, found.model_id, found.revision) == (snapshot, "owner/name", COMMIT)
    assert f"pin it with --revision {COMMIT}" in caplog.text


def test_branch_is_not_a_pin(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cached(tmp_path)
    resolve("owner/name", "main", hub=offline(tmp_path))
    assert f"main is commit {COMMIT} today" in caplog.text


def test_pinned_id_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cached(tmp_path)
    assert resolve("owner/name", COMMIT, hub=offline(tmp_path)).revision == COMMIT
    assert caplog.text == ""


def test_offline_without_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "the default branch is not in the local cache, and offline forbids"
    with pytest.raises(ConfigError, match=message):
        resolve("owner/name", hub=offline(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # what the library makes of the variable at its import
    with pytest.raises(ConfigError, match=message):
        resolve("owner/name", hub=HubConfig(download_dir=tmp_path))


def test_neither_folder_nor_id(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a folder nor a Hub id"):
        resolve("a/b/c", hub=offline(tmp_path))


def offline(cache: Path) -> HubConfig:
    return HubConfig(offline=True, download_dir=cache)


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (401, "GatedRepo", "gated: accept its terms on the Hub, then give a token of that account as HF_TOKEN"),
        (403, "GatedRepo", "gated: accept its terms"),
        (401, "RepoNotFound", "no such repository on the Hub, or private: then it needs HF_TOKEN or --hf-token"),
        (404, "RevisionNotFound", "has no revision v9"),
        (403, None, "answered with status 403: the token lacks the permission, and revision v9 is not in the local"),
        (429, None, "answered with status 429: too many requests"),
        (400, None, "the Hub answered with status 400, and revision v9 is not in the local cache"),
    ],
)
def test_refusals_in_words(tmp_path: Path, status: int, code: str | None, message: str) -> None:
    with (
        refusing_hub(status, code) as endpoint,
        pytest.raises(ConfigError, match=f"^model owner/name: .*{message}") as caught,
    ):
        resolve("owner/name", "v9", hub=HubConfig(download_dir=tmp_path), endpoint=endpoint)
    assert endpoint not in caught.value.message


def test_a_token_without_access_is_said_and_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hub = HubConfig(download_dir=tmp_path, token=SecretStr("hf_geheim"))
    with refusing_hub(403, "GatedRepo") as endpoint, pytest.raises(ConfigError, match="has no access") as caught:
        resolve("owner/name", hub=hub, endpoint=endpoint)
    assert "hf_geheim" not in caught.value.message + caplog.text + repr(hub)


def test_a_name_that_may_be_a_mistyped_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model nosuch: .*; and there is no folder \./nosuch$"):
        resolve("nosuch", hub=HubConfig(download_dir=tmp_path), endpoint="http://127.0.0.1:9")


def test_unreachable_hub(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the Hub cannot be reached"):
        resolve("owner/name", hub=HubConfig(download_dir=tmp_path), endpoint="http://127.0.0.1:9")


def test_retries_are_told_without_urls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError):
        resolve("owner/name", hub=offline(tmp_path))
    library = logging.getLogger("huggingface_hub.utils._http")
    library.warning("'refused' thrown while requesting HEAD https://hub/secret")
    library.warning("Retrying in 1s [Retry 1/5].")
    assert [record.getMessage() for record in caplog.records] == ["Retrying in 1s [Retry 1/5]."]
    assert logging.getLogger("huggingface_hub").handlers == []


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with serving_hub(checkpoint(tmp_path / "there")) as hub, pytest.raises(ConfigError, match="cannot be stored: "):
        resolve("owner/name", hub=HubConfig(download_dir=tmp_path / "file"), endpoint=hub.url)


def test_small_files_first_then_weights_then_trusted_code(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "there")
    (folder / "modeling_own.py").write_text("raise SystemExit")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    config = HubConfig(download_dir=tmp_path / "cache", token=SecretStr("hf_mine"))
    with serving_hub(folder) as hub:
        found = resolve("owner/name", hub=config, endpoint=hub.url)
        assert found.revision == COMMIT
        assert names(found.path) == {"config.json", "tokenizer.json"}
        with pytest.raises(ConfigError, match="is only partly in the local cache"):
            fetch_weights(found, with_code=False, hub=offline(tmp_path / "cache"))
        fetch_weights(found, with_code=False, hub=config, endpoint=hub.url)
        assert names(found.path) == {"config.json", "tokenizer.json", "model.safetensors"}
        fetch_weights(found, with_code=True, hub=config, endpoint=hub.url)
        assert "modeling_own.py" in names(found.path)
        assert hub.tokens == {"Bearer hf_mine"}
    again = resolve("owner/name", hub=offline(tmp_path / "cache"))
    fetch_weights(again, with_code=True, hub=offline(tmp_path / "cache"))
    assert (again.path / "model.safetensors").stat().st_size == 3_000_000


def test_pickled_weights_are_not_weights(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"has no \.safetensors weights; others are never read"):
        fetch_weights(resolve(str(folder)), with_code=False)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
