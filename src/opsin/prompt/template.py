"""A checkpoint's chat template: untrusted code from the Hub, run in jinja's immutable sandbox with bounds.

The environment is Transformers' (``utils/chat_template_utils.py``): block trimming, loop controls, ``generation``
blocks, ``raise_exception``, ``strftime_now`` and ``tojson``. Bounded are loop steps, macro calls, repetition and the
length of the output; a template can still waste memory in ways that none of these sees. This module knows messages in
Hugging Face form, but no tokens and no pictures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Literal, TypedDict

from jinja2 import TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from opsin.core.conversation import Message, Role, TextPart
from opsin.core.errors import ConfigError, InvalidRequest

MAX_PROMPT_CHARS = 16 * 1024 * 1024
"""Longest prompt that a template may write; far above any context length."""

MAX_REPETITIONS = 10_000
"""How often a template may repeat a string or list by ``*``; real ones draw lines and indentation with it."""

MAX_STEPS = 200_000
"""Loop steps and macro calls in one rendering: some hundred times what the longest real templates take."""

MAX_ERROR_CHARS = 300


class TemplatePart(TypedDict, total=False):
    """One part of a message's content; ``text`` only where ``type`` is ``"text"``."""

    type: Literal["text", "image"]
    text: str


class TemplateMessage(TypedDict):
    """One message as chat templates read it."""

    role: Role
    content: str | list[TemplatePart]


PROBE = "opsin probe"
"""A text that is rendered to see what a template makes of it."""


def in_parts(message: Message, write: Callable[[str], str]) -> TemplateMessage:
    """A message whose content is a list of parts; ``write`` says what is rendered in the place of a text."""
    parts: list[TemplatePart] = [
        {"type": "text", "text": write(part.text)} if isinstance(part, TextPart) else {"type": "image"}
        for part in message.parts
    ]
    # Templates look at the first part without asking whether there is one.
    return {"role": message.role, "content": parts or [{"type": "text", "text": ""}]}


def reads_parts(rendered: str) -> bool:
    """Of a rendered list of parts with PROBE: a template for strings may print it as Python or JSON would."""
    return PROBE in rendered and f"'{PROBE}'" not in rendered and f'"{PROBE}"' not in rendered


class _Refusal(TemplateError):
    """The template called ``raise_exception``."""


class _Runaway(Exception):
    """The template passed one of the bounds above."""


_steps: ContextVar[int] = ContextVar("steps of the rendering in progress")


class ChatTemplate:
    """A compiled template. ``special_tokens`` (``bos_token`` …) are visible to it by name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises ConfigError if ``source`` is not a template."""
        self.source = source
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols], autoescape=False
        )
        try:
            tree = environment.parse(source)
            _count_steps(tree)
            self._template = environment.from_string(tree, globals=dict(special_tokens))
        except TemplateSyntaxError as error:
            raise ConfigError(f"chat template: syntax error in line {error.lineno}") from error

    def render(self, messages: Sequence[TemplateMessage], add_generation_prompt: bool = True) -> str:
        """The prompt's text.

        Raises:
            InvalidRequest: the template refuses these messages (its own sentence is passed on), fails on them, or does
                not end within the bounds.
        """
        token = _steps.set(0)
        try:
            return self._bounded(messages, add_generation_prompt)
        except _Refusal as error:
            raise InvalidRequest(
                f"the chat template refuses the messages: {error.message}"[:MAX_ERROR_CHARS]
            ) from error
        except _Runaway as error:
            raise InvalidRequest(f"the chat template runs away: {error}") from error
        except Exception as error:  # a template can fail like any program
            raise InvalidRequest("the chat template fails on these messages") from error
        finally:
            _steps.reset(token)

    def _bounded(self, messages: Sequence[TemplateMessage], add_generation_prompt: bool) -> str:
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate(
            messages=list(messages), add_generation_prompt=add_generation_prompt, tools=None, documents=None
        ):
            length += len(piece)
            if length > MAX_PROMPT_CHARS:
                raise _Runaway(f"its output passed {MAX_PROMPT_CHARS} characters")
            pieces.append(piece)
        return "".join(pieces)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("*", "**"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        functions: dict[str, Any] = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        filters: dict[str, Any] = {"tojson": _tojson, _CHARGE: _charge}
        self.globals.update(functions)
        self.filters.update(filters)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """One operator can ask for any amount of memory; a chat template has no use for that."""
        if operator == "**":
            raise _Runaway("it raises to a power")
        for items, times in ((left, right), (right, left)):
            if isinstance(items, str | list | tuple) and isinstance(times, int) and times > MAX_REPETITIONS:
                raise _Runaway(f"it repeats something over {MAX_REPETITIONS} times")
        return super().call_binop(context, operator, left, right)


class _GenerationBlocks(Extension):
    """``{% generation %}`` marks the assistant's turns for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_CHARGE = "opsin_charge"


def _count_steps(tree: nodes.Template) -> None:
    """Makes every loop pay for its items before it runs and every macro for its call.

    The sandbox bounds one ``range``, not loops within loops nor recursion, and an endless template would hold the
    whole gateway.
    """
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, _CHARGE, [], [], None, None, lineno=loop.lineno)
    for macro in tree.find_all(nodes.Macro):
        payment = nodes.Filter(nodes.Const(""), _CHARGE, [], [], None, None, lineno=macro.lineno)
        macro.body.insert(0, nodes.Output([payment], lineno=macro.lineno))


@pass_context
def _charge(context: Context, items: Any) -> Any:
    """Returns ``items`` as something with a length, after charging for it; at least one step."""
    sized = items if hasattr(items, "__len__") else list(items)
    steps = _steps.get() + max(1, len(sized))
    if steps > MAX_STEPS:
        raise _Runaway(f"over {MAX_STEPS} loop steps")
    _steps.set(steps)
    return sized


def _raise_exception(message: object) -> None:
    raise _Refusal(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML; Transformers' does not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
