"""From the name that the operator typed to a folder with a known revision.

A name is a local folder or a Hub id. The folder's revision is a digest of what decides its answers; the Hub's is the
commit. The small files come first, so that a model can be refused before its weights travel. Knows neither how files
are downloaded nor what they mean.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from opsin.core.errors import ConfigError
from opsin.models.config import HubConfig
from opsin.models.fingerprint import folder_revision

logger = logging.getLogger(__name__)

FACTS = ("*.json", "*.jinja", "tokenizer.model")
"""Configurations, tokenizer, processor, chat template."""

WEIGHTS = ("*.safetensors",)
"""Never pickled ones, which run code when they are read."""

CODE = ("*.py",)
"""Only for an operator who trusts it."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A checkpoint on disk. ``revision`` is a Hub commit (40 hex digits) or ``local-<12 hex>`` for a folder."""

    path: Path
    model_id: str
    revision: str | None
    from_hub: bool = False


def resolve(
    model: str, revision: str | None = None, *, hub: HubConfig | None = None, endpoint: str | None = None
) -> ResolvedModel:
    """Finds a local folder, or downloads the small files of a Hub id (offline: only looks into the cache).

    A Hub id without a pinned commit is logged as a warning with the commit that was found, because the same command
    may serve another model tomorrow.

    Raises:
        ConfigError: no such folder or repository, access is not granted, or the files cannot be had offline.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _local(folder, revision)
    if is_folder_name(model):
        raise ConfigError(f"model {model}: there is no such folder")
    return _from_hub(model, revision, hub or HubConfig(), endpoint)


def is_folder_name(model: str) -> bool:
    """Whether a name can only mean a folder."""
    return model.startswith(("/", "./", "../", "~"))


def fetch_weights(
    resolved: ResolvedModel, *, with_code: bool, hub: HubConfig | None = None, endpoint: str | None = None
) -> None:
    """Downloads what a Hub model needs to run. Blocks, with a progress bar on a terminal.

    Raises:
        ConfigError: as resolve, or the model has no weights that are safe to read.
    """
    if resolved.from_hub:
        from opsin.models.download import download

        patterns = (*FACTS, *WEIGHTS, *(CODE if with_code else ()))
        download(resolved.model_id, resolved.revision, patterns, hub or HubConfig(), endpoint)
    if not any(resolved.path.glob("*.safetensors")):
        raise ConfigError(f"model {resolved.model_id} has no .safetensors weights; others are never read")


def look_up(model: str, revision: str | None, hub: HubConfig) -> None:
    """Asks the Hub whether a model can be had, and downloads nothing. Raises ConfigError as resolve."""
    from opsin.models.download import ask

    ask(model, revision, hub)


def _local(folder: Path, revision: str | None) -> ResolvedModel:
    if revision is not None:
        raise ConfigError("revision: applies to Hub ids; a local folder is its own revision")
    return ResolvedModel(path=folder, model_id=folder.resolve().name, revision=folder_revision(folder))


def _from_hub(model: str, revision: str | None, hub: HubConfig, endpoint: str | None) -> ResolvedModel:
    # Imported here: huggingface_hub takes longer to import than all the rest, and a folder does not need it.
    from opsin.models.download import download

    path = download(model, revision, FACTS, hub, endpoint)
    commit = path.name  # the cache names a snapshot's folder after its commit
    if revision is None or not _COMMIT.fullmatch(revision):
        logger.warning(
            "model %s is not pinned: %s is commit %s today; pin it with --revision %s",
            model,
            revision or "its default branch",
            commit,
            commit,
        )
    return ResolvedModel(path=path, model_id=model, revision=commit, from_hub=True)
