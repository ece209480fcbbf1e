"""What came of runs: JSON that parts of a benchmark add to, means, losers by name, a table and a plot."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from result_table import result_table

__all__ = [
    "Goals",
    "Job",
    "Key",
    "Run",
    "Runs",
    "change_by_job",
    "changes",
    "compared",
    "deadlines_met",
    "judged",
    "losers",
    "makespan_change",
    "median_run",
    "none_slower",
    "plot",
    "read",
    "table",
    "write",
]

TOLERANCE: Final = 0.03
"""A scenario or job is a loser if it is slower than under the operator it is compared with by more than this."""

Key = tuple[str, str, int]
"""Scenario, operator, number of the run."""
Goals = Sequence[tuple[str, str, bool]]
"""What is asked for, what was measured, and whether that is enough."""


@dataclass(slots=True)
class Job:
    """Seconds from its creation. `jct_s` of one that did not finish is how long it was waited for: a lower bound.
    `pods_seen`: most pods that ran at once. `failed`: why, if it did."""

    jct_s: float
    finished: bool
    pods_seen: int = 0
    rescales: int = 0
    deadline_s: float | None = None
    failed: str = ""

    @property
    def met(self) -> bool | None:
        """Whether it was done by its deadline; None: it had none."""
        return None if self.deadline_s is None else self.finished and self.jct_s <= self.deadline_s


@dataclass(slots=True)
class Run:
    """One scenario under one operator; seconds. `utilisation`: CPU used over what the workers offer;
    `allocated_cpu_used`: over what the jobs' running pods requested. None: not measured."""

    scenario: str
    operator: str
    run: int
    jobs: dict[str, Job]
    makespan_s: float
    utilisation: float
    allocated_cpu_used: float | None = None

    @property
    def jct_mean_s(self) -> float:
        return statistics.mean(job.jct_s for job in self.jobs.values())

    @property
    def jct_max_s(self) -> float:
        return max(job.jct_s for job in self.jobs.values())

    @property
    def unfinished(self) -> list[str]:
        return [name for name, job in self.jobs.items() if not job.finished]

    @property
    def met(self) -> tuple[int, int] | None:
        """Deadlines that were met, and all; None: no job had one."""
        timed = [job.met for job in self.jobs.values() if job.met is not None]
        return (sum(timed), len(timed)) if timed else None

    def as_dict(self) -> dict[str, Any]:
        """As it stands in the JSON."""
        jobs = [
            {"name": name, **asdict(job), "finished_s": job.jct_s if job.finished else None, "met": job.met}
            for name, job in self.jobs.items()
        ]
        met = self.met
        return {
            "scenario": self.scenario,
            "operator": self.operator,
            "run": self.run,
            "jobs": jobs,
            "met": met[0] if met is not None else None,
            "jct_mean_s": round(self.jct_mean_s, 1),
            "makespan_s": self.makespan_s,
            "utilisation": self.utilisation,
            "allocated_cpu_used": self.allocated_cpu_used,
        }

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Run:
        """The inverse."""
        names = ("jct_s", "finished", "pods_seen", "rescales", "deadline_s", "failed")
        jobs = {job["name"]: Job(**{key: job[key] for key in names if key in job}) for job in raw["jobs"]}
        numbers = raw["makespan_s"], raw["utilisation"], raw.get("allocated_cpu_used")
        return cls(raw["scenario"], raw["operator"], raw.get("run", 1), jobs, *numbers)


@dataclass(slots=True)
class Runs:
    """All runs, and how long jobs take alone, by their shape."""

    runs: dict[Key, Run] = field(default_factory=dict)
    alone: dict[str, float] = field(default_factory=dict)

    def add(self, run: Run) -> None:
        self.runs[run.scenario, run.operator, run.run] = run

    def of(self, scenario: str, operator: str) -> list[Run]:
        """In the order of their numbers."""
        return [self.runs[key] for key in sorted(self.runs) if key[:2] == (scenario, operator)]


