"""`make campaign`: all crash points and watch points of all scenarios, then seeds for as long as SECONDS allow.

    python -m campaign.run [--seconds 600] [--first-seed 1] [--json build/bench/campaign.json]
    python -m campaign.run --only grow/kill-after/17      one schedule again, with the operator's log
    CAMPAIGN_MUTANT=two-leaders python -m campaign.run --until-first    is this seeded defect caught?

Ends with 1 when an oracle was violated or a point was left out.
"""

import contextlib
import gc
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from campaign.mutants import MUTANTS
from campaign.scenarios import SCENARIOS
from campaign.schedules import crash_points, of_seed, play, undisturbed, watch_points
from campaign.world import campaign

__all__ = ["main"]

_CHUNK: Final = 8
_SHOWN: Final = 20
_life: Final = contextlib.ExitStack()
"""What a worker's process keeps open till it ends."""


def _prepare() -> None:
    """A worker's process: virtual clocks for its whole life; what is loaded by now is no garbage."""
    _life.enter_context(campaign())
    gc.collect()
    gc.freeze()


def _play(schedule: str) -> tuple[str, list[str], float]:
    begin = time.process_time()
    try:
        violations = play(schedule).violations
    except Exception as error:
        violations = [f"the campaign itself failed: {error!r}"]
    return schedule, violations, time.process_time() - begin


def _points(scenario: str) -> tuple[list[str], list[str]]:
    return list(crash_points(scenario)), list(watch_points(scenario))


def _show(schedule: str) -> int:
    with campaign(level=20):
        outcome = play(schedule)
    print("\n".join(outcome.log))
    print("\n".join(outcome.violations) or "no violation")
    return 1 if outcome.violations else 0


def _hunt(seconds: float, first: Sequence[str]) -> int:
    """All kinds of schedules in a random order, in this process, until the first violation, which is told as JSON: 1 if
    there is one. The scenarios `first` come before the others."""
    begin = time.monotonic()
    number = 0
    random = Random(0)

    def tried(schedule: str, violations: Sequence[str]) -> bool:
        nonlocal number
        number += 1
        if violations:
            print(json.dumps({"schedule": schedule, "number": number, "violation": violations[0]}))
        return bool(violations)

    with campaign():
        for scenarios in (list(first), [each for each in SCENARIOS if each not in first]):
            for scenario in scenarios:
                if tried(f"{scenario}, undisturbed", undisturbed(scenario).violations):
                    return 1
            points = [point for scenario in scenarios for find in (crash_points, watch_points) for point in find(scenario)]
            seeds = [f"{scenario}/seed/{seed}" for scenario in scenarios for seed in range(len(points) // len(scenarios))]
            schedules = [*points, *seeds]
            random.shuffle(schedules)
            for schedule in schedules:
                if tried(schedule, play(schedule).violations):
                    return 1
                if time.monotonic() - begin > seconds:
                    break
    print(json.dumps({"schedule": "", "number": number, "violation": ""}))
    return 0


@click.command(help="Try the operator against everything that can go wrong at any of its steps.")
@click.option("--seconds", default=600.0, help="how long; the crash and watch points are done first, all of them")
@click.option("--first-seed", default=1, help="seeds are counted from here")
@click.option("--workers", default=2, help="processes")
@click.option("--json", "output", type=Path, default=Path("build/bench/campaign.json"), help="where the figures go")
@click.option("--until-first", is_flag=True, help="one process, in a random order, until the first violation")
@click.option("--only", default="", help="play one schedule and show the operator's log")
def main(*, seconds: float, first_seed: int, workers: int, output: Path, only: str, until_first: bool) -> None:
    """The command."""
    if only:
        sys.exit(_show(only))
    if until_first:
        mutant = MUTANTS.get(os.environ.get("CAMPAIGN_MUTANT", ""))
        sys.exit(_hunt(seconds, mutant.first if mutant is not None else ()))
    console = Console(stderr=True)
    begin = time.monotonic()
    found: list[dict[str, Any]] = []
    oracles: Counter[str] = Counter()
    cost: dict[str, list[float]] = {}
    done = 0
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"), TimeElapsedColumn())

    with (
        multiprocessing.get_context("spawn").Pool(workers, _prepare) as pool,
        Progress(*columns, console=console) as progress,
    ):

        def follow(title: str, schedules: Sequence[str]) -> list[str]:
            """Play schedules; those that were played."""
            nonlocal done
            task = progress.add_task(title, total=len(schedules), told="")
            played = []
            for schedule, violations, taken in pool.imap_unordered(_play, schedules, _CHUNK):
                played.append(schedule)
                done += 1
                cost.setdefault(schedule.split("/")[0], []).append(taken)
                if violations:
                    found.append({"schedule": schedule, "violations": violations})
                    oracles.update({each.split(": ")[0].split(" s ")[-1] for each in violations})
                    if len(found) <= _SHOWN:
                        progress.console.print(f"[red]✗[/] {schedule}: {violations[0][:300]}")
                rate = done / (time.monotonic() - begin)
                progress.update(task, advance=1, told=f"{len(played)}, {len(found)} violations, {rate:.1f}/s")
            return played

        kinds = dict(zip(SCENARIOS, pool.map(_points, SCENARIOS), strict=True))
        crashes = [point for points, _ in kinds.values() for point in points]
        watches = [point for _, points in kinds.values() for point in points]
        crashed = follow("crash points", crashes)
        watched = follow("watch points", watches)
        seeds: list[str] = []
        rounds = itertools.count()
        while time.monotonic() - begin < seconds:
            number = next(rounds)
            batch = [of_seed(first_seed + number * 100 + each) for each in range(100)]
            seeds += follow(f"seeds from {first_seed + number * 100}", batch)

    wall_s = time.monotonic() - begin
    figures = {
        "inputs": 0,
        "schedules": done,
        "crash_points": {"covered": len(set(crashed)), "total": len(crashes)},
        "watch_points": {"covered": len(set(watched)), "total": len(watches)},
        "mutants": {"caught": 0, "total": 0},
        "violations": len(found),
        "seeds": {"first": first_seed, "count": len(seeds)},
        "seconds": round(wall_s, 1),
        "schedules_per_s": round(done / wall_s, 2),
        "cpu_s_per_schedule": {name: round(sum(each) / len(each), 4) for name, each in cost.items()},
        "by_oracle": dict(oracles),
        "found": found[:200],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(figures, indent=1) + "\n")
    console.print(
        f"{done} schedules in {wall_s:.0f} s, {done / wall_s:.1f}/s: {len(found)} with violations; "
        f"crash points {len(set(crashed))}/{len(crashes)}, watch points {len(set(watched))}/{len(watches)}, "
        f"{len(seeds)} seeds; {output}"
    )
    complete = set(crashed) == set(crashes) and set(watched) == set(watches)
    sys.exit(0 if complete and not found else 1)


if __name__ == "__main__":
    main()
