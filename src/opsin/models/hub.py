"""From the name that the operator typed to a folder with a known revision.

A name is a local folder or a Hub id. The folder's revision is a digest of what decides its answers; the Hub's is the
commit. Knows neither how files are downloaded nor what they mean.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from opsin.core.errors import ConfigError
from opsin.models.fingerprint import folder_revision

logger = logging.getLogger(__name__)

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
        raise ConfigError(f"model {model}: there is no such folder")
    return _from_hub(model, revision, offline=offline, cache_dir=cache_dir, endpoint=endpoint)


def _local(folder: Path, revision: str | None) -> ResolvedModel:
    if revision is not None:
        raise ConfigError("revision: applies to Hub ids; a local folder is its own revision")
    return ResolvedModel(path=folder, model_id=folder.resolve().name, revision=folder_revision(folder))


def _from_hub(
    model: str, revision: str | None, *, offline: bool, cache_dir: Path | None, endpoint: str | None
) -> ResolvedModel:
    # Imported here: huggingface_hub takes longer to import than all the rest, and a folder does not need it.
    from opsin.models.download import download

    path = download(model, revision, offline=offline, cache_dir=cache_dir, endpoint=endpoint)
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
