"""What a pod uses and does, from one answer of its exporter to the next: means of cores and steps per second."""

import math
from dataclasses import replace
from typing import Final

from elastic_tfjob.controller.objects.reports import WINDOW_S, Report

__all__ = ["Means"]

# A mean over less than this says nothing: of what is used now, and of what a step costs.
_LEAST_WINDOW_S: Final = 4.0
_LEAST_LATELY_S: Final = 10.0
# Between two readings that are kept: what a pod says of its clock, it may say many times a second.
_APART_S: Final = WINDOW_S / 64
# What a step costs is nearly the same all the time, while what is measured of it in half a minute is not.
_LATELY_S: Final = 120.0


class Means:
    """Of one pod. `use_cores` is over a window that begins anew where the pod may use more or less; `mean_cores` and
    `mean_steps_per_s` are over the last minutes, in which they go together, what is long ago counting ever less."""

    __slots__ = ("_cpu_s", "_last", "_runs", "_seconds", "_steps", "_used")

    def __init__(self) -> None:
        self._runs: tuple[object, ...] | None = None
        self.clear()

    def clear(self) -> None:
        """Begin anew: what was measured so far is of something else, as of a start."""
        self._used: list[tuple[float, float]] = []
        self._last: tuple[float, float, int] | None = None
        self._seconds = self._cpu_s = self._steps = 0.0

    def take(self, report: Report) -> Report:
        """The report with its means, None where too little is known."""
        runs = report.generation, report.first_step_at, report.steady, report.cpu.limit_cores
        if self._runs != runs:
            self._runs = runs
            self.clear()
        usage_s, at = report.cpu.usage_s, report.cpu.at or report.at
        if usage_s is None:
            return report
        last = self._last
        if last is not None and (at < last[0] or usage_s < last[1]):  # another clock, or another process
            self.clear()
            last = None
        used = self._used
        if last is None or at > last[0]:
            if not used or at >= used[-1][0] + _APART_S:
                used.append((at, usage_s))
            self._count(at, usage_s, report.step or 0)
        old = 0
        while len(used) > old + 2 and used[old + 1][0] <= at - WINDOW_S:
            old += 1
        del used[:old]
        span_s = at - used[0][0]
        cores = (usage_s - used[0][1]) / span_s if span_s >= _LEAST_WINDOW_S else None
        lately = self._seconds >= _LEAST_LATELY_S
        return replace(
            report,
            cpu=replace(report.cpu, use_cores=cores),
            mean_cores=self._cpu_s / self._seconds if lately else None,
            mean_steps_per_s=self._steps / self._seconds if lately else None,
        )

    def _count(self, at: float, usage_s: float, step: int) -> None:
        if self._last is not None:
            seconds = at - self._last[0]
            kept = math.exp(-seconds / _LATELY_S)
            self._seconds = kept * self._seconds + seconds
            self._cpu_s = kept * self._cpu_s + usage_s - self._last[1]
            self._steps = kept * self._steps + max(0, step - self._last[2])
        self._last = at, usage_s, step
