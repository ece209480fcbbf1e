"""Benchmark: how soon a parameter server whose memory grows has more (make bench-memory-live).

Real kind cluster, real TensorFlow. Jobs with `max-memory`, one after another, whose parameter server has a limit of
384 MiB and grows at a given rate. *In force* is from the moment when the pod's exporter serves a figure that calls for
more memory (the operator reads it later), until the kubelet reports the new limit of the container. *Kills* and *lost*
(steps that were trained twice) are of the whole job.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from kubernetes.utils.quantity import parse_quantity
from rich.console import Console

from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.scheduling.memory_limit import MemoryRule, fits
from harness import deploy
from harness.cluster import Cluster
from harness.growing import PROGRAM, growing
from harness.jobs import Jobs
from harness.progress import CommandFailed
from harness.rescale_cost import percentile
from harness.training import Lines, said, wait_for_step
from result_table import result_table
from trainee import NAME, place

MIB = 1 << 20
RULE = MemoryRule()
PACES = {4: "100 8 2", 10: "90 10 1", 20: "45 20 1", 40: "22 40 1"}
"""MiB per second, and what the program does for it."""
UNTIL = 900 * MIB
LIMIT_S = 900.0


@dataclass
class Growth:
    """One job. `in_force_s`: of each raise."""

    mib_per_s: int
    in_force_s: list[float] = field(default_factory=list)
    kills: int = 0
    restarts: int = 0
    steps_lost: int = 0
    limit_mib: int = 0


def container(jobs: Jobs, name: str) -> dict[str, Any]:
    statuses = jobs.pods(name)[f"{name}-ps-0"]["status"].get("containerStatuses") or ()
    found: dict[str, Any] = next((each for each in statuses if each["name"] == "tensorflow"), {})
    return found


def report(jobs: Jobs, pod: str) -> Report | None:
    try:
        path = f"/api/v1/namespaces/{jobs.namespace}/pods/{pod}:9465/proxy/status"
        return Report.parse(jobs.cluster.kubectl("get", "--raw", path), time.time())
    except (CommandFailed, ValueError):
        return None


def follow(jobs: Jobs, name: str, found: Growth) -> None:
    """Until the server uses UNTIL."""
    began, called_at, limit = time.monotonic(), 0.0, 0
    while time.monotonic() - began < LIMIT_S:
        seen = report(jobs, f"{name}-ps-0")
        status = container(jobs, name)
        text = ((status.get("resources") or {}).get("limits") or {}).get("memory", "0")
        now_s, has = time.monotonic(), int(parse_quantity(text))
        if has > limit > 0 and called_at:
            found.in_force_s.append(now_s - called_at)
            called_at = 0.0
        limit = has
        if seen is None or seen.memory.highest_bytes is None:
            continue
        if not called_at and limit and not fits(RULE, limit, seen.memory):
            called_at = time.monotonic()
        if seen.memory.highest_bytes > UNTIL:
            break
    memory = said(jobs, name, "state").get("memory", {}).get("PS", {})
    found.kills, found.limit_mib = memory.get("kills", 0), limit // MIB
    found.restarts = container(jobs, name).get("restartCount", 0)


def measure(cluster: Cluster, mib_per_s: int) -> Growth:
    found, name = Growth(mib_per_s), NAME
    with place(cluster, "memory") as (jobs, _):
        jobs.apply(PROGRAM)
        jobs.apply(growing(name, jobs.namespace, PACES[mib_per_s], **{"max-memory": "ps=4Gi"}))
        with Lines(cluster, jobs.namespace, f"{name}-chief-0") as lines:
            wait_for_step(lines, 10, 400)
            follow(jobs, name, found)
            pairs = zip(lines.seen, lines.seen[1:], strict=False)
            found.steps_lost = sum(max(0, a.step - b.step) for a, b in pairs)
    return found


@click.command()
@click.option("--count", type=click.IntRange(min=1), default=2, show_default=True, help="Jobs of each pace.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/memory-live.json"))
def main(*, count: int, output: Path) -> None:
    cluster, grown = deploy.deploy(), []
    for mib_per_s in PACES:
        for _ in range(count):
            grown.append(found := measure(cluster, mib_per_s))
            times = ", ".join(f"{each:.1f}" for each in found.in_force_s)
            print(f"{mib_per_s} MiB/s: in force after {times} s; {found.kills} kills", file=sys.stderr, flush=True)
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps([asdict(each) for each in grown], indent=1) + "\n")
    columns = ("MiB/s", "raises", "in force p50 s", "p95 s", "kills", "restarts", "steps lost")
    shown = result_table("A parameter server that grows from about 200 to 900 MiB, with a limit of 384 MiB", columns)
    for pace in (*PACES, None):
        own = [each for each in grown if pace in (None, each.mib_per_s)]
        times_s = [one for each in own for one in each.in_force_s]
        shown.add_row(
            "all" if pace is None else str(pace),
            str(len(times_s)),
            *(f"{percentile(times_s, share):.1f}" if times_s else "–" for share in (50, 95)),
            *(str(sum(getattr(each, name) for each in own)) for name in ("kills", "restarts", "steps_lost")),
        )
    Console(width=150).print(shown)
    print(f"written: {output}", file=sys.stderr)


if __name__ == "__main__":
    main()
