"""How long one round of the decision core takes, from 100 to 10,000 jobs with a tenth as many nodes.

    python benchmarks/bench_scheduling.py [--sizes 100,1000,10000] [--profile NAME ...] [--changes 3] [--apart 1]
        [--crowded] [--plot FILE] [--check]

`full`: a Snapshot never seen before, nothing running. `one`: the plan is carried out, then one job ends and another
comes, `--changes` times, `--apart` seconds from one to the next; the time is for `evolve` and the round, of the last
three. With `--changes 6 --apart 40` jobs have settled: few start, and their speeds are believed. With `--crowded` every
job is one worker that would use more than it requests, ten on each node, which use all of its CPU. CPU time of this
process, the best of the repetitions (others share the machine). `--check` exits 1 where 10,000 jobs take longer than
1 s in full or 50 ms for one change, or where time grows faster than jobs to the power 1.3.
"""

import argparse
import gc
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Assignment, Plan
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.profiles import PROFILES, build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, JobSpec, Node, ReplicaGroup, Snapshot
from elastic_tfjob.simulation.speed_models.ps import MODELS, PsTrueSpeed

GIB = 1024**3
FULL_S, ONE_S, GROWTH = 1.0, 0.05, 1.3
NODE = Resources(64_000, 512 * GIB, 8)
MakeJob = Callable[[int, random.Random], Job]


def job(k: int, rng: random.Random) -> Job:
    """Half worker-only GPU jobs, half PS jobs on CPUs; elastic, with a deadline and a known speed."""
    steps = rng.lognormvariate(10, 1)
    if k % 2:
        n = rng.choice((1, 1, 1, 2, 4, 8))
        gpus = (ReplicaGroup(WORKER, Resources(4000, 16 * GIB, 1), n, 1, 2 * n),)
        return Job(JobSpec(f"gpu-{k}", float(k), gpus, k, 0, k + rng.uniform(1e3, 1e5), steps, steps))
    model = rng.choice(list(MODELS.values()))
    groups = (
        ReplicaGroup(PS, Resources(2000, 4 * GIB), 1, 1, 4),
        ReplicaGroup(WORKER, Resources(4000, 8 * GIB), 2, 1, 8),
    )
    spec = JobSpec(f"ps-{k}", float(k), groups, k, 0, k + rng.uniform(1e3, 1e5), steps, steps)
    return Job(spec, speed=PsTrueSpeed(steps, model))


def greedy_job(k: int, rng: random.Random) -> Job:
    """One worker that requests 2 CPUs of the 64 that ten such jobs have on a node."""
    steps = rng.lognormvariate(10, 1)
    return Job(
        JobSpec(f"greedy-{k}", float(k), (ReplicaGroup(WORKER, Resources(2000, 8 * GIB), 1, 1, 1),), k, 0, None, steps)
    )


