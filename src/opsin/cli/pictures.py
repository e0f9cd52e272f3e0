"""Picture files named on the command line."""

from __future__ import annotations

import pybase64

from opsin.media.types import MediaBytes


def data_url(media: MediaBytes) -> str:
    """A picture as the ``data:`` URL that any server takes."""
    return f"data:{media.header.format.mime};base64,{pybase64.b64encode(media.data).decode()}"