def read(path: Path) -> Runs:
    """Runs of earlier calls, so that parts can be measured one by one; none where there is no file."""
    if not path.exists():
        return Runs()
    raw = json.loads(path.read_text())
    found = Runs(alone=dict(raw.get("alone", {})))
    for each in raw["runs"]:
        found.add(Run.parse(each))
    return found


def write(path: Path, runs: Runs) -> None:
    """All runs; what was there before stays where nothing new was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"runs": [runs.runs[key].as_dict() for key in sorted(runs.runs)], "alone": runs.alone}
    path.write_text(json.dumps(content, indent=1) + "\n")


def median_run(runs: Sequence[Run]) -> Run:
    """The run whose mean JCT is in the middle; of two in the middle the slower one."""
    return sorted(runs, key=lambda run: run.jct_mean_s)[len(runs) // 2]


def losers(runs: Sequence[Run], beside: Sequence[Run]) -> dict[str, float]:
    """Jobs that take longer, in the mean of the runs, than under the operator beside by more than TOLERANCE, and by
    how much."""
    return {name: change for name, change in change_by_job(runs, beside).items() if change > TOLERANCE}


def change_by_job(runs: Sequence[Run], beside: Sequence[Run]) -> dict[str, float]:
    """Each job's completion time, in the mean of the runs, against that under the operator beside."""
    ours, theirs = _mean_jcts(runs), _mean_jcts(beside)
    return {name: ours[name] / theirs[name] - 1 for name in ours if theirs.get(name)}


def none_slower(slower: Mapping[str, float], most: float) -> tuple[str, str, bool]:
    """The goal that no job is slower than under Go by more than this part. `slower`: losers, and by how much."""
    worst = max(slower, key=lambda name: slower[name], default=None)
    return (
        f"no job slower than under go by > {most:.0%}",
        f"{worst} {slower[worst]:+.0%}" if worst else "none slower",
        max(slower.values(), default=0.0) <= most,
    )


def deadlines_met(runs: Sequence[Run]) -> tuple[int, int]:
    """Deadlines that were met in all of the runs, and all."""
    met = [run.met for run in runs if run.met is not None]
    return sum(m for m, _ in met), sum(n for _, n in met)


def makespan_change(runs: Sequence[Run], beside: Sequence[Run]) -> float:
    """Mean makespan of all runs against the other operator's."""
    return _mean(run.makespan_s for run in runs) / _mean(run.makespan_s for run in beside) - 1


def changes(runs: Sequence[Run], beside: Sequence[Run]) -> float | None:
    """Mean JCT of all runs against the other operator's: -0.4 is 40 % lower. None: one of them was not measured."""
    if not runs or not beside:
        return None
    return _mean(run.jct_mean_s for run in runs) / _mean(run.jct_mean_s for run in beside) - 1


def compared(runs: Sequence[Run], beside: Sequence[Run]) -> str:
    """In a line: the job that gains most and the one that gains least, mean JCT and makespan, all in the mean of the
    runs, against the other operator's. Raises ValueError if they have no job in common."""
    more = change_by_job(runs, beside)
    if not more:
        raise ValueError("no job was measured under both")
    best, worst = min(more, key=lambda name: more[name]), max(more, key=lambda name: more[name])
    return (
        f"best job {more[best]:+.1%} ({best}), mean {changes(runs, beside):+.1%}, "
        f"makespan {makespan_change(runs, beside):+.1%}, worst job {more[worst]:+.1%} ({worst})"
    )


def _mean_jcts(runs: Sequence[Run]) -> dict[str, float]:
    names = {name for run in runs for name in run.jobs}
    return {name: _mean(run.jobs[name].jct_s for run in runs if name in run.jobs) for name in names}


def _mean(values: Iterable[float]) -> float:
    return statistics.mean(values)


