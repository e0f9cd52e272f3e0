"""The one adapter of ``huggingface_hub``: a pinned snapshot on disk, or in words why there is none."""

from __future__ import annotations

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

ALLOW_PATTERNS = ("*.json", "*.jinja", "*.safetensors", "tokenizer.model")
"""Configurations, tokenizer, processor, chat template, weights: all that is needed. Never code or pickled weights."""


def download(model: str, revision: str | None, *, offline: bool, cache_dir: Path | None, endpoint: str | None) -> Path:
    """The snapshot's folder, named after its commit.

    Raises:
        ConfigError: no such repository or revision, no access, or not to be had offline.
    """
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
    return Path(snapshot)


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
