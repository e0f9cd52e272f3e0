"""Metrics of a real server as numbers."""

from __future__ import annotations

import aiohttp
from prometheus_client.parser import text_string_to_metric_families


async def scrape(url: str) -> dict[str, float]:
    """Every sample by name; a label's value follows in brackets, as in ``opsin_memory_bytes[engine]``."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        text = await response.text()
    return {
        f"{sample.name}[{','.join(sample.labels.values())}]" if sample.labels else sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
