"""How far a render worker is confined, as the kernel tells it of a running one. Confines nothing itself."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from opsin.media.config import MediaConfig
from opsin.media.confine import Level
from opsin.media.pool import RenderPool


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What is enforced on a worker. Its own process, with no secret of the server in it, is always there."""

    memory_limit_bytes: int | None  # of address space
    core_dumps: bool
    seccomp: bool
    own_network: bool

    @property
    def level(self) -> Level:
        """The strongest level whose means are in force, with those of all levels before it."""
        if self.memory_limit_bytes is None:
            return Level.PROCESS
        if not self.seccomp:
            return Level.LIMITS
        return Level.NAMESPACES if self.own_network else Level.SECCOMP


async def observe(config: MediaConfig) -> Sandbox:
    """Starts a worker as the server would, looks at it and ends it. Raises ConfigError when none can run."""
    pool = RenderPool(config.model_copy(update={"render_workers": 1}))
    await pool.start()
    try:
        return look(pool.worker_pids[0])
    finally:
        await pool.close()


def look(pid: int) -> Sandbox:
    """What is enforced on a running worker."""
    if sys.platform != "linux":
        return Sandbox(memory_limit_bytes=None, core_dumps=False, seccomp=False, own_network=False)
    process, proc = psutil.Process(pid), Path("/proc", str(pid))
    memory, _ = process.rlimit(psutil.RLIMIT_AS)
    cores, _ = process.rlimit(psutil.RLIMIT_CORE)
    status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines() if ":\t" in line)
    return Sandbox(
        memory_limit_bytes=None if memory == psutil.RLIM_INFINITY else memory,
        core_dumps=cores != 0,
        seccomp=status.get("Seccomp", "0").strip() == "2",
        own_network=(proc / "ns" / "net").readlink() != Path("/proc/self/ns/net").readlink(),
    )
