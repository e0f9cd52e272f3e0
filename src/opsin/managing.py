"""What the settings ask of an engine that opsin starts: from settings to its description and its command.

Reads a model's small files where they are on this machine, and downloads nothing: the engine does that.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from opsin.core.errors import ConfigError
from opsin.engine.managed.launch import EngineProgram, Launch, Serving, launch, passed_in, shown
from opsin.engine.managed.pixels import in_its_words, max_pixels_within
from opsin.engine.managed.registry import PROGRAMS
from opsin.models.facts import facts_of
from opsin.models.hub import resolve
from opsin.models.vision_files import VisionFiles, read_vision_files
from opsin.settings import Settings
from opsin.vision.plan import Family
from opsin.vision.registry import family_for

_QUANTIZED = re.compile(r"-(AWQ|FP8|GPTQ-Int[48])$")
"""What a publisher adds to the name of the same model, whose pictures are the same."""

_PROCESSOR = "mm_processor_kwargs."

PICTURES_SHARE = 2
"""Where nothing else limits a picture, it may take one part in so many of ``max_model_len``."""


def program_of(settings: Settings) -> EngineProgram:
    """The engine that the settings name. Raises KeyError when it is none that opsin starts."""
    return PROGRAMS[settings.engine]


def launcher_of(settings: Settings) -> Callable[[], Launch]:
    """Makes one start of the engine after another, each on a port and with a key of its own."""
    managed = settings.managed
    return partial(launch, program_of(settings), serving(settings), managed.program_words, managed.arguments)


def printed(settings: Settings) -> str:
    """The command as a shell takes it; secrets are named, not shown."""
    engine = program_of(settings)
    secret = frozenset(name for name in (engine.key_variable, "HF_TOKEN") if name)
    return shown(launcher_of(settings)(), secret)


def problems(settings: Settings) -> Iterator[str]:
    """What the engine can never be asked. Whether its program is installed is another question."""
    yield from program_of(settings).problems(serving(settings))


def missing_program(settings: Settings) -> str | None:
    """How to get the program, where it is not there."""
    engine = program_of(settings)
    words = settings.managed.program_words or engine.program
    if shutil.which(words[0]) is not None:
        return None
    return (
        f"engine {engine.name}: there is no program {words[0]}; {engine.install}, "
        "or say where it is: --engine-program /path/to/it"
    )


def notices(settings: Settings) -> Iterator[str]:
    """A word for each of the operator's flags that does not reach the engine, and for a model that may change."""
    engine = program_of(settings)
    for one, why in engine.refusals(passed_in(settings.managed.arguments)):
        yield f"{one.name.partition('=')[0]}: not given to {engine.name}; {why}"
    if "revision" in engine.heeds and settings.revision is None and not Path(settings.model_location).exists():
        yield f"model {settings.model} is not pinned, so it may be another one tomorrow; pin it with --revision COMMIT"


def capped(settings: Settings) -> Settings:
    """With a cap on every picture, unless somebody stated one, so that whoever counts pictures counts as the engine.

    Unchanged where family or length are unknown, or where the engine heeds no cap.
    """
    kwargs, engine = settings.mm_processor_kwargs, program_of(settings)
    max_tokens = settings.gateway.max_image_tokens or (settings.max_model_len or 0) // PICTURES_SHARE
    stated = kwargs.max_pixels or kwargs.size.longest_edge
    family = _family(settings) if max_tokens and not stated and _PROCESSOR in engine.heeds else None
    max_pixels = max_pixels_within(family, max_tokens) if family else None
    if max_pixels is None:
        return settings
    return settings.model_copy(update={"mm_processor_kwargs": kwargs.model_copy(update={"max_pixels": max_pixels})})


def serving(settings: Settings) -> Serving:
    """The settings in the words that every engine understands. Values that nobody stated are left to the engine."""
    local, stated = settings.local, settings.local.model_fields_set
    return Serving(
        model=settings.model_location,
        names=settings.served_model_name or (settings.model,),
        num_images=settings.media.limit_mm_per_prompt.image,
        revision=settings.revision,
        download_dir=str(settings.hub.download_dir) if settings.hub.download_dir else None,
        offline=settings.hub.offline,
        hub_token=settings.hub.token,
        chat_template=settings.chat_template,
        trust_remote_code=local.trust_remote_code,
        max_model_len=settings.max_model_len,
        max_num_seqs=local.max_num_seqs if "max_num_seqs" in stated else None,
        max_image_tokens=settings.gateway.max_image_tokens,
        dtype=local.dtype if "dtype" in stated else None,
        quantization=local.quantization,
        device_memory_share=local.gpu_memory_utilization,
        num_threads=local.num_threads,
        in_container=settings.managed.container,
        mm_processor_kwargs=_processor_kwargs(settings),
    )


def _processor_kwargs(settings: Settings) -> Mapping[str, object] | None:
    kwargs = capped(settings).mm_processor_kwargs
    try:
        return in_its_words(_family(settings), kwargs) or None
    except ConfigError:
        return kwargs.model_dump(exclude_none=True, exclude_defaults=True) or None


def _family(settings: Settings) -> Family | None:
    files = _vision_files(settings)
    try:
        return family_for(files) if files else None
    except ConfigError:
        return None


def _vision_files(settings: Settings) -> VisionFiles | None:
    """What is known of well-known checkpoints; of others the folder, or what the local cache holds."""
    for model_id in (settings.model, _QUANTIZED.sub("", settings.model)):
        if (facts := facts_of(model_id)) is not None:
            return facts.vision
    offline = settings.hub.model_copy(update={"offline": True})
    try:
        return read_vision_files(resolve(settings.model_location, settings.revision, hub=offline).path)
    except ConfigError:
        return None
