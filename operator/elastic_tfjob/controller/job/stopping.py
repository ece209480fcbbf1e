"""Stopping a running job without losing a step, and what is said when it goes on. Pure.

    asked ──the program has saved, and stands still──▶ pods end ──all are gone──▶ Waiting ──target──▶ Stable ──▶ resumed
      └──── nobody to ask, or the limit is over ───────▲

The phase in the state is `Recreating` from `asked` until all pods are gone, as it was before checkpoints were asked
for: an older operator that takes over ends the pods at once, and the program saves when it is terminated.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from elastic_tfjob.controller.job.decision import Count, Event
from elastic_tfjob.controller.objects.pod import Pod
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.status import format_time, moment_of
from elastic_tfjob.controller.objects.stop import Stop
from elastic_tfjob.scheduling.plan import Cause

__all__ = ["Saving", "asked", "judge", "resumed", "stopped"]

# So long a pod takes to be gone that is ended with the usual grace period, on a node that answers.
_ENDS_S: Final = 45.0
# A chief that is to save is asked all the time: one that says nothing for so long is silent.
_SILENT_S: Final = 15.0
# A new operator has asked each pod once after so long: only then the limit counts.
_LISTENED_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Saving:
    """What there is to know while a checkpoint is waited for. `able`: the pods have launchers; `generation`: the one
    that runs; `limit_s`: how long a checkpoint may take; `listened_s`: for how long pods have been asked for reports;
    `lost`: the chief is on a node that does not answer."""

    chief: Pod | None
    report: Report | None
    able: bool
    generation: int
    limit_s: float
    listened_s: float
    now: datetime
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the stop stands. Nothing has changed where `stop` is the one that was judged."""

    stop: Stop
    events: tuple[Event, ...] = ()
    tallies: tuple[Count, ...] = ()


def asked(saving: Saving, request: int, size: str, cause: Cause, reason: str) -> Verdict:
    """The stop of a job that shall hold nothing any more, when it begins."""
    report = saving.report
    step = report.step if report is not None else None
    stop = Stop(request, format_time(saving.now), reached=step, cause=cause, reason=reason)
    if why := _nobody_to_ask(saving):
        message = f"Stops from {size}: {reason}. No checkpoint is asked for: {why}"
        return _end(saving, stop, lost=None if _newest(report) is None else _behind(report), event=message)
    message = f"Stops from {size}: {reason}. The chief is asked for a checkpoint, for {saving.limit_s:.0f} s at most"
    return Verdict(stop, (Event("Normal", "Stopping", message),))


def judge(saving: Saving, stop: Stop) -> Verdict:
    """Whether the pods may end: a checkpoint of all that was trained is there, nobody can make one any more, or it has
    taken too long."""
    report = saving.report
    if report is not None and report.step is not None:
        stop = replace(stop, reached=max(stop.reached or 0, report.step))
    said = report.saved if report is not None else None
    said = said if said is not None and said.request == stop.request else None
    if said is not None and said.state == "saved":
        step = stop.reached if said.step is None else said.step
        reached = step if stop.reached is None or step is None else max(step, stop.reached)
        behind = None if reached is None or step is None else reached - step
        if not behind:  # a checkpoint below the last reported step does not hold all
            return _end(saving, replace(stop, saved=step, reached=reached), lost=0)
    if saving.chief is None or saving.chief.terminating or saving.chief.phase != "Running":
        return _missed(saving, stop, "the chief's pod is gone")
    if saving.lost:
        return _missed(saving, stop, "the chief's node does not answer")
    began = moment_of(stop.asked)
    if report is not None and began is not None and _idle(report, saving.generation, began):
        lost = None if _newest(report) is None else _behind(report)
        return _end(saving, stop, lost=lost, event="Ends without a new checkpoint: it has made no step since it began")
    waited_s = (saving.now - began).total_seconds() if began is not None else saving.limit_s
    # The other pods wait for the chief's end, too: of one that says nothing that is within the same limit.
    silent_s = min(waited_s, saving.listened_s, _unheard_s(saving))
    if silent_s >= _SILENT_S and waited_s >= saving.limit_s - _ENDS_S:
        return _missed(saving, stop, f"the chief has said nothing for {_unheard_s(saving):.0f} s")
    if waited_s >= saving.limit_s and saving.listened_s >= min(_LISTENED_S, saving.limit_s):
        why = f": {said.why}" if said is not None and said.why else ""
        return _missed(saving, stop, f"no checkpoint within {saving.limit_s:.0f} s{why}")
    return Verdict(stop)


