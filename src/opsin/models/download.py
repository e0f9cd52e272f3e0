"""The one adapter of ``huggingface_hub``: a pinned snapshot on disk, or in words why there is none."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import (
    HfApi,
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

_LOOK_UP_S = 10.0


def download(model: str, revision: str | None, patterns: Sequence[str], hub: HubConfig, endpoint: str | None) -> Path:
    """The snapshot's folder, named after its commit, with the files that match ``patterns``.

    Raises:
        ConfigError: no such repository or revision, no access, or not to be had offline.
    """
    _quieten()
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
        raise _failed(model, _explanation(error, revision, hub)) from error
    return Path(snapshot)


def ask(model: str, revision: str | None, hub: HubConfig) -> None:
    """Looks a model up. Raises ConfigError when there is none, no access, or no Hub."""
    token = hub.token.get_secret_value() if hub.token else None
    try:
        HfApi(token=token, library_name="opsin").model_info(model, revision=revision, timeout=_LOOK_UP_S)
    except (HfHubHTTPError, HFValidationError) as error:
        raise _failed(model, _explanation(error, revision, hub)) from error
    except Exception as error:  # of the library's HTTP client
        raise _failed(model, "the Hub cannot be reached") from error


def _failed(model: str, why: str) -> ConfigError:
    """A name without an owner is more often a folder's than a model's."""
    hint = "" if "/" in model else f"; and there is no folder ./{model}"
    return ConfigError(f"model {model}: {why}{hint}")


def _quieten() -> None:
    """The library tells each retry twice, by a handler of its own, and with the URL."""
    logging.getLogger("huggingface_hub").handlers.clear()
    logging.getLogger("huggingface_hub.utils._http").addFilter(_without_urls)


def _without_urls(record: logging.LogRecord) -> bool:
    """Of the two lines about a retry the one that only says when."""
    return "thrown while requesting" not in record.getMessage()


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
