"""What a checkpoint says about pictures: its own files, from its folder or excerpted in the facts, still unread.

Which of their fields matter, and what these mean, is a family's knowledge.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opsin.models.files import ConfigFile, Document, ProcessorFile, document

_PROCESSOR = "processor_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionFiles:
    """The three files that decide how a picture is cut and counted."""

    model_type: str
    config: Document
    image_processor: Document
    processor: Document


def read_vision_files(folder: Path) -> VisionFiles:
    """The files of a folder.

    Raises:
        ConfigError: config.json is missing, or it or processor_config.json is broken.
    """
    config = document(folder, "config.json")
    processor = document(folder, _PROCESSOR)
    return VisionFiles(
        model_type=config.read(ConfigFile).model_type,
        config=config,
        image_processor=_nested(processor) or document(folder, "preprocessor_config.json"),
        processor=processor,
    )


def _nested(processor: Document) -> Document | None:
    """The image processor inside processor_config.json, which wins, as in Transformers."""
    nested = bytes(processor.read_if_any(ProcessorFile).image_processor)
    return None if nested in (b"", b"null") else Document(f"{processor.name}: image_processor", nested)
