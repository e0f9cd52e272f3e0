"""Chat templates: Transformers' rendering, the sandbox and its bounds."""

from __future__ import annotations

import time
from typing import Any

import pytest
from transformers.utils.chat_template_utils import (
    render_jinja_template,  # pyright: ignore[reportUnknownVariableType] untyped
)

from opsin.core.errors import ConfigError, InvalidRequest
from opsin.prompt.template import MAX_ERROR_CHARS, ChatTemplate, TemplateMessage
from tests.checkpoints import TEMPLATE

MESSAGES: list[TemplateMessage] = [
    {"role": "system", "content": [{"type": "text", "text": "Be <b>brief</b>."}]},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What? {{ 7 * 7 }}"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
    {"role": "user", "content": [{"type": "text", "text": "Really?"}]},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def render(source: str, **options: Any) -> str:
    return ChatTemplate(source, TOKENS).render(MESSAGES, **options)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize(
    "source",
    [
        TEMPLATE,
        "{{ bos_token }}{% for m in messages %}{{ m.role }}{% endfor %}{{ eos_token }}\n",
        "{% for m in messages %}\n    {% if loop.first %}\n  first\n    {% endif %}\n  x\n{% endfor %}\n",
        "{% for m in messages %}{% if loop.index0 == 2 %}{% break %}{% endif %}{{ loop.length }}{% endfor %}",
        "{% for m in messages %}{{ loop.previtem is defined }}{{ m.role }}{{ loop.nextitem is defined }}{% endfor %}",
        "{% for m in messages if m.role == 'user' %}{{ m.content | length }}{% else %}none{% endfor %}",
        "{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ m.role }}{{ loop.last }}{% endfor %}",
        "{% for key, value in messages[0].items() %}{{ key }}{% endfor %}{% for x in nothing %}x{% endfor %}",
        "{% macro say(m) %}[{{ m.role }}]{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
        "{% for m in messages recursive %}{{ m.role }}{% if loop.depth < 2 %}{{ loop([m]) }}{% endif %}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% endfor %}",
        "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
        "{{ tools is none }}{{ documents is none }}{{ tools is defined }}{{ missing is defined }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{{ '-' * 20 }}{{ 3 * 4 }}{{ 'x' * 0 }}",
        "{{ strftime_now('%Y') }}{{ dict(a=1) }}",
    ],
)
def test_renders_like_transformers(source: str, add_generation_prompt: bool) -> None:
    variables: dict[str, Any] = {**TOKENS, "add_generation_prompt": add_generation_prompt}
    conversations: Any = [MESSAGES]
    expected, _ = render_jinja_template(conversations, chat_template=source, **variables)
    assert render(source, add_generation_prompt=add_generation_prompt) == expected[0]


def test_syntax_error_is_found_at_start() -> None:
    with pytest.raises(ConfigError, match="chat template: syntax error in line 2"):
        ChatTemplate("\n{% for %}", TOKENS)


def test_what_the_template_refuses_is_said_in_its_words() -> None:
    with pytest.raises(InvalidRequest, match="refuses the messages: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_a_long_refusal_is_cut() -> None:
    with pytest.raises(InvalidRequest) as caught:
        render("{{ raise_exception('x' * 5000) }}")
    assert len(caught.value.message) == MAX_ERROR_CHARS


@pytest.mark.parametrize("source", ["{{ messages[9].content[0] }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ none.x.y }}"])
def test_a_failing_template_is_named_without_the_librarys_text(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^the chat template fails on these messages$"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ (messages | map(attribute='__class__') | list)[0].__mro__ }}",
        "{% set _ = messages.append('x') %}",
        "{% set _ = messages[0].update({'role': 'x'}) %}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
    ],
)
def test_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequest):
        render(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}", "over 200000 loop steps"),
        ("{% for i in range(100000) %}{% for j in range(9) %}{% endfor %}{% endfor %}", "over 200000 loop steps"),
        ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}", "loop steps"),
        ("{% for i in messages recursive %}{{ loop(messages) }}{% endfor %}", "fails on these messages"),
        ("{{ 'x' * 1000000000 }}", "repeats something over 10000 times"),
        ("{{ 1000000000 * ['x'] }}", "repeats something over 10000 times"),
        ("{{ 10 ** 10 ** 10 }}", "raises to a power"),
        ("{% for i in range(2000) %}{{ 'x' * 10000 }}{% endfor %}", "its output passed 16777216 characters"),
        ("{% for i in range(1000000) %}{% endfor %}", "fails on these messages"),
    ],
)
def test_runaways_end(source: str, message: str) -> None:
    started = time.process_time()
    with pytest.raises(InvalidRequest, match=message):
        render(source)
    assert time.process_time() - started < 5


def test_bounds_count_per_rendering() -> None:
    template = ChatTemplate("{% for i in range(90000) %}{% endfor %}done", {})
    assert [template.render([]) for _ in range(4)] == ["done"] * 4