def table(title: str, runs: Runs, scenarios: Sequence[str], operators: Sequence[str]) -> Table:
    """A row for each scenario and operator, over their runs; compared with the first operator."""
    headings = (
        "scenario",
        "operator",
        "runs",
        "met",
        "JCT mean s",
        f"vs {operators[0]}",
        "JCT max s",
        "makespan s",
        "CPU used",
        "of allocated",
    )
    made = result_table(title, headings, words=2)
    made.add_column(f"not finished; slower than under {operators[0]}")
    for scenario in scenarios:
        beside = runs.of(scenario, operators[0])
        for operator in operators:
            if found := runs.of(scenario, operator):
                made.add_row(scenario, operator, *_cells(found, beside if operator != operators[0] else []))
        made.add_section()
    return made


def judged(scenario: str, goals: Goals) -> Table:
    """The goals beside what came of them."""
    made = Table("goal", "measured", "met", title=f"{scenario}: goals", title_justify="left")
    for goal, measured, met in goals:
        made.add_row(goal, measured, "yes" if met else "no")
    return made


def _cells(found: Sequence[Run], beside: Sequence[Run]) -> tuple[str, ...]:
    least = ">" if any(run.unfinished for run in found) else ""
    met, timed = deadlines_met(found)
    change = changes(found, beside)
    used = [run.allocated_cpu_used for run in found if run.allocated_cpu_used is not None]
    ended = sorted({name for run in found for name in run.unfinished})
    failed = {name: job.failed for run in found for name, job in run.jobs.items() if job.failed}
    slower = sorted(losers(found, beside).items(), key=lambda item: -item[1])
    remarks = [", ".join(f"{name} (failed)" if name in failed else name for name in ended)] if ended else []
    remarks += ["slower: " + ", ".join(f"{name} {more:+.0%}" for name, more in slower)] if slower else []
    return (
        str(len(found)),
        f"{met}/{timed}" if timed else "",
        f"{least}{_mean(run.jct_mean_s for run in found):.0f}",
        "" if change is None else f"{change:+.0%}",
        f"{least}{max(run.jct_max_s for run in found):.0f}",
        f"{least}{_mean(run.makespan_s for run in found):.0f}",
        f"{_mean(run.utilisation for run in found):.0%}",
        f"{_mean(used):.0%}" if used else "",
        "; ".join(remarks),
    )


def plot(runs: Runs, scenarios: Sequence[str], operators: Sequence[str]) -> str:
    """An SVG: for each scenario and operator the run in the middle, with a bar for each job, from its creation to its
    end; its deadline is a line. Dark: in time, or without a deadline; light: late; dashed edge: not finished."""
    rows: list[tuple[str, str, Job]] = []
    for scenario in scenarios:
        for operator in operators:
            if found := runs.of(scenario, operator):
                run = median_run(found)
                rows += [
                    (f"{scenario} · {operator} (run {run.run} of {len(found)})", name, job)
                    for name, job in run.jobs.items()
                ]
    longest = max((max(job.jct_s, job.deadline_s or 0.0) for _, _, job in rows), default=1.0) or 1.0
    left, width, height, y = 190, 560, 16, 24
    lines: list[str] = []
    heading = ""
    for title, name, job in rows:
        if title != heading:
            heading, y = title, y + 14
            lines.append(f'<text x="4" y="{y}" font-weight="bold">{escape(title)}</text>')
            y += 6
        bar = width * job.jct_s / longest
        colour = "#c0c0c0" if job.met is False else "#3b6ea5"
        edge = "" if job.finished else ' stroke="#b03030" stroke-dasharray="3"'
        lines.append(f'<text x="{left - 6}" y="{y + 11}" text-anchor="end">{escape(name)}</text>')
        lines.append(f'<rect x="{left}" y="{y}" width="{bar:.1f}" height="{height - 4}" fill="{colour}"{edge}/>')
        if job.deadline_s is not None:
            x = left + width * job.deadline_s / longest
            lines.append(f'<path d="M{x:.1f} {y - 2}v{height}" stroke="#b03030" stroke-width="2"/>')
        y += height
    lines.append(f'<text x="{left}" y="{y + 16}">0</text>')
    lines.append(f'<text x="{left + width}" y="{y + 16}" text-anchor="end">{longest:.0f} s</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {y + 26}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        + "".join(lines)
        + "</svg>\n"
    )
