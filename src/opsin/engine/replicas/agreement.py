"""What replicas have to have in common, as a request is made ready before one is chosen. Knows no replica."""

from __future__ import annotations

from opsin.core.errors import ConfigError
from opsin.engine.api import Capabilities


def check_same(joining: Capabilities, there: Capabilities) -> None:
    """Raises ConfigError when ``joining`` cannot stand in for ``there``, which the other replicas are."""
    for told in (_model, _input, _pictures):
        if told(joining) != told(there):
            raise ConfigError(f"it {told(joining)}, and the other replicas {told(there).partition(' ')[2]}")


def _model(one: Capabilities) -> str:
    return f"serves {one.model_name} with {one.max_model_len} tokens"


def _input(one: Capabilities) -> str:
    return f"reads {one.input}"


def _pictures(one: Capabilities) -> str:
    if one.picture_formats is None:
        return "takes pictures of unknown formats (which --upstream-kind tells)"
    return f"takes {', '.join(sorted(format.written for format in one.picture_formats))}"
