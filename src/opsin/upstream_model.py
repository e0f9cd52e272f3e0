"""Which model an engine with a template of its own serves, as far as its pictures have to be counted.

The operator says so (``MODEL`` or ``--model``), or the upstream's own name for it is in the facts. Else nothing is
counted, and everything goes as it came.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from opsin.core.errors import ConfigError
from opsin.engine.api import Capabilities
from opsin.gateway.config import GatewayConfig
from opsin.gateway.message_plan import MessagePlanner
from opsin.models.card import ModelCard, load_card
from opsin.models.countable import Countable, find_countable
from opsin.models.facts import facts_of
from opsin.models.hub import resolve
from opsin.prompt.length import EstimatedLength, TemplateLength, TextMeasure
from opsin.prompt.template import ChatTemplate
from opsin.prompt.text import TextPrompt
from opsin.prompt.tokenizer import Tokenizer
from opsin.settings import EngineKind, Settings
from opsin.startup import card_of, template_of
from opsin.telemetry.logs import fields
from opsin.vision.apis import api_family
from opsin.vision.bounds import configured
from opsin.vision.plan import Family, counted_by
from opsin.vision.registry import family_for

logger = logging.getLogger(__name__)

_LIMITS = ("max_image_tiles", "max_image_tokens", "max_request_image_tokens")


class Basis(Protocol):
    """What counting rests on, in words, and whether somebody has checked it: see Countable."""

    @property
    def source(self) -> str: ...

    @property
    def is_verified(self) -> bool: ...

    @property
    def max_model_len(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class _Estimated:
    """Of an API. Its length is what the engine says."""

    source: str = "an estimate, as no provider promises its rule"
    is_verified: bool = True
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class CountedModel:
    """A model, who counts its pictures, and who measures its texts."""

    name: str
    countable: Basis
    family: Family
    text: TextMeasure

    def planner(self, limits: GatewayConfig, max_model_len: int | None) -> MessagePlanner:
        """Plans requests to it."""
        return MessagePlanner(family=self.family, text=self.text, limits=limits, max_model_len=max_model_len)


def stated_model(settings: Settings) -> CountedModel | None:
    """The one that the operator names. Blocks.

    None where none is named, or, with a warning, where it cannot be had: it may be a folder of the upstream's machine,
    or one that only the engine reads, which opsin starts on it.

    Raises:
        ConfigError: it is a folder of this machine that is no model, or of which nobody knows how to count.
    """
    if settings.engine is EngineKind.API:
        return CountedModel(settings.model, _Estimated(), api_family(settings.model), EstimatedLength())
    if settings.stated_model is None:
        return None
    try:
        return _counted(
            settings, settings.model, find_countable(settings.model_location, settings.revision, settings.hub)
        )
    except ConfigError as error:
        if Path(settings.model_location).expanduser().is_dir() and not settings.engine.is_managed:
            raise
        logger.warning("pictures are not counted: %s", error.message)
        return None


@dataclass(frozen=True, slots=True)
class WrittenModel:
    """A model whose prompts are written here; ``prompt`` is None where nobody names it."""

    prompt: TextPrompt | None
    max_model_len: int | None


def written_model(settings: Settings) -> WrittenModel:
    """For an engine that takes a finished prompt: with the stated model's template. Blocks. Raises ConfigError."""
    if settings.stated_model is None:
        return WrittenModel(None, settings.max_model_len)
    card = card_of(settings, resolve(settings.model_location, settings.revision, hub=settings.hub))
    tokenizer, image_id = Tokenizer.from_file(card.tokenizer_path), card.image_token_id
    image_token = None if image_id is None else tokenizer.decode([image_id], skip_special_tokens=False)
    prompt = TextPrompt(template_of(settings, card), image_token, tokenizer.opening)
    return WrittenModel(prompt, settings.max_model_len or card.max_model_len)


def guarded_by_own_tokens(settings: Settings) -> Settings:
    """With the tokenizer of the stated model as the one that says which tokens are special, unless one is named."""
    upstream = settings.upstream
    if upstream is None or upstream.tokenizer is not None or settings.stated_model is None:
        return settings
    own = upstream.model_copy(update={"tokenizer": settings.model_location})
    return settings.model_copy(update={"upstream": own})


def found_model(settings: Settings, capabilities: Capabilities) -> CountedModel | None:
    """The one that the upstream says it serves, if the facts know it. Needs no network."""
    names = [name for name in (capabilities.model_root, capabilities.model_name) if name and facts_of(name)]
    return _counted(settings, names[0], find_countable(names[0], None, settings.hub)) if names else None


def context_length(settings: Settings, capabilities: Capabilities, model: CountedModel | None) -> int | None:
    """The operator's, else the engine's own, else the model's; None where nobody knows."""
    told = capabilities.max_model_len
    if settings.max_model_len and told and settings.max_model_len > told:
        logger.warning(
            "--max-model-len %d: the upstream takes %d tokens and refuses more", settings.max_model_len, told
        )
    return settings.max_model_len or told or (model.countable.max_model_len if model else None)


def tell(settings: Settings, model: CountedModel | None, max_model_len: int | None) -> None:
    """Says in the log what is counted, and on what that rests."""
    if model is None:
        stated = [name for name in _LIMITS if getattr(settings.gateway, name) is not None]
        if stated:
            logger.warning("no effect, as pictures are not counted without a model (--model): %s", ", ".join(stated))
        return
    countable = model.countable
    text = "exact" if isinstance(model.text, TemplateLength) else "estimated"
    logger.info("%s", fields(counts=model.name, max_model_len=max_model_len, text_tokens=text, source=countable.source))
    if not countable.is_verified:
        logger.warning("nobody has checked the facts that count the pictures of %s: %s", model.name, countable.source)


def _counted(settings: Settings, name: str, countable: Countable) -> CountedModel:
    """Raises ConfigError for a model type without a rule, or without what ``mm_processor_kwargs`` name: these say how
    the engine was started."""
    family: Family = configured(family_for(countable.vision), settings.mm_processor_kwargs)
    try:
        card = _text_files(settings, countable)
        if card is None:
            return CountedModel(name, countable, family, EstimatedLength())
        tokenizer = Tokenizer.from_file(card.tokenizer_path)
        text = TemplateLength(tokenizer, ChatTemplate(card.chat_template, card.special_tokens))
        if countable.resolved is not None and card.path == countable.resolved.path:
            family = counted_by(family, lambda slot: len(tokenizer.encode(slot)))
    except ConfigError as error:
        logger.info("text tokens are estimated: %s", error.message)
        return CountedModel(name, countable, family, EstimatedLength())
    return CountedModel(name, countable, family, text)


def _text_files(settings: Settings, countable: Countable) -> ModelCard | None:
    """Of ``--upstream-tokenizer``, else the model's own; None where neither is at hand. Raises ConfigError."""
    stated = settings.upstream.tokenizer if settings.upstream else None
    resolved = resolve(stated, hub=settings.hub) if stated else countable.resolved
    return None if resolved is None else load_card(resolved)
