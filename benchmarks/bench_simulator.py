"""Simulator speed: jobs per CPU-second on the Philly week (12,751 jobs, 48 nodes x 8 GPUs), on one core.

    python benchmarks/bench_simulator.py [--traces DIR] [--check]

Others on this input make 45-245 jobs per CPU-second with preemption and 107-183 without; `--check` exits 1 below 500
with preemption or 2,000 without, both with placement. In the last row every fifth job may also run on nodes that a
second pool of 48 x 8 lends and wants back.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from anchors import LUCID_COSTS, PHILLY, run, traces_dir
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.simulation.formats import read_csv
from elastic_tfjob.simulation.live_job import NO_COSTS
from elastic_tfjob.simulation.scenario import InferencePool

PREEMPTIVE, PLAIN = 500, 2000
CASES: tuple[tuple[str, dict[str, Any], bool], ...] = (
    ("fifo", {"place": "count"}, False),
    ("fifo", {"place": "consolidate"}, False),
    ("fifo-backfill", {"place": "consolidate"}, False),
    ("sjf", {"place": "consolidate"}, False),
    ("sjf", {"place": "spread"}, False),
    ("srtf", {"place": "consolidate"}, True),
    ("las", {"place": "consolidate"}, True),
    ("fifo-backfill", {"place": "consolidate", "lend": "offered"}, False),
)
POOL = InferencePool(48, Resources(accelerators=8))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    file = traces_dir(arguments.traces) / PHILLY
    if not file.exists():
        print(f"{file} is missing: give --traces DIR or set ELASTIC_TFJOB_TRACES.")
        return 1 if arguments.check else 0
    jobs = read_csv(file)[0].jobs
    loanable = [replace(job, loanable=k % 5 == 0) for k, job in enumerate(jobs)]
    table = Table("profile", "placement", "preemptive", "rounds", "CPU s", "jobs/CPU-s", "to reach")
    slow = 0
    for profile, settings, preemptive in CASES:
        print(f"{profile}, {settings['place']} ...", file=sys.stderr)
        costs, lent = LUCID_COSTS if preemptive else NO_COSTS, "lend" in settings
        s = run(
            loanable if lent else jobs,
            48,
            8,
            "fixed",
            profile,
            costs=costs,
            inference=POOL if lent else None,
            **settings,
        )
        speed, least = s.finished / s.cpu_s, PREEMPTIVE if preemptive else PLAIN
        slow += speed < least
        table.add_row(
            profile,
            settings["place"] + (", loans" if lent else ""),
            "yes" if preemptive else "no",
            f"{s.rounds:,}",
            f"{s.cpu_s:.2f}",
            f"{speed:,.0f}",
            f"{least:,}",
        )
    Console(width=110).print(table)
    return 1 if arguments.check and slow else 0


if __name__ == "__main__":
    sys.exit(main())
