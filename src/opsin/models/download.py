"""The one adapter of ``huggingface_hub``: a pinned snapshot on disk, or in words why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import (
    constants,
    snapshot_download,  # pyright: ignore[reportUnknownVariableType] untyped progress bar class
)
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
from opsin.models.config import HubConfig


def download(model: str, revision: str | None, patterns: Sequence[str], hub: HubConfig, endpoint: str | None) -> Path:
    """The snapshot's folder, named after its commit, with the files that match ``patterns``.

    Raises:
        ConfigError: no such repository or revision, no access, or not to be had offline.
    """
    try:
        snapshot = snapshot_download(
            model,
            revision=revision,
            allow_patterns=list(patterns),
            token=hub.token.get_secret_value() if hub.token else None,
            local_files_only=hub.offline,
            cache_dir=hub.download_dir,
            endpoint=endpoint,
            library_name="opsin",
        )
    except Exception as error:  # the library lets errors of its HTTP client through
        raise ConfigError(f"model {model}: {_explanation(error, revision, hub)}") from error
    return Path(snapshot)


def _explanation(error: Exception, revision: str | None, hub: HubConfig) -> str:
    """In words what to do; the more special error classes come first."""
    at = f"revision {revision}" if revision else "the default branch"
    match error:
        case HFValidationError():
            return "neither a folder nor a Hub id of the form owner/name"
        case GatedRepoError():
            return (
                "gated: accept its terms on the Hub, then give a token of that account as HF_TOKEN or --hf-token"
                f"{_own_token(hub)}"
            )
        case RepositoryNotFoundError():
            return f"no such repository on the Hub, or private: then it needs HF_TOKEN or --hf-token{_own_token(hub)}"
        case RevisionNotFoundError():
            return f"the repository has no {at}"
        case IncompleteSnapshotError():
            return f"{at} is only partly in the local cache and the Hub cannot be asked"
        case LocalEntryNotFoundError() if hub.offline or constants.HF_HUB_OFFLINE:
            return f"{at} is not in the local cache, and offline forbids a download"
        case LocalEntryNotFoundError(__cause__=HfHubHTTPError() as cause):
            return f"{_status(cause)}, and {at} is not in the local cache"
        case LocalEntryNotFoundError():
            return f"the Hub cannot be reached, and {at} is not in the local cache"
        case HfHubHTTPError():
            return _status(error)
        case OSError(strerror=str() as reason):
            return f"the files cannot be stored: {reason}"
        case _:
            return f"the download failed ({type(error).__name__})"


def _own_token(hub: HubConfig) -> str:
    return "; the one that is given has no access" if hub.token else ""


def _status(error: HfHubHTTPError) -> str:
    status = error.response.status_code
    hints = {401: ": the token is not valid", 403: ": the token lacks the permission", 429: ": too many requests"}
    return f"the Hub answered with status {status}{hints.get(status, '')}"
