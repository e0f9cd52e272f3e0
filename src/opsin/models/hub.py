"""From the name that the operator typed to a folder with a known revision.

A name is a local folder or a Hub id. The folder's revision is a digest of what decides its answers; the Hub's is the
commit. This module is the one adapter of ``huggingface_hub``; it does not know what the files mean.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType] untyped progress bar class
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from opsin.core.errors import ConfigError
from opsin.models.fingerprint import folder_revision

logger = logging.getLogger(__name__)

ALLOW_PATTERNS = ("*.json", "*.jinja", "*.safetensors", "tokenizer.model")
"""Configurations, tokenizer, processor, chat template, weights: all that is needed. Never code or pickled weights."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A checkpoint on disk. ``revision`` is a Hub commit (40 hex digits) or ``local-<12 hex>`` for a folder."""

    path: Path
    model_id: str
    revision: str | None


def resolve(
    model: str,
    revision: str | None = None,
    *,
    offline: bool = False,
    cache_dir: Path | None = None,
    endpoint: str | None = None,
) -> ResolvedModel:
    """Finds a local folder, or downloads a Hub id (with ``offline`` only looks into the cache).

    A Hub id without a pinned commit is logged as a warning with the commit that was found, because the same command
    may serve another model tomorrow.

    Raises:
        ConfigError: no such folder or repository, access is not granted, or the files cannot be had offline.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _local(folder, revision)
    if model.startswith(("/", "./", "../", "~")):
        raise ConfigError("model: no such folder")
    return _from_hub(model, revision, offline=offline, cache_dir=cache_dir, endpoint=endpoint)


def _local(folder: Path, revision: str | None) -> ResolvedModel:
    if revision is not None:
        raise ConfigError("revision: applies to Hub ids; a local folder is its own revision")
    return ResolvedModel(path=folder, model_id=folder.resolve().name, revision=folder_revision(folder))


def _from_hub(
    model: str, revision: str | None, *, offline: bool, cache_dir: Path | None, endpoint: str | None
) -> ResolvedModel:
    try:
        snapshot = snapshot_download(
            model,
            revision=revision,
            allow_patterns=list(ALLOW_PATTERNS),
            local_files_only=offline,
            cache_dir=cache_dir,
            endpoint=endpoint,
            library_name="opsin",
        )
    except Exception as error:  # the library lets errors of its HTTP client through
        raise ConfigError(_explanation(error, model, revision, offline=offline)) from error
    path = Path(snapshot)
    commit = path.name  # the cache names a snapshot's folder after its commit
    if revision is None or not _COMMIT.fullmatch(revision):
        logger.warning(
            "model %s is not pinned: %s is commit %s today; pin it with revision=%s",
            model,
            revision or "its default branch",
            commit,
            commit,
        )
    return ResolvedModel(path=path, model_id=model, revision=commit)


def _explanation(error: Exception, model: str, revision: str | None, *, offline: bool) -> str:
    """In words what to do; the more special error classes come first."""
    at = f"revision {revision}" if revision else "the default branch"
    match error:
        case HFValidationError():
            return "model: neither a folder nor a Hub id of the form owner/name"
        case GatedRepoError():
            return f"model {model}: gated; accept its terms on the Hub and set HF_TOKEN to a token of that account"
        case RepositoryNotFoundError():
            return f"model {model}: no such repository on the Hub, or private and HF_TOKEN gives no access"
        case RevisionNotFoundError():
            return f"model {model}: the repository has no {at}"
        case IncompleteSnapshotError():
            return f"model {model}: {at} is only partly in the local cache and the Hub cannot be asked"
        case LocalEntryNotFoundError() if offline:
            return f"model {model}: {at} is not in the local cache, and offline forbids a download"
        case LocalEntryNotFoundError():
            return f"model {model}: the Hub cannot be reached or fails, and {at} is not in the local cache"
        case HfHubHTTPError():
            return f"model {model}: the Hub answered with status {error.response.status_code}"
        case _:
            return f"model {model}: the download failed ({type(error).__name__})"
