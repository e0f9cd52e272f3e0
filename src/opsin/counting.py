"""Counters of pictures and prompts for a model that the settings name, without an engine."""

from __future__ import annotations

from contextlib import suppress

from opsin.core.errors import ConfigError
from opsin.gateway.count import PictureCounter, PromptCounter
from opsin.local_model import fitter_of, model_at_hand
from opsin.models.countable import Countable, find_countable
from opsin.settings import Settings
from opsin.vision.bounds import configured
from opsin.vision.estimate import estimated
from opsin.vision.plan import Family
from opsin.vision.registry import family_for


def find_model(settings: Settings) -> Countable:
    """What counting needs of the model that is set; without network where that is possible. Raises ConfigError."""
    return find_countable(settings.model_location, settings.revision, settings.hub)


def picture_counter(settings: Settings, model: Countable, *, estimate: bool = False) -> PictureCounter:
    """Counts pictures by a model's rule, or by an ``estimate`` where there is none. Raises ConfigError."""
    family: Family = family_for(model.vision, otherwise=estimated if estimate else None)
    family = configured(family, settings.mm_processor_kwargs)
    with suppress(ConfigError):  # a text is not needed, so whatever is wrong with its files is no matter
        local = model_at_hand(settings, model)
        family = local.family if local else family
    return PictureCounter(family, settings.gateway, settings.max_model_len or model.max_model_len)


def prompt_counter(settings: Settings, model: Countable) -> PromptCounter | None:
    """Counts texts too, of a model that runs here and whose files are at hand. Raises ConfigError for broken ones."""
    local = model_at_hand(settings, model)
    return PromptCounter(fitter_of(settings, local), local.builder) if local else None
