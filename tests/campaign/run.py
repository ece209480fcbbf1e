"""`make campaign`: crash points, watch points, seeded defects, hostile tenants, random user actions, and seeds, for
SECONDS.

    python -m campaign.run [--seconds 600] [--first-seed 1] [--json build/bench/campaign.json] [--without hostile]
    python -m campaign.run --only grow/kill-after/17      one schedule again, with the operator's log
    CAMPAIGN_MUTANT=two-leaders python -m campaign.run --until-first    is this seeded defect caught?
    python -m campaign.run --resume                        go on where a campaign of the same source was stopped

Each part has a share of the time, in this order, and what it leaves over the next ones have. Points and defects are
tried in the order that the first seed draws, until their share is over; the figures say how many there are, and what
was left out. Ends with 1 when an oracle was violated or a defect was tried and not caught, with 2 when nothing was, and
a point or a defect was left out for want of time.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from campaign.hostile import PROFILES
from campaign.mutants import MUTANTS, Mutant
from campaign.record import Record, source_digest
from campaign.scenarios import SCENARIOS
from campaign.schedules import (
    chief_points,
    crash_points,
    of_seed,
    play,
    undisturbed,
    user_actions_of_seed,
    watch_points,
)
from campaign.user_actions import USER_ACTIONS
from campaign.world import campaign

__all__ = ["caught_in_simulation", "main"]

_CHUNK: Final = 8
_SHOWN: Final = 20
_SHARES: Final = {"points": 0.4, "mutants": 0.25, "hostile": 0.15, "user-actions": 0.12, "seeds": 0.08}
"""Of the seconds, by part. Where one is left out, the others have its share in proportion."""
_LEAST_HOSTILE_S: Final = 60.0
"""Hostile tenants get at least so long under each profile: their control plane has to start."""
_AT_ONCE: Final = 128
"""Schedules after which it is seen whether the time is over."""
_ACTED: Final = 150
"""Seeds of user actions under each profile that a seeded defect names."""
_MUTANT_S: Final = 120.0
"""Seconds of CPU time; one that is not caught in them is not caught."""
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


def _points(scenario: str) -> tuple[list[str], list[str], list[str]]:
    return list(crash_points(scenario)), list(watch_points(scenario)), list(chief_points(scenario))


def _show(schedule: str) -> int:
    with campaign(level=20):
        outcome = play(schedule)
    print("\n".join(outcome.log))
    print("\n".join(outcome.violations) or "no violation")
    return 1 if outcome.violations else 0


def _hunt(seconds: float, first: Sequence[str]) -> int:
    """All kinds of schedules in a random order, in this process, for so many seconds of CPU time or until the first
    violation, which is told as JSON: 1 if there is one. The scenarios `first` come before the others."""
    begin = time.process_time()  # a busy machine must not hide a defect
    number = 0
    random = Random(0)

    def tried(schedule: str, violations: Sequence[str]) -> bool:
        nonlocal number
        number += 1
        if violations:
            print(json.dumps({"schedule": schedule, "number": number, "violation": violations[0]}))
        return bool(violations)

    with campaign():
        acted = [each.partition("/")[0] for each in first if each.endswith(f"/{USER_ACTIONS}")]
        for seed in range(_ACTED) if acted else ():
            for profile in acted:
                schedule = f"{profile}/{USER_ACTIONS}/{seed}"
                if tried(schedule, play(schedule).violations):
                    return 1
                if time.process_time() - begin > seconds:
                    break
        first = [each for each in first if each in SCENARIOS]
        for scenarios in (list(first), [each for each in SCENARIOS if each not in first]):
            for scenario in scenarios:
                if tried(f"{scenario}, undisturbed", undisturbed(scenario).violations):
                    return 1
            points = [
                point for scenario in scenarios for find in (crash_points, watch_points) for point in find(scenario)
            ]
            seeds = [
                f"{scenario}/seed/{seed}" for scenario in scenarios for seed in range(len(points) // len(scenarios))
            ]
            schedules = [*points, *seeds]
            random.shuffle(schedules)
            for schedule in schedules:
                if tried(schedule, play(schedule).violations):
                    return 1
                if time.process_time() - begin > seconds:
                    break
    print(json.dumps({"schedule": "", "number": number, "violation": ""}))
    return 0


@dataclass
class _Campaign:
    """What was done and found so far, of a campaign that `begun` (on the monotonic clock) and takes `seconds`. Of the
    `schedules`, which took `played_s`, those `resumed` were played by a run before this one."""

    progress: Progress
    workers: int
    seconds: float
    record: Record
    begun: float = field(default_factory=time.monotonic)
    schedules: int = 0
    resumed: int = 0
    played_s: float = 0.0
    found: list[dict[str, Any]] = field(default_factory=list)
    oracles: Counter[str] = field(default_factory=Counter)
    cost: dict[str, list[float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def left_s(self, share: float = 1.0) -> float:
        """Seconds that are left until such a share of the time is over."""
        return self.begun + share * self.seconds - time.monotonic()

    @cached_property
    def _pool(self) -> Any:
        return multiprocessing.get_context("spawn").Pool(self.workers, _prepare)

    def close(self) -> None:
        """End the processes."""
        if "_pool" in self.__dict__:
            self._pool.terminate()

    def points(self) -> tuple[list[str], list[str], list[str]]:
        """All crash points, all watch points, and all points at which the chief's node is lost."""
        kinds = list(self._pool.imap(_points, SCENARIOS))
        crashes, watches, chiefs = ([point for found in kinds for point in found[kind]] for kind in range(3))
        return crashes, watches, chiefs

    def play(self, title: str, schedules: Sequence[str], share: float) -> set[str]:
        """Play schedules until such a share of the time is over; those that were played."""
        task, played = self.progress.add_task(title, total=len(schedules), told=""), set[str]()
        for first in range(0, len(schedules), _AT_ONCE):
            if self.left_s(share) <= 0:
                break
            played |= self._follow(task, schedules[first : first + _AT_ONCE])
        return played

    def play_seeds(self, title: str, schedule_of: Callable[[int], str], first: int, share: float = 1.0) -> int:
        """Play the schedules of seeds from `first` on until such a share of the time is over; how many there were."""
        count, task = 0, self.progress.add_task(f"{title} from {first}", total=None, told="")
        while self.left_s(share) > 0:
            count += len(self._follow(task, [schedule_of(first + count + each) for each in range(100)]))
        return count

    def _follow(self, task: TaskID, schedules: Sequence[str]) -> set[str]:
        played: set[str] = set()

        def take(schedule: str, violations: list[str], taken: float) -> None:
            played.add(schedule)
            self.schedules += 1
            self.cost.setdefault(schedule.partition("/")[0], []).append(taken)
            if violations:
                self.violated(schedule, violations)
            rate = (self.schedules - self.resumed) / max(self.played_s + time.monotonic() - begun, 0.001)
            self.progress.update(task, advance=1, told=f"{len(self.found)} violations, {rate:.1f}/s")

        begun = time.monotonic()

        for schedule in schedules:
            if (known := self.record.get("schedule", schedule)) is not None:
                self.resumed += 1
                take(schedule, *known)
        missing = [schedule for schedule in schedules if schedule not in played]
        for schedule, violations, taken in self._pool.imap_unordered(_play, missing, _CHUNK):
            self.record.add("schedule", schedule, [violations, round(taken, 4)])
            take(schedule, violations, taken)
        self.played_s += time.monotonic() - begun
        return played

    def violated(self, what: str, violations: Sequence[str]) -> None:
        """Note violations of a schedule or an input."""
        self.found.append({"schedule": what, "violations": list(violations)})
        self.oracles.update({each.split(": ")[0].split(" s ")[-1] for each in violations})
        if len(self.found) <= _SHOWN:
            self.progress.console.print(f"[red]✗[/] {what}: {violations[0][:300]}", markup=True)

    def mutants(self, limit_s: float, order: Random, share: float) -> tuple[dict[str, str], list[str]]:
        """Which oracle catches each of the seeded defects that can be tried until such a share of the time is over, and
        those that none does; each has processes of its own."""
        task = self.progress.add_task("seeded defects", total=len(MUTANTS), told="")
        caught: dict[str, str] = {}
        missed: list[str] = []

        def take(name: str, violation: str) -> None:
            if violation:
                caught[name] = violation[:200]
            else:
                missed.append(name)
                self.progress.console.print(f"[red]✗[/] {name} was not caught: {MUTANTS[name].what}")
            self.progress.update(task, advance=1, told=f"{len(caught)} caught")

        for name in MUTANTS:
            if known := self.record.get("mutant", name):
                take(name, known)
        missing = [each for each in MUTANTS.values() if each.name not in caught]
        order.shuffle(missing)
        for name, violation in self._tried(missing, limit_s, share):
            self.record.add("mutant", name, violation)
            take(name, violation)
        return caught, missed

    def _tried(self, mutants: Sequence[Mutant], limit_s: float, share: float) -> Iterator[tuple[str, str]]:
        """The name of each that there is time for, and the violation that catches it; empty for none. Those that
        tenants are to catch have a third of the time, as they are a third of all."""

        def simulated(name: str) -> tuple[str, str] | None:
            return caught_in_simulation(name, limit_s) if self.left_s(share) > third_s else None

        hostile = [each.name for each in mutants if each.part == "hostile"]
        third_s = self.left_s(share) / 3 if hostile else 0.0
        with ThreadPoolExecutor(self.workers) as threads:
            waiting = [threads.submit(simulated, each.name) for each in mutants if each.part == "simulation"]
            yield from filter(None, (done.result() for done in as_completed(waiting)))
        if hostile and self.left_s(share) > 0:
            yield from _caught_by_tenants(hostile, limit_s, self.left_s(share))

    def hostile(self, seconds: float, seed: int, profile: str) -> dict[str, Any]:
        """Hostile tenants on a control plane, in a process of their own; their figures."""
        name = f"{seed} {profile} {seconds:.0f} s"
        task = self.progress.add_task(f"hostile tenants, {profile}", total=None, told=f"{seconds:.0f} s")
        if (known := self.record.get("hostile", name)) is not None:
            return dict(known)
        command = [sys.executable, "-m", "campaign.hostile", f"--seconds={seconds}", f"--seed={seed}"]
        command.append(f"--profile={profile}")
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            figures: dict[str, Any] = json.loads(ended.stdout)
        except ValueError:
            figures = {
                "inputs": 0,
                "violations": [{"what": "the campaign itself failed", "detail": ended.stderr[-500:]}],
            }
        if not figures["violations"]:
            self.record.add("hostile", name, figures)
        for each in figures["violations"]:
            self.violated(
                f"hostile/{profile}/{seed}", [f"{each['what']}: {each['detail']} <- {each.get('family', '')}"]
            )
        self.progress.update(task, total=1, completed=1, told=f"{figures['inputs']} inputs")
        return figures


