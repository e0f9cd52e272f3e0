"""Folders, the Hub's cache, and a Hub that refuses (a local HTTP server in the place of huggingface.co)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from opsin.core.errors import ConfigError
from opsin.models.hub import resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"


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
        found = resolve("owner/name", offline=True, cache_dir=tmp_path)
    assert (found.path, found.model_id, found.revision) == (snapshot, "owner/name", COMMIT)
    assert f"pin it with revision={COMMIT}" in caplog.text


def test_branch_is_not_a_pin(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cached(tmp_path)
    resolve("owner/name", "main", offline=True, cache_dir=tmp_path)
    assert f"main is commit {COMMIT} today" in caplog.text


def test_pinned_id_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cached(tmp_path)
    assert resolve("owner/name", COMMIT, offline=True, cache_dir=tmp_path).revision == COMMIT
    assert caplog.text == ""


def test_offline_without_cache(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the default branch is not in the local cache, and offline forbids"):
        resolve("owner/name", offline=True, cache_dir=tmp_path)


def test_neither_folder_nor_id(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a folder nor a Hub id"):
        resolve("a/b/c", offline=True, cache_dir=tmp_path)


@contextmanager
def hub(status: int, code: str | None = None) -> Generator[str]:
    """A Hub that answers every question alike."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "GatedRepo", "gated; accept its terms"),
        (401, "RepoNotFound", "no such repository on the Hub, or private"),
        (404, "RevisionNotFound", "has no revision v9"),
        (400, None, "the Hub cannot be reached or fails, and revision v9 is not in the local cache"),
    ],
)
def test_refusals_in_words(tmp_path: Path, status: int, code: str | None, message: str) -> None:
    with hub(status, code) as endpoint, pytest.raises(ConfigError, match=message) as caught:
        resolve("owner/name", "v9", cache_dir=tmp_path, endpoint=endpoint)
    assert endpoint not in caught.value.message


def test_unreachable_hub(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the Hub cannot be reached"):
        resolve("owner/name", cache_dir=tmp_path, endpoint="http://127.0.0.1:9")
