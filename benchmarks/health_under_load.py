"""How long ``/health`` takes while bodies of 32 MiB and pictures of 25 Mpx are in flight.

    python benchmarks/health_under_load.py

Starts a server with the demo model, asks 500 times at rest and 500 times under load from four clients, and prints both.
The exit status is 1 when the 99th percentile under load is over 50 ms: something held up the event loop.
"""

from __future__ import annotations

import argparse
import asyncio

from opsin.testing.heavy_load import Latencies, heavy_load, probe
from opsin.testing.server_process import ServerProcess

LIMIT_S = 0.050
PAUSE_S = 0.02


async def measure(url: str, count: int) -> tuple[Latencies, Latencies]:
    """At rest, and under load."""
    at_rest = await probe(url, count, PAUSE_S)
    async with heavy_load(url):
        return at_rest, await probe(url, count, PAUSE_S)


def main() -> int:
    """Prints the figures; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probes", type=int, default=500)
    parser.add_argument("--url", help="of a server that runs already, on this machine or another one")
    args = parser.parse_args()
    if args.url:
        at_rest, under_load = asyncio.run(measure(args.url, args.probes))
    else:
        with ServerProcess() as server:
            at_rest, under_load = asyncio.run(measure(server.until_ready(), args.probes))
    print(f"at rest:    {at_rest}\nunder load: {under_load}")
    return 0 if under_load.quantile_s(0.99) <= LIMIT_S else 1


if __name__ == "__main__":
    raise SystemExit(main())