def stopped(stop: Stop, now: datetime) -> Verdict:
    """All pods are gone: the job waits from now on."""
    where = f" at step {stop.saved}" if stop.saved is not None else ""
    if stop.lost is None:
        what = "it will go on from its newest checkpoint"
    else:
        what = f"at most {_steps(stop.lost)} lost" if stop.lost else "no step is lost"
    event = Event("Normal", "Stopped", f"Stopped{where}, {what}: {stop.reason}")
    return Verdict(stop, (event,), (Count("stops", label=stop.cause),))


def resumed(stop: Stop, report: Report | None, generation: int, size: str, *, late: bool) -> Verdict | None:
    """The job makes steps again; None while that is not known. `late`: its program had time enough to say so."""
    heard = report is not None and report.generation == generation and report.first_step_at is not None
    if not (heard or late):
        return None
    if not heard or report is None or report.resumed_step is None:
        told = f"Goes on with {size}; its program does not say at which step"
    else:
        lost = None if stop.reached is None else max(0, stop.reached - report.resumed_step)
        steps = "" if lost is None else f", {_steps(lost)} lost" if lost else ", no step lost"
        told = f"Goes on at step {report.resumed_step} with {size}{steps}"
    return Verdict(stop, (Event("Normal", "Resumed", told),), (Count("resumes"),))


def _nobody_to_ask(saving: Saving) -> str:
    """Why the pods may end at once; empty where the chief's launcher is to be asked first."""
    chief, report = saving.chief, saving.report
    if not saving.able:
        return "its pods have no launcher"
    if chief is None or chief.terminating or chief.phase != "Running":
        return "its chief does not run"
    if report is None:
        return ""
    if not report.saves:
        return "its launcher is of an older version; the program saves when it is terminated"
    if report.hook is False:
        return "its program does not use ElasticCheckpoint"
    return ""


def _unheard_s(saving: Saving) -> float:
    """Since when the chief has said nothing, in seconds; since it was asked, where it never has."""
    if saving.report is None:
        return saving.listened_s
    return saving.now.timestamp() - saving.report.received_at


def _idle(report: Report, generation: int, asked: datetime) -> bool:
    """Whether a program has made no step, as it said after it was asked for a checkpoint: reports come every few
    seconds, in which one that has just begun makes hundreds of steps. The time of asking is in whole seconds."""
    begun = report.generation != generation or report.first_step_at is not None
    return not begun and report.received_at >= asked.timestamp() + 1


def _missed(saving: Saving, stop: Stop, why: str) -> Verdict:
    """The pods end although nobody has confirmed a checkpoint."""
    report = saving.report
    lost = _behind(report) if report is not None and _newest(report) is not None else None
    newest = "its newest checkpoint" if lost is None or report is None else f"its checkpoint of step {_newest(report)}"
    steps = "how many steps are lost is not known" if lost is None else f"at most {_steps(lost)} lost"
    message = f"Ends without a new checkpoint ({why}) and will go on from {newest}: {steps}"
    return _end(saving, stop, lost=lost, event=message, warning=True)


def _end(saving: Saving, stop: Stop, *, lost: int | None, event: str = "", warning: bool = False) -> Verdict:
    began = moment_of(stop.asked)
    waited_s = max(0.0, (saving.now - began).total_seconds()) if began is not None else 0.0
    tallies = [Count("stop_wait_seconds", waited_s)] if waited_s else []
    if warning and lost:
        tallies.append(Count("stop_lost_steps", float(lost)))
    said = Event("Warning", "CheckpointMissed", event) if warning else Event("Normal", "Stopping", event)
    ended = replace(stop, ended=format_time(saving.now), lost=lost)
    return Verdict(ended, (said,) if event else (), tuple(tallies))


def _newest(report: Report | None) -> int | None:
    """The step of the newest checkpoint that the program has told of."""
    return report.checkpoint.step if report is not None and report.checkpoint is not None else None


def _behind(report: Report | None) -> int | None:
    """How many reported steps are in no checkpoint."""
    newest = _newest(report)
    if report is None or newest is None or report.step is None:
        return None
    return max(0, report.step - newest)


def _steps(count: int) -> str:
    return "1 step is" if count == 1 else f"{count} steps are"
