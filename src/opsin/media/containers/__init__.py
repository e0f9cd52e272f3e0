"""One file per accepted container: what it says about its picture, read by walking it, without any decoder.

Each yields a header as soon as it knows the size, and again when it knows more; the last one is the whole file's. What
was cut raises only where the cut is, so that a beginning is of use to whoever asked for no more.

Walks are bounded (``MAX_CHUNKS``) and linear, and every length is checked against the data before it is followed. They
raise ``MediaUndecodable`` without ``param``; ``header.read_header`` adds it. They do not check pixels or checksums.
"""

from __future__ import annotations

MAX_CHUNKS = 20_000
"""Chunks or segments of one file. 10 MiB of PNG in libpng's 8 KiB chunks are 1280; 20 000 take about 15 ms to walk."""
