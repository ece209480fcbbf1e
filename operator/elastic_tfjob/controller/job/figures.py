"""The figures of a job's training in its state: step, speed by size, and when it is expected to end. Pure."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Final

from elastic_tfjob.controller.job.eta import NOT_KNOWN, Ends, ends
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.state import State
from elastic_tfjob.controller.objects.status import format_time, moment_of
from elastic_tfjob.scheduling.forecasts import Forecast

# How often the figures in a job's state are refreshed.
NUMBERS_S: Final = 60.0


def with_numbers(
    before: State,
    state: State,
    report: Report | None,
    total_steps: int | None,
    now: datetime,
    *,
    planned: Callable[[], Forecast | None],
) -> State:
    """The state with the chief's newest figures, if it is time for them or it has another phase than `before`.

    `total_steps`: what the user said; else what the program reports. `planned`: what the last plan expects of the job.
    A size's speed is that of a Stable job: beside the programs of a coming size, which take CPU to start, the running
    one is slower.
    """
    if state.phase == "Waiting" != before.phase:
        return with_end(state, NOT_KNOWN)  # when it goes on is not known
    if report is None or report.step is None:
        if state.phase == before.phase:
            return state
        end = ends(state, report, total_steps, now, planned())
        return with_end(state, end) if end.eta is not None else state
    refreshed = moment_of(state.numbers_at)
    due = refreshed is None or (now - refreshed).total_seconds() >= NUMBERS_S
    if tells_numbers(state, report) or not (due or before.phase != state.phase):
        return state
    total = total_steps or report.total_steps
    state = with_speed(before, state, report)
    state = with_end(state, ends(state, report, total, now, planned()))
    return replace(
        state,
        step=report.step,
        total_steps=total,
        steps_per_s=report.steps_per_s,
        starts=report.starts,
        numbers_at=format_time(now),
    )


def with_speed(before: State, state: State, report: Report) -> State:
    """The state with the speed of its size, where the report tells one."""
    of_size = report.speed_of(state.generation) if before.phase == "Stable" else None
    if not of_size:
        return state
    speeds, speed_cpu = dict(state.speeds), dict(state.speed_cpu)
    size = f"{state.replicas.get('PS', 0)}/{state.replicas.get('Worker', 0)}"
    speeds[size] = round(of_size, 3)
    speed_cpu.pop(size, None)
    if lent := before.cpu.get("Worker"):
        speed_cpu[size] = sum(lent) // len(lent)
    return replace(state, speeds=speeds, speed_cpu=speed_cpu)


def with_end(state: State, end: Ends) -> State:
    """The state with this expected end."""
    return replace(state, eta=end.eta, eta_earliest=end.earliest, eta_latest=end.latest, eta_source=end.source)


def tells_numbers(state: State, report: Report | None) -> bool:
    """Whether the state has the chief's newest figures."""
    if report is None or report.step is None:
        return True
    return (state.step, state.steps_per_s) == (report.step, report.steps_per_s)
