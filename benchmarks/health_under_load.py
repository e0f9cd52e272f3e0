"""How long ``/health`` takes while the heaviest requests, or bad pictures, are in flight.

    python benchmarks/health_under_load.py

Starts a server with the demo model and asks 500 times each: at rest; while four clients send bodies of 32 MiB and
pictures of 25 Mpx; while 32 clients send bombs, cut files and huge pictures with an error at their end, and one good
request after the other comes between them. The exit status is 1 when a 99th percentile under load is over 50 ms:
something held up the event loop; or when a good request failed.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass

from opsin.testing.heavy_load import Latencies, heavy_load, probe
from opsin.testing.hostile_load import GoodRequests, good_requests, hostile_load
from opsin.testing.server_process import ServerProcess

LIMIT_S = 0.050
PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Measured:
    """Probes of ``/health``, and the good requests among the bad pictures."""

    at_rest: Latencies
    heavy: Latencies
    hostile: Latencies
    good: GoodRequests

    @property
    def is_good(self) -> bool:
        slowest = max(self.heavy.quantile_s(0.99), self.hostile.quantile_s(0.99))
        return slowest <= LIMIT_S and bool(self.good.seconds) and not self.good.failures

    def __str__(self) -> str:
        return "\n".join(
            (
                f"at rest:      {self.at_rest}",
                f"heavy load:   {self.heavy}",
                f"bad pictures: {self.hostile}",
                f"good requests among them: {len(self.good.failures)} failed; {self.good.latencies}",
            )
        )


async def measure(url: str, count: int) -> Measured:
    """At rest and under both loads, one after the other."""
    at_rest = await probe(url, count, PAUSE_S)
    async with heavy_load(url):
        heavy = await probe(url, count, PAUSE_S)
    async with hostile_load(url), good_requests(url) as good:
        hostile = await probe(url, count, PAUSE_S)
    return Measured(at_rest, heavy, hostile, good)


def main() -> int:
    """Prints the figures; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probes", type=int, default=500)
    parser.add_argument("--url", help="of a server that runs already, on this machine or another one")
    args = parser.parse_args()
    if args.url:
        measured = asyncio.run(measure(args.url, args.probes))
    else:
        with ServerProcess() as server:
            measured = asyncio.run(measure(server.until_ready(), args.probes))
    print(measured)
    return 0 if measured.is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
