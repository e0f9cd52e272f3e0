"""What was sent, as measured on what was sent. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from opsin.bench.config import BenchConfig
from opsin.bench.record import Header, Kind, Record
from opsin.bench.stats import percentile


class Spread(msgspec.Struct):
    """Smallest, median and largest."""

    low: float
    median: float
    high: float


class WorkloadCard(msgspec.Struct):
    """Everything that a number of this run depends on, beside the server."""

    url: str
    load: str
    cache: str
    sent_pictures: int  # of load, warm-up included: a cache does not care why a picture came
    unique_pictures: int
    images_per_request: Spread | None
    resolutions: dict[str, float]  # shares of the load's pictures
    picture_format: str
    content: str
    picture_bytes: Spread | None
    bytes_per_pixel: float | None
    body_bytes: Spread | None
    detail: str
    words: int
    output_len: int
    ignore_eos: bool
    seed: int
    dataset: str


def workload_card(config: BenchConfig, header: Header, records: Sequence[Record]) -> WorkloadCard:
    """Of the load; warm-up and probes count only where it says so."""
    load = [record for record in records if record.kind is Kind.LOAD]
    pictures = [picture for record in load for picture in record.pictures]
    all_pictures = [picture for record in records for picture in record.pictures]
    sizes = Counter(f"{picture.width}x{picture.height}" for picture in pictures)
    pixels = sum(picture.width * picture.height for picture in pictures)
    return WorkloadCard(
        url=config.url,
        load=_load(config),
        cache=str(config.cache),
        sent_pictures=len(all_pictures),
        unique_pictures=len({picture.sha for picture in all_pictures}),
        images_per_request=_spread([len(record.pictures) for record in load]),
        resolutions={size: count / len(pictures) for size, count in sizes.most_common()},
        picture_format="as in the folder" if config.picture_dir else str(config.format),
        content=str(config.picture_dir) if config.picture_dir else "photo-like, 1/f^1.2 spectrum",
        picture_bytes=_spread([picture.num_bytes for picture in pictures]),
        bytes_per_pixel=sum(picture.num_bytes for picture in pictures) / pixels if pixels else None,
        body_bytes=_spread([record.body_bytes for record in load]),
        detail=config.detail or "not sent",
        words=config.input_words,
        output_len=config.output_len,
        ignore_eos=config.ignore_eos,
        seed=config.seed,
        dataset=header.dataset,
    )


def _load(config: BenchConfig) -> str:
    numbers = ", ".join(f"{level:g}" for level in config.levels)
    if config.is_open_loop:
        return f"open loop, {config.arrival} arrivals, {numbers} per second"
    return f"closed loop, {numbers} at once (a slow server is asked less, by design)"


def _spread(values: Sequence[float]) -> Spread | None:
    ordered = sorted(values)
    return Spread(ordered[0], percentile(ordered, 0.5), ordered[-1]) if ordered else None
