"""The table of docs/configuration.md, out of the settings themselves; run as a script it writes the page.

A test fails while the page holds another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opsin.names import SERVE
from opsin.settings import Settings
from opsin.sources import Setting, settings_of

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD = "| setting | flag | default | meaning |\n|---|---|---|---|\n"


def table() -> str:
    """One row for every setting."""
    return HEAD + "".join(_row(setting) for setting in settings_of(Settings))


def written(page: str) -> str:
    """The page with its table replaced."""
    start = page.index(HEAD)
    end = page.find("\n\n", start)
    return page[:start] + table() + (page[end + 1 :] if end >= 0 else "")


def _row(setting: Setting) -> str:
    flags = ", ".join(f"`{spelling}`" for spelling in _spellings(setting.path))
    return f"| `{setting.path}` | {flags} | {_default(setting.default)} | {_escaped(setting.description)} |\n"


def _spellings(path: str) -> Iterator[str]:
    """Of the setting's own flag, or of its section's."""
    for group in SERVE:
        for flag in group.flags:
            if path == flag.setting or path.startswith(f"{flag.setting}."):
                yield from flag.spellings


def _default(value: Any) -> str:
    if value in (None, "", (), {}):
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