def snapshot(jobs: int, seed: int = 0, make: MakeJob = job) -> Snapshot:
    rng = random.Random(seed)
    nodes = {f"node-{i:04}": Node(f"node-{i:04}", NODE, NODE) for i in range(max(1, jobs // 10))}
    made = [make(k, rng) for k in range(jobs)]
    return Snapshot(float(jobs), nodes, {j.key: j for j in made}, seed)


def speed(running: Job, counts: Counts) -> float:
    return (running.speed.steps_per_s(counts) or 0.0) if running.speed else 1.0


def use(old: Job, target: Assignment) -> dict[str, float]:
    """A greedy job uses all that it is lent, else a tenth of its node."""
    if not old.key.startswith("greedy") or not target.nodes:
        return {}
    return {WORKER: 1.0 if target.cpu else NODE.cpu_millicores / 10 / old.spec.requested_cpu(WORKER)}


def pace(old: Job, target: Assignment, used: dict[str, float]) -> float:
    """Steps per second once the target is there: a step of a greedy job takes a second of a CPU, whatever it is lent,
    so that what it still needs does not depend on that."""
    if not target.nodes:
        return 0.0
    if not used:
        return speed(old, target.replicas)
    held = sum(target.cpu.get(WORKER, (old.spec.requested_cpu(WORKER),)))
    return used[WORKER] * held / 1000


def carried_out(before: Snapshot, plan: Plan) -> Snapshot:
    """The Snapshot once all of the plan's changes are there."""
    now = before.now
    changed = [
        Job(
            old.spec,
            target.nodes,
            "running" if target.nodes else "waiting",
            old.steps_at(now),
            steps_per_s=pace(old, target, used),
            observed_s=now,
            since_s=now,
            speed=old.speed,
            cpu=target.cpu,
            cpu_use=used,
        )
        for key, target in plan.changes.items()
        for old in (before.jobs[key],)
        for used in (use(old, target),)
    ]
    return before.evolve(now, changed=changed)


def measure(
    profile: Profile, jobs: int, repeat: int, changes: int, apart_s: float, *, make: MakeJob = job
) -> tuple[float, float]:
    """Seconds for a full round and for one where a job ended and another came: the least of the last three such
    changes."""
    full, one = math.inf, math.inf
    gc.disable()  # as timeit does: a collection now and then would be counted against whoever it hits
    for attempt in range(repeat):
        cold = snapshot(jobs, attempt, make)
        begin = time.process_time()
        plan = schedule(cold, profile)
        full = min(full, time.process_time() - begin)
        warm = carried_out(cold, plan)
        for step in range(changes):
            warm = carried_out(warm, schedule(warm, profile))
            ended = next(key for key, j in warm.jobs.items() if j.placement)
            new = make(jobs + step, random.Random(step))
            begin = time.process_time()
            warm = warm.evolve(warm.now + apart_s, changed=[new], removed=[ended])
            plan = schedule(warm, profile)
            if step >= changes - 3:
                one = min(one, time.process_time() - begin)
            warm = carried_out(warm, plan)
        gc.collect()
    gc.enable()
    return full, one


def growth(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The exponent k of time ~ jobs^k between the first and the last size; below 5 ms only noise would be measured.
    0 for a single size."""
    if len(sizes) < 2:
        return 0.0
    first = max(seconds[0], 0.005 * sizes[0] / sizes[-1])
    return math.log(seconds[-1] / first) / math.log(sizes[-1] / sizes[0])


def plot(path: Path, sizes: Sequence[int], results: dict[str, list[tuple[float, float]]]) -> None:
    """An SVG of both times over jobs, on logarithmic axes."""
    width, height, left, bottom, panel = 900, 380, 60, 46, 330
    low, high = 1e-5, 10.0
    colours = (
        "#2f6fde",
        "#e0652f",
        "#1f9d6b",
        "#a04bd0",
        "#c79a00",
        "#d63d6b",
        "#2aa5b8",
        "#7a7f87",
        "#8c564b",
        "#17becf",
        "#222",
        "#9c6",
        "#b5651d",
        "#4b6",
        "#84a",
        "#e377c2",
        "#05a",
        "#bb6",
    )

    def x(jobs: float, k: int) -> float:
        share = math.log(jobs / sizes[0]) / math.log(sizes[-1] / sizes[0]) if len(sizes) > 1 else 0.5
        return left + k * (panel + 50) + share * panel

    def y(seconds: float) -> float:
        return 30 + (height - bottom - 30) * math.log(high / max(seconds, low)) / math.log(high / low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for k, (title, limit) in enumerate((("full round", FULL_S), ("one job ended, another came", ONE_S))):
        parts.append(
            f'<text x="{x(sizes[0], k) + panel / 2}" y="18" text-anchor="middle" font-size="13">{title}</text>'
        )
        for exponent in range(-5, 2):
            at = y(10.0**exponent)
            parts.append(f'<line x1="{x(sizes[0], k)}" x2="{x(sizes[-1], k)}" y1="{at}" y2="{at}" stroke="#ddd"/>')
            parts.append(f'<text x="{x(sizes[0], k) - 5}" y="{at + 4}" text-anchor="end">{10.0**exponent:g} s</text>')
        for jobs in sizes:
            parts.append(f'<text x="{x(jobs, k)}" y="{height - bottom + 16}" text-anchor="middle">{jobs:,}</text>')
        at = y(limit)
        parts.append(
            f'<line x1="{x(sizes[0], k)}" x2="{x(sizes[-1], k)}" y1="{at}" y2="{at}" '
            'stroke="#c00" stroke-dasharray="5 4"/>'
        )
        for times, colour in zip(results.values(), colours, strict=False):
            points = " ".join(f"{x(jobs, k):.1f},{y(t[k]):.1f}" for jobs, t in zip(sizes, times, strict=True))
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    for n, (name, colour) in enumerate(zip(results, colours, strict=False)):
        at = 40 + n * 18
        parts.append(f'<line x1="800" x2="818" y1="{at}" y2="{at}" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="823" y="{at + 4}">{name}</text>')
    parts.append(
        f'<text x="{left + panel + 25}" y="{height - 8}" text-anchor="middle">jobs (nodes: a tenth)</text></svg>'
    )
    path.write_text("\n".join(parts) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="100,1000,10000")
    parser.add_argument("--profile", action="append", choices=list(PROFILES))
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--changes", type=int, default=3)
    parser.add_argument("--apart", type=float, default=1.0)
    parser.add_argument("--crowded", action="store_true")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    table = Table("profile", *(f"{kind} {n:,}" for kind in ("full", "one") for n in sizes), "growth full", "growth one")
    results: dict[str, list[tuple[float, float]]] = {}
    slow = []
    for name in arguments.profile or PROFILES:
        profile = build(name, parse_profile(name, {}))
        times = results[name] = []
        for n in sizes:
            print(f"{name}: {n:,} jobs ...", file=sys.stderr)
            make = greedy_job if arguments.crowded else job
            times.append(measure(profile, n, arguments.repeat, arguments.changes, arguments.apart, make=make))
        exponents = [growth(sizes, [t[k] for t in times]) for k in (0, 1)]
        table.add_row(
            name,
            *(f"{1000 * t[k]:,.1f} ms" for k in (0, 1) for t in times),
            *(f"{exponent:.2f}" for exponent in exponents),
        )
        if times[-1][0] > FULL_S or times[-1][1] > ONE_S or max(exponents) > GROWTH:
            slow.append(name)
    Console(width=150).print(table)
    if arguments.plot:
        plot(arguments.plot, sizes, results)
    if slow:
        print(f"Slower than {FULL_S:g} s in full, {ONE_S:g} s for one change, or growth {GROWTH}: {', '.join(slow)}")
    return 1 if slow and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
