"""What the query API costs: a page of 50 among 10,000 jobs, and the memory of their rows.

make bench-query    a table, and an error where a page takes more than 100 ms of CPU or the rows more than 100 MB
"""

import argparse
import asyncio
import gc
import resource
import statistics
import time
from pathlib import Path

from elastic_tfjob.controller import operator
from unit.query.build import running, waiting, world

PAGES = (
    "/api/v1/jobs?limit=50",
    "/api/v1/jobs?limit=50&sort=-steps_per_s&state=Running&offset=3000",
    "/api/v1/queue?limit=50",
)
MAX_MS, MAX_MB = 100.0, 100.0


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


async def measure(jobs: int) -> bool:
    """Print the figures, server and client together in one process; whether they are within bounds."""
    objects = (
        (running if number % 3 else waiting)(f"job-{number:05}", f"ns-{number % 50}", version=number + 1)
        for number in range(jobs)
    )
    found = world(*objects)
    gc.collect()
    gc.set_threshold(*operator._THRESHOLDS)  # as in the operator, and below what the server does after its first look
    before_mb, good = resident_mb(), True
    async with found.client() as client:
        begun = time.process_time()
        while (await client.get(PAGES[0])).status == 503:  # the first look takes long
            pass
        gc.freeze()
        print(f"first look at {jobs} jobs: {time.process_time() - begun:.1f} CPU-s")
        for path in PAGES:
            taken = []
            for _ in range(20):
                begun = time.process_time()
                async with client.get(path) as response:
                    assert response.status == 200
                    await response.read()
                taken.append(1000 * (time.process_time() - begun))
            good = good and statistics.median(taken) <= MAX_MS
            print(f"{path}: median {statistics.median(taken):.0f} ms, most {max(taken):.0f} ms of CPU")
        gc.collect()
        more_mb = resident_mb() - before_mb
    print(f"memory: {more_mb:.0f} MB more")
    return good and more_mb <= MAX_MB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    if not asyncio.run(measure(parser.parse_args().jobs)):
        raise SystemExit(f"more than {MAX_MS:.0f} ms or {MAX_MB:.0f} MB")


if __name__ == "__main__":
    main()
