"""Whether the libraries of the local engine are there. An install without them serves upstreams."""

from __future__ import annotations

from importlib.util import find_spec

from opsin.core.errors import ConfigError

_LIBRARIES = ("torch", "transformers")


def check_installed() -> None:
    """Looks without importing. Raises ConfigError."""
    if any(find_spec(name) is None for name in _LIBRARIES):
        raise ConfigError(
            "the local engine needs torch and transformers: pip install 'opsin[local]', "
            "or name a server that runs the model: --upstream URL (opsin ask: --url URL)"
        )