def caught_in_simulation(name: str, limit_s: float) -> tuple[str, str]:
    """The name, and the violation that catches a mutant; empty for none."""
    command = [sys.executable, "-m", "campaign.run", "--until-first", f"--seconds={limit_s}"]
    environment = {**os.environ, "CAMPAIGN_MUTANT": name}
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return name, _violation(ended.stdout.decode())


def _caught_by_tenants(names: Sequence[str], limit_s: float, seconds: float) -> Iterator[tuple[str, str]]:
    """As caught_in_simulation, of many mutants one after the other on one control plane, of which none begins after so
    many seconds."""
    command = [sys.executable, "-m", "campaign.hostile", f"--seconds={seconds}", f"--limit={limit_s}"]
    command += [f"--mutant={name}" for name in names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        missing = list(names)
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            missing.remove(told["mutant"])
            if told["tried"]:
                yield told["mutant"], told["violation"] or ""
    yield from ((name, "") for name in missing)


def _violation(told: str) -> str:
    """What the last line of a hunt's output says; empty where there is none, as of a process that could not start."""
    try:
        return str(json.loads(told.strip().rpartition("\n")[2])["violation"] or "")
    except (ValueError, KeyError):
        return ""


@click.command(help="Try the operator against everything that can go wrong at any of its steps.")
@click.option("--seconds", default=600.0, help="how long; each part has a share")
@click.option("--first-seed", default=1, help="seeds are counted from here; it draws the order of points and defects")
@click.option("--workers", default=2, help="processes")
@click.option("--json", "output", type=Path, default=Path("build/bench/campaign.json"), help="where the figures go")
@click.option("--without", multiple=True, type=click.Choice(list(_SHARES)), help="leave a part out; may be repeated")
@click.option("--resume", is_flag=True, help="go on where a campaign of the same source was stopped")
@click.option("--until-first", is_flag=True, help="one process, in a random order, until the first violation")
@click.option("--only", default="", help="play one schedule and show the operator's log")
def main(
    *,
    seconds: float,
    first_seed: int,
    workers: int,
    output: Path,
    without: tuple[str, ...],
    only: str,
    resume: bool,
    until_first: bool,
) -> None:
    """The command."""
    if only:
        sys.exit(_show(only))
    if until_first:
        mutant = MUTANTS.get(os.environ.get("CAMPAIGN_MUTANT", ""))
        sys.exit(_hunt(seconds, mutant.first if mutant is not None else ()))
    console = Console(stderr=True)
    bars = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"), TimeElapsedColumn())
    kept = Record(output.with_suffix(".state.jsonl"), resume=resume, source=source_digest())
    with kept as record, Progress(TextColumn("{task.description}"), *bars, console=console) as progress:
        run = _Campaign(progress, workers, seconds, record)
        try:
            figures = _figures(run, first_seed, without)
        finally:
            run.close()
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(figures, indent=1) + "\n")
    console.print(json.dumps({name: figures[name] for name in _SAID}))
    console.print(f"all figures: {output}")
    for part, why in run.left_out.items():
        console.print(f"[yellow]left out[/] {part}: {why}")
    if run.found or figures["mutants"]["missed"]:
        sys.exit(1)
    sys.exit(0 if all(run.left_out.get(part, _UNASKED) == _UNASKED for part in ("points", "mutants")) else 2)


