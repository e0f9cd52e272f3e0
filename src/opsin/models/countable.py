"""What counting a model's pictures needs, found where it costs least: on disk, in the facts, and last on the Hub.

A model's own files win wherever they are at hand. Facts need no network, but know no revision, so one that is named is
looked for among files alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opsin.core.errors import ConfigError
from opsin.models.config import HubConfig
from opsin.models.facts import facts_of
from opsin.models.files import ConfigFile
from opsin.models.hub import ResolvedModel, is_folder_name, resolve
from opsin.models.vision_files import VisionFiles, read_vision_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Countable:
    """``source`` says in words what ``vision`` rests on; ``is_verified`` is false where nobody has checked it.

    ``resolved`` are the files, None where there are only facts.
    """

    vision: VisionFiles
    max_model_len: int | None
    source: str
    is_verified: bool
    resolved: ResolvedModel | None


def find_countable(model: str, revision: str | None, hub: HubConfig) -> Countable:
    """By folder or Hub id.

    Raises:
        ConfigError: there is no such model, or its files are broken.
    """
    if Path(model).expanduser().is_dir() or is_folder_name(model):
        return _from_files(resolve(model, revision))
    return _cached(model, revision, hub) or _known(model, revision) or _from_files(resolve(model, revision, hub=hub))


def _cached(model: str, revision: str | None, hub: HubConfig) -> Countable | None:
    try:
        resolved = resolve(model, revision, hub=hub.model_copy(update={"offline": True}))
    except ConfigError:
        return None
    has_config = (resolved.path / "config.json").is_file()  # or only some of its files were ever fetched
    return _from_files(resolved) if has_config else None


def _known(model: str, revision: str | None) -> Countable | None:
    facts = None if revision else facts_of(model)
    if facts is None:
        return None
    return Countable(
        vision=facts.vision,
        max_model_len=facts.text.max_model_len,
        source=f"facts that opsin ships: {facts.vision_source}",
        is_verified=facts.vision_verified,
        resolved=None,
    )


def _from_files(resolved: ResolvedModel) -> Countable:
    try:
        vision = read_vision_files(resolved.path)
        config = vision.config.read(ConfigFile)
    except ConfigError as error:
        raise ConfigError(f"model {resolved.model_id}: {error.message}") from error
    text = config.text_config
    return Countable(
        vision=vision,
        max_model_len=(text.max_position_embeddings if text else None) or config.max_position_embeddings,
        source=f"its own files, {resolved.revision}",
        is_verified=True,
        resolved=resolved,
    )
