"""What one change of a job's size costs, from the lines that its training program prints."""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.training import Line

__all__ = ["Rescale", "cost_of", "longest_gap", "parts_of", "pause", "percentile", "rate", "step_at", "summary"]


@dataclass(frozen=True, slots=True)
class Rescale:
    """One change of size. Seconds; `rate` in steps per second before, and while the new size was prepared.

    worst_gap_s: the longest time between two lines while training went on. training_lost_s: how long undisturbed
    training takes for the steps that are missing when the change is done: the steps of the time from the request until
    the job is stable, less those that were made. prepare_cpu_s: of the program of each replica that was kept, or added,
    until it waited. Empty where nothing is prepared.
    """

    change: str
    grows: bool
    downtime_s: float
    lost_steps: int
    prepare_s: float
    rate_before: float
    rate_while: float
    worst_gap_s: float
    training_lost_s: float
    prepare_cpu_s: Mapping[str, Sequence[float]] = field(default_factory=dict)
    parts_s: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        lost = f"{self.lost_steps} steps lost, {self.training_lost_s:.1f} s of training lost"
        return f"{self.change}: {self.downtime_s:.2f} s, {lost}"


def pause(lines: Sequence[Line], asked: float) -> tuple[Line, Line] | None:
    """The last line of the program that ran when the change was asked for, and the first of the one that follows it.

    None while there is no such line. Every program says from which step it went on; one that could save nothing goes on
    from where the one before it did, and makes steps that have been made.
    """
    pairs = itertools.pairwise(lines)
    changed = (
        (last, first)
        for last, first in pairs
        if first.at > asked and (first.resumed_at != last.resumed_at or first.step <= last.step)
    )
    return next(changed, None)


def longest_gap(lines: Sequence[Line], begin: float, end: float) -> tuple[Line, Line] | None:
    """The neighbouring lines that are farthest apart between two times: the pause of a program that stays."""
    pairs = [(last, first) for last, first in itertools.pairwise(lines) if first.at >= begin and last.at <= end]
    return max(pairs, key=lambda pair: pair[1].at - pair[0].at, default=None)


def rate(lines: Sequence[Line], begin: float, end: float) -> float:
    """Steps per second between two times."""
    within = [line for line in lines if begin <= line.at <= end]
    if len(within) < 2 or within[-1].at == within[0].at:
        return 0.0
    return (within[-1].step - within[0].step) / (within[-1].at - within[0].at)


def step_at(lines: Sequence[Line], moment: float) -> float:
    """The step that was done at a time: between two lines of one program in proportion, between two programs the first
    one's last. `moment` must not be before the first line."""
    before, after = None, None
    for line in lines:
        if line.at > moment:
            after = line
            break
        before = line
    if before is None:
        raise ValueError("no line by then")
    if after is None or after.resumed_at != before.resumed_at or after.step <= before.step:
        return float(before.step)
    return before.step + (after.step - before.step) * (moment - before.at) / (after.at - before.at)


def cost_of(
    lines: Sequence[Line],
    asked: float,
    stable: float,
    *,
    before_s: float,
    change: str,
    grows: bool,
    prepare_cpu_s: Mapping[str, Sequence[float]] | None = None,
    parts_s: Mapping[str, float] | None = None,
    joined: float | None = None,
) -> Rescale:
    """`asked`: Unix time of the request; `stable`: when the change was done; `joined`: when the workers of a program
    that stays had changed. Undisturbed training is what the job did for `before_s` seconds before the request. Raises
    ValueError if no program has followed the one that ran."""
    pair = pause(lines, asked) if joined is None else longest_gap(lines, asked, stable)
    if pair is None:
        raise ValueError("there is no line of the new size yet")
    last, first = pair
    rate_before = rate(lines, asked - before_s, asked)
    ready = last.at if joined is None else joined
    while_preparing = [line.at for line in lines if asked <= line.at <= ready]
    gaps = [later - earlier for earlier, later in itertools.pairwise(while_preparing)]
    made = step_at(lines, stable) - step_at(lines, asked)
    return Rescale(
        change,
        grows,
        downtime_s=round(first.at - last.at, 3),
        lost_steps=max(0, last.step - first.resumed_at) if joined is None else max(0, last.step - first.step),
        prepare_s=round(max(0.0, ready - asked), 2),
        rate_before=round(rate_before, 1),
        rate_while=round(rate(lines, asked, ready), 1),
        worst_gap_s=round(max(gaps, default=0.0), 3),
        training_lost_s=round(stable - asked - made / rate_before, 2) if rate_before else 0.0,
        prepare_cpu_s=prepare_cpu_s or {},
        parts_s=parts_s or {},
    )


