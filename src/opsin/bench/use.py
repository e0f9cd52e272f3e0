"""What the server used during one level, from samples of its processes. Pure."""

from __future__ import annotations

import msgspec

from opsin.bench.record import ServerProcess, ServerSamples


class ProcessUse(msgspec.Struct):
    """One process. ``cpu_s``: used while it was watched."""

    pid: int
    name: str
    peak_rss_bytes: int
    cpu_s: float


class ServerUse(msgspec.Struct):
    """All processes together; pages that they share count in each."""

    samples_per_s: float
    first_rss_bytes: int  # at the begin of the level
    peak_rss_bytes: int  # of the sums, not the sum of peaks
    mean_cores: float  # CPU seconds per second
    processes: list[ProcessUse]


def server_use(samples: ServerSamples) -> ServerUse | None:
    """None without samples."""
    sums = [sum(process.rss_bytes[tick] or 0 for process in samples.processes) for tick in range(len(samples.ticks_ns))]
    if not sums or not samples.processes:
        return None
    seconds = (samples.ticks_ns[-1] - samples.ticks_ns[0]) / 1e9
    processes = [_process_use(process) for process in samples.processes]
    return ServerUse(
        samples_per_s=(len(sums) - 1) / seconds if seconds else 0.0,
        first_rss_bytes=sums[0],
        peak_rss_bytes=max(sums),
        mean_cores=sum(process.cpu_s for process in processes) / seconds if seconds else 0.0,
        processes=processes,
    )


def _process_use(process: ServerProcess) -> ProcessUse:
    cpu = [seconds for seconds in process.cpu_s if seconds is not None]
    return ProcessUse(
        pid=process.pid,
        name=process.name,
        peak_rss_bytes=max((rss or 0 for rss in process.rss_bytes), default=0),
        cpu_s=cpu[-1] - cpu[0] if cpu else 0.0,
    )