_OF_SEEDS: Final = {USER_ACTIONS: user_actions_of_seed, "seeds": of_seed}
_UNASKED: Final = "not asked for"
_NO_TIME: Final = "no time was left"
_SAID: Final = (
    "inputs",
    "schedules",
    "crash_points",
    "watch_points",
    "chief_points",
    "mutants",
    "violations",
    "user_actions",
    "seeds",
    "seconds",
    "schedules_per_s",
    "left_out",
)


def _figures(run: _Campaign, first_seed: int, without: Sequence[str]) -> dict[str, Any]:
    """Do all parts for which there is time; what is written to campaign.json."""
    run.left_out |= dict.fromkeys(without, _UNASKED)
    whole = sum(share for part, share in _SHARES.items() if part not in without)
    shares = {part: share / whole for part, share in _SHARES.items() if part not in without}
    order = Random(first_seed)
    crashes: list[str] = []
    watches: list[str] = []
    chiefs: list[str] = []
    played: set[str] = set()
    if "points" not in without:
        crashes, watches, chiefs = run.points()
        points = order.sample(every := [*crashes, *watches, *chiefs], len(every))
        played = run.play("crash and watch points", points, shares["points"])
        _note(run, "points", len(points) - len(played), len(points))
    caught: dict[str, str] = {}
    missed: list[str] = []
    if "mutants" not in without:
        caught, missed = run.mutants(_MUTANT_S, order, shares.get("points", 0.0) + shares["mutants"])
        _note(run, "mutants", len(MUTANTS) - len(caught) - len(missed), len(MUTANTS))
    hostile: dict[str, dict[str, Any]] = {}
    if "hostile" not in without:
        each_s = max(shares["hostile"] * run.seconds / len(PROFILES), _LEAST_HOSTILE_S)
        hostile = {profile: run.hostile(each_s, first_seed, profile) for profile in PROFILES}
    counts = dict.fromkeys(_OF_SEEDS, 0)
    for part, schedule_of in _OF_SEEDS.items():
        if part not in without:
            done = sum(share for name, share in shares.items() if name != "seeds") if part != "seeds" else 1.0
            counts[part] = run.play_seeds(part, schedule_of, first_seed, done)
            if not counts[part]:
                run.left_out[part] = _NO_TIME
    return {
        "inputs": sum(found["inputs"] for found in hostile.values()),
        "schedules": run.schedules,
        "crash_points": {"covered": len(played.intersection(crashes)), "total": len(crashes)},
        "watch_points": {"covered": len(played.intersection(watches)), "total": len(watches)},
        "chief_points": {"covered": len(played.intersection(chiefs)), "total": len(chiefs)},
        "mutants": {"caught": len(caught), "total": len(MUTANTS), "missed": missed, "by": caught},
        "violations": len(run.found),
        "user_actions": {"first": first_seed, "count": counts["user-actions"]},
        "seeds": {"first": first_seed, "count": counts["seeds"]},
        "seconds": round(time.monotonic() - run.begun, 1),
        "resumed": run.resumed,
        "schedules_per_s": round((run.schedules - run.resumed) / max(run.played_s, 0.001), 2),
        "left_out": run.left_out,
        "cpu_s_per_schedule": {name: round(sum(each) / len(each), 4) for name, each in run.cost.items()},
        "by_oracle": dict(run.oracles),
        "found": run.found[:200],
        "hostile": hostile,
    }


def _note(run: _Campaign, part: str, left: int, total: int) -> None:
    """Say how many of a part there was no time for."""
    if left:
        run.left_out[part] = f"{left} of {total}: {_NO_TIME}"


if __name__ == "__main__":
    main()
