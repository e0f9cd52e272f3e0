"""What comes back, in vLLM's form."""

from __future__ import annotations

from dataclasses import dataclass

from opsin.core.stages import Timeline
from opsin.core.warnings import AnswerWarning
from opsin.engine.api import FinishReason, Usage
from opsin.gateway.chat import Done
from opsin.gateway.prepare import UsedPicture


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer. ``finish_reason`` is ``stop`` at an end token or stop string, ``length`` at a limit."""

    text: str
    finish_reason: FinishReason | str
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """One prompt and its answer.

    ``prompt`` is the rendered text with one placeholder per picture, ``prompt_token_ids`` what the model read, slots
    expanded; both are None behind an upstream, which has a template of its own. ``usage`` counts tokens, also those of
    the pictures; ``timeline`` says where the time went; ``images`` are the pictures as they were read and used;
    ``warnings`` are about what was perhaps meant otherwise.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...] | None
    outputs: tuple[CompletionOutput, ...]
    usage: Usage
    timeline: Timeline
    images: tuple[UsedPicture, ...] = ()
    warnings: tuple[AnswerWarning, ...] = ()
    finished: bool = True


def to_output(request_id: str, text: str, done: Done) -> RequestOutput:
    """A collected answer as the caller reads it."""
    return RequestOutput(
        request_id=request_id,
        prompt=done.prompt_text,
        prompt_token_ids=done.prompt_ids,
        outputs=(CompletionOutput(text, done.reason),),
        usage=done.usage,
        timeline=done.timeline,
        images=done.images,
        warnings=done.warnings,
    )
