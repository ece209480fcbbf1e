"""Deadlines met by `deadline`, beside `edf` and `fixed`, on public traces. A loser is slower than under `fixed`.

    python benchmarks/bench_deadline_simulation.py [--traces DIR] [--only WORD] [--json FILE]

Reads the traces from --traces, or $ELASTIC_TFJOB_TRACES, or ../shared/traces beside the checkout. An input that is
missing is left out. With all inputs it takes some minutes of one core.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from anchors import traces_dir
from bounds import OUTPUT as BOUNDS
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.formats import made_elastic, read_csv
from elastic_tfjob.simulation.live_job import Costs, Noise
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.elasticflow import ElasticFlowSpeedModel
from elastic_tfjob.simulation.summary import Summary, summarise, with_losers
from elastic_tfjob.simulation.workload import WorkloadJob

REPOSITORY = Path(__file__).resolve().parents[1]
FIG8A = "anchors/elasticflow_fig8a_195jobs.csv"
TESTBED = "itp/itp_testbed_195job.csv"
PHILLY = "anchors/elasticflow_philly_103959_876jobs.csv"
ITP01 = "itp/itp_cluster01.csv.gz"
TOLD = {"oracle": True}
UNKNOWN = {"oracle": False, "sizes": "doublings", "pause_s": 1.0}


def pauses(seconds: float) -> Costs:
    return Costs(start_s=seconds, restart_s=((inf, seconds),), rescale_s=seconds)


@dataclass(frozen=True)
class Case:
    """One input, and the floor for `deadline` in % of deadlines met."""

    name: str
    file: str
    nodes: int
    gpus: int
    accelerator: Literal["T4", "A100"]
    floor: float
    settings: dict[str, Any] = field(default_factory=lambda: TOLD)
    costs: Costs = field(default_factory=Costs)
    noise: Noise = field(default_factory=Noise)
    others: tuple[str, ...] = ("edf", "fixed")

    @property
    def pause_s(self) -> float:
        """For how long at least a job stands still before its first step, however often it is changed before that."""
        return min(self.costs.start_s, self.costs.rescale_s, *(seconds for _, seconds in self.costs.restart_s))

    @property
    def key(self) -> str:
        """Of its bound: what is known does not change that."""
        pause = f", pause {self.pause_s:g} s" if self.pause_s else ""
        return f"{self.file} {self.nodes}x{self.gpus} {self.accelerator}{pause}"


CASES = (
    Case("fig8a", FIG8A, 16, 4, "T4", 90),
    Case("195job", TESTBED, 16, 8, "A100", 90),
    Case("philly", PHILLY, 32, 8, "A100", 92.5),
    Case("c01", ITP01, 64, 8, "A100", 98),
    Case("c01, keep 0.5", ITP01, 64, 8, "A100", 98, {**TOLD, "keep": 0.5}, others=()),
    Case("fig8a scarce (tuned on)", FIG8A, 8, 4, "T4", 0.88 * 88.0),
    Case("195job scarce (tuned on)", TESTBED, 4, 8, "A100", 0.88 * 83.1),
    Case("195job scarcer", TESTBED, 2, 8, "A100", 0.88 * 72.3),
    Case("philly scarce", PHILLY, 4, 8, "A100", 0, others=("edf",)),
    Case("fig8a, speeds off by 20 %", FIG8A, 16, 4, "T4", 89.3, noise=Noise(speed=0.2), others=()),
    Case("195job, speeds off by 20 %", TESTBED, 16, 8, "A100", 89.3, noise=Noise(speed=0.2), others=()),
    Case("fig8a, nothing known, 1 s", FIG8A, 16, 4, "T4", 88, UNKNOWN, pauses(1), others=()),
    Case("195job, nothing known, 1 s", TESTBED, 16, 8, "A100", 88, UNKNOWN, pauses(1), others=()),
    Case("fig8a, pauses of 1 s", FIG8A, 16, 4, "T4", 0, TOLD, pauses(1), others=()),
    Case("195job, pauses of 1 s", TESTBED, 16, 8, "A100", 0, TOLD, pauses(1), others=()),
    Case("fig8a, pauses of 30 s", FIG8A, 16, 4, "T4", 0, {**TOLD, "pause_s": 30.0}, pauses(30), others=("edf",)),
    Case("195job, pauses of 30 s", TESTBED, 16, 8, "A100", 0, {**TOLD, "pause_s": 30.0}, pauses(30), others=("edf",)),
)
"""Floors of scarce inputs: 88 % of the bound by a linear program (88.0, 83.1 and 72.3 % of deadlines)."""


def read_jobs(path: Path) -> list[WorkloadJob]:
    """The jobs of a trace, elastic."""
    return [made_elastic(job) for job in read_csv(path)[0].jobs]


def bounds() -> dict[str, float]:
    """% of deadlines that anybody could meet, by `Case.key`, as far as `make bounds` has found them."""
    known = json.loads(BOUNDS.read_text()) if BOUNDS.exists() else {}
    return {key: each["bound"] for key, each in known.items()}


def run(case: Case, jobs: Sequence[WorkloadJob], profile: str) -> RunResult:
    settings = {"place": "count", **(case.settings if profile == "deadline" else {})}
    return Simulation(
        SimulationInput(
            jobs,
            uniform_cluster(case.nodes, case.gpus, 0, 0),
            ElasticFlowSpeedModel(case.accelerator),
            costs=case.costs,
            noise=case.noise,
        ),
        build(profile, parse_profile(profile, settings)),
    ).run()


def compared(case: Case, jobs: Sequence[WorkloadJob]) -> dict[str, Summary]:
    """What each profile of the case comes to, with the jobs that are slower than under `fixed`."""
    outcomes = {}
    for profile in ("fixed", "deadline", *(each for each in case.others if each != "fixed")):
        print(f"{case.name}: {profile} ...", file=sys.stderr)
        outcomes[profile] = run(case, jobs, profile)
    return {
        profile: with_losers(summarise(outcomes[profile], len(jobs)), outcomes[profile], outcomes["fixed"])
        for profile in ("deadline", *case.others)
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--only", help="cases whose name has this in it")
    parser.add_argument("--json", type=Path, default=REPOSITORY / "build/bench/deadline-simulation.json")
    arguments = parser.parse_args()
    traces = traces_dir(arguments.traces)
    at_most = bounds()
    if not at_most:
        print("no bounds are known: make bounds", file=sys.stderr)
    table = Table(
        "input",
        "cluster",
        "profile",
        "met %",
        "bound %",
        "of it",
        "floor",
        "mean JCT s",
        "p95 s",
        "losers",
        "worst",
        "late s",
        "rescales/job",
        "finished",
    )
    found: list[dict[str, object]] = []
    for case in CASES:
        if arguments.only and arguments.only not in case.name:
            continue
        if not (traces / case.file).exists():
            print(f"{traces / case.file} is missing: {case.name} is left out")
            continue
        jobs = read_jobs(traces / case.file)
        # With other speeds than those that were measured, nothing is known of what could be met.
        bound = None if case.noise.speed else at_most.get(case.key)
        for profile, s in compared(case, jobs).items():
            ours, met = profile == "deadline", 100 * (s.deadline_met or 0)
            floor = case.floor if ours else None
            found.append({"input": case.name, "floor": floor, "bound": bound, **s.as_dict()})
            table.add_row(
                *(case.name, f"{case.nodes}x{case.gpus} {case.accelerator}", profile, f"{met:.1f}"),
                *(("", "") if not bound else (f"{bound:.1f}", f"{met / bound:.1%}")),
                f"{case.floor:.1f} {'ok' if met >= case.floor else 'MISSED'}" if ours else "",
                *(f"{s.avg_jct_s or 0:,.0f}", f"{s.p95_jct_s or 0:,.0f}"),
                *(("", "") if profile == "fixed" else (str(s.losers), f"{s.worst_loser or 0:+,.0%}")),
                *(f"{s.tardiness_s or 0:,.0f}", f"{s.rescales / s.jobs:.1f}"),
                f"{s.finished}/{s.jobs}",
            )
    Console(width=170).print(table)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"runs": found}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
