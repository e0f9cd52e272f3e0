"""A chat template in place of a model's own, as vLLM has it: the name of a file, or the template itself."""

from __future__ import annotations

from pathlib import Path

from opsin.core.errors import ConfigError

_JINJA = "{}\n"


def read_template(stated: str) -> str:
    """The template's text. Raises ConfigError when it is neither a readable file nor looks like a template."""
    if any(character in stated for character in _JINJA):
        return stated
    try:
        return Path(stated).expanduser().read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"--chat-template {stated}: the file is not UTF-8") from None
    except OSError as error:
        raise ConfigError(f"--chat-template {stated}: the file cannot be read: {error.strerror}") from None
