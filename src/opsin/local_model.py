"""A model that runs here: its files read, its template, tokenizer and token arithmetic ours."""

from __future__ import annotations

from dataclasses import dataclass

from opsin.core.errors import ConfigError
from opsin.core.problems import raise_all
from opsin.gateway.fitting import PromptFitter
from opsin.models.card import ModelCard
from opsin.models.countable import Countable
from opsin.models.hub import fetch_weights, resolve
from opsin.prompt.build import PromptBuilder
from opsin.prompt.tokenizer import Tokenizer
from opsin.settings import Settings
from opsin.startup import card_of, model_problems, template_of
from opsin.vision.bounds import configured
from opsin.vision.plan import NativeFamily, counted_by
from opsin.vision.registry import is_native, native_family_for

DEFAULT_MAX_MODEL_LEN = 4096
"""For a checkpoint that does not say."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model whose template, tokenizer and token arithmetic are ours."""

    card: ModelCard
    image_token_id: int
    family: NativeFamily
    tokenizer: Tokenizer
    builder: PromptBuilder


def model_at_hand(settings: Settings, model: Countable) -> LocalModel | None:
    """A model that runs here, with its tokenizer."""
    if model.resolved is None or not is_native(model.vision.model_type):
        return None
    return _local_model(settings, card_of(settings, model.resolved))


def load_local_model(settings: Settings) -> LocalModel:
    """Reads a model's files, or downloads them. Blocks.

    Raises:
        ConfigError: no such model, an unsupported family, or broken files.
    """
    resolved = resolve(settings.model_location, settings.revision, hub=settings.hub)
    card = card_of(settings, resolved)
    raise_all(list(model_problems(settings, card)))
    model = _local_model(settings, card)
    fetch_weights(resolved, with_code=settings.local.trust_remote_code, hub=settings.hub)
    return model


def _local_model(settings: Settings, card: ModelCard) -> LocalModel:
    tokenizer = Tokenizer.from_file(card.tokenizer_path)
    family = configured(native_family_for(card), settings.mm_processor_kwargs)
    family = counted_by(family, lambda text: len(tokenizer.encode(text)))
    image_token_id = card.image_token_id or tokenizer.token_id(family.image_token)
    if image_token_id is None:
        raise ConfigError(f"the tokenizer has no {family.image_token}, so the model cannot take pictures")
    builder = PromptBuilder(
        tokenizer, template_of(settings, card), family.image_token, image_token_id, family.placeholder
    )
    return LocalModel(card, image_token_id, family, tokenizer, builder)


def max_model_len_of(settings: Settings, card: ModelCard) -> int:
    """What the operator states, else the checkpoint, else a default."""
    return settings.max_model_len or card.max_model_len or DEFAULT_MAX_MODEL_LEN


def fitter_of(settings: Settings, model: LocalModel) -> PromptFitter:
    """Fits prompts of the model into the limits that are set."""
    return PromptFitter(
        family=model.family,
        builder=model.builder,
        limits=settings.gateway,
        max_model_len=max_model_len_of(settings, model.card),
    )