def parts_of(report: Mapping[str, Any], asked: float, last: Line, first: Line) -> dict[str, float]:
    """Where the time of an overlapped change goes, from the clocks in the chief's pod, which `report` has; seconds.

    prepare: asked -> last step; notice: last step -> save begins; save; commit: saved -> the new program may go on;
    resume: -> its first step (restore, and what was not traced before). program: the pause as both programs know it,
    whether they print the steps next to it or not. Where values went through memory: give, from the last step to the
    commit, and take, from there to the first step.
    """
    checkpoint, switch = report.get("checkpoint") or {}, report.get("switch") or {}
    if not checkpoint or not switch:
        return {}
    first_at = report.get("first_step_at") or first.at
    pause_s = report.get("downtime_s") or first.at - last.at
    if switch.get("in_memory"):
        committed = switch["at"]
        times = {"prepare": last.at - asked, "give": committed - first_at + pause_s, "take": first_at - committed}
        return {name: round(value, 3) for name, value in {**times, "program": pause_s}.items()}
    saved, seconds, committed = checkpoint["at"], checkpoint["seconds"], switch["at"]
    parts = {
        "prepare": last.at - asked,
        "notice": saved - seconds - last.at,
        "save": seconds,
        "commit": committed - saved,
        "resume": first_at - committed,
        "program": pause_s,
    }
    return {name: round(value, 3) for name, value in parts.items()}


def percentile(values: Sequence[float], percent: int) -> float:
    if len(values) < 2:
        return round(values[0], 3)
    return round(statistics.quantiles(values, n=100, method="inclusive")[percent - 1], 3)


def _spread(values: Iterable[float]) -> dict[str, float]:
    found = list(values)
    return {"p50": percentile(found, 50), "p90": percentile(found, 90)}


def summary(rescales: Sequence[Rescale]) -> dict[str, Any]:
    """What the JSON file has of one mode: seconds of the pause, and of the rest of the cost; `grow` and `shrink` have
    the same of the changes that add a pod, and of those that do not, `kinds` all of it of each replica type."""
    result = _each_way(rescales)
    kinds = dict.fromkeys(each.change.partition(" ")[0] for each in rescales)
    if len(kinds) > 1:
        result["kinds"] = {
            kind: _each_way([each for each in rescales if each.change.startswith(f"{kind} ")]) for kind in kinds
        }
    return result


def _each_way(rescales: Sequence[Rescale]) -> dict[str, Any]:
    result = _costs(rescales)
    for name, grows in (("grow", True), ("shrink", False)):
        if part := [each for each in rescales if each.grows is grows]:
            result[name] = _costs(part)
    return result


def _costs(rescales: Sequence[Rescale]) -> dict[str, Any]:
    downtimes = [each.downtime_s for each in rescales]
    costs: dict[str, Any] = {"p50_s": percentile(downtimes, 50), "p90_s": percentile(downtimes, 90)}
    names = dict.fromkeys(name for each in rescales for name in each.parts_s)
    if names:
        costs["parts_s"] = {
            name: _spread(each.parts_s[name] for each in rescales if name in each.parts_s) for name in names
        }
    for key in ("prepare_s", "worst_gap_s", "training_lost_s"):
        costs[key] = _spread(getattr(each, key) for each in rescales)
    for key, which in (("prepare_cpu_s", "kept"), ("prepare_cpu_added_s", "added")):
        used = [seconds for each in rescales for seconds in each.prepare_cpu_s.get(which, ())]
        if used:
            costs[key] = _spread(used)
    return {**costs, "lost_steps": sum(each.lost_steps for each in rescales), "n": len(rescales)}
