"""Stops a running job without losing a step, and reports when it resumes. Pure.

    begin ──the program has saved, and has paused────▶ pods end ──all are gone──▶ Waiting ──target──▶ Stable ──▶ resumed
      └──── no launcher to ask, or time limit over ────▲

The phase in the state is `Recreating` from `begin` until all pods are gone.
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

from elastic_tfjob.controller.job.context import ReconcileContext
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.model.stop import Stop
from elastic_tfjob.controller.model.target import words
from elastic_tfjob.scheduling.plan import Cause
from elastic_tfjob.scheduling.reasons import Why

__all__ = ["begin", "judge", "resumed", "stopped"]

# Seconds until a pod that is deleted with the usual grace period is gone, on a node that answers.
_ENDS_S: Final = 45.0
# A chief that has to save is asked all the time; one that has not answered for this time is silent.
_SILENT_S: Final = 15.0
# A new operator has asked each pod once after this time; only then does the limit count.
_LISTENED_S: Final = 5.0


def begin(ctx: ReconcileContext, request: int, cause: Cause, reason: Why) -> Stop:
    """Begins the stop of a job that must release all its capacity."""
    report, limit_s = ctx.chief_report, ctx.timeouts.stop_s
    reached = report.step if report is not None else None
    stop = Stop(request, ctx.now_text, reached=reached, cause=cause, reason=reason)
    stops = f"Stopping the job ({words(ctx.current.replicas)}): {reason}"
    if why := _no_chief_to_ask(ctx):
        ctx.event("Normal", "Stopping", f"{stops}. No checkpoint is requested: {why}")
        return _end(ctx, stop, lost=_behind(report))
    ctx.event("Normal", "Stopping", f"{stops}. The chief has at most {limit_s:.0f} s to save a checkpoint")
    return stop


def judge(ctx: ReconcileContext, stop: Stop) -> Stop:
    """Returns the stop, marked as ended if the pods may end: a checkpoint contains all steps, none can be made any
    more, or it has taken too long."""
    report, chief, limit_s = ctx.chief_report, ctx.chief_pod, ctx.timeouts.stop_s
    if report is not None and report.step is not None:
        stop = replace(stop, reached=max(stop.reached or 0, report.step))
    answer = report.saved if report is not None else None
    answer = answer if answer is not None and answer.request == stop.request else None
    if answer is not None and answer.state == "saved":
        step = stop.reached if answer.step is None else answer.step
        reached = step if stop.reached is None or step is None else max(step, stop.reached)
        behind = None if reached is None or step is None else reached - step
        if not behind:  # a checkpoint below the last reported step does not contain all steps
            return _end(ctx, replace(stop, saved=step, reached=reached), lost=0)
    if chief is None or chief.terminating or chief.phase != "Running":
        return _missed(ctx, stop, "the chief's pod is gone")
    if ctx.lost(ctx.chief):
        return _missed(ctx, stop, "the chief's node does not answer")
    began = moment_of(stop.asked)
    if report is not None and began is not None and _idle(report, ctx.current.generation, began):
        ctx.event(
            "Normal", "Stopping", "Stopping without a new checkpoint: the program has made no step since it started"
        )
        return _end(ctx, stop, lost=_behind(report))
    waited_s = (ctx.now - began).total_seconds() if began is not None else limit_s
    # The other pods wait for the chief's end too, so a silent chief must end within the same limit.
    unheard_s = ctx.listened_s if report is None else ctx.now.timestamp() - report.received_at
    if min(waited_s, ctx.listened_s, unheard_s) >= _SILENT_S and waited_s >= limit_s - _ENDS_S:
        return _missed(ctx, stop, f"the chief has not answered for {unheard_s:.0f} s")
    if waited_s >= limit_s and ctx.listened_s >= min(_LISTENED_S, limit_s):
        why = f": {answer.why}" if answer is not None and answer.why else ""
        return _missed(ctx, stop, f"no checkpoint within {limit_s:.0f} s{why}")
    return stop


def stopped(ctx: ReconcileContext, stop: Stop) -> None:
    """Reports that all pods are gone, and the job waits from now on."""
    where = f" at step {stop.saved}" if stop.saved is not None else ""
    if stop.lost is None:
        what = "it will resume from its newest checkpoint"
    else:
        what = f"at most {_steps(stop.lost)} lost" if stop.lost else "no step is lost"
    ctx.event("Normal", "Stopped", f"Stopped{where}, {what}: {stop.reason}")
    ctx.count("stops", label=stop.cause)


def resumed(ctx: ReconcileContext, stop: Stop, *, late: bool) -> bool:
    """Whether the job makes steps again, which an event reports. If it is `late`, it counts as resumed: its program had
    enough time to report a step."""
    report, size = ctx.chief_report, words(ctx.current.replicas)
    heard = report is not None and report.generation == ctx.current.generation and report.first_step_at is not None
    if not (heard or late):
        return False
    if not heard or report is None or report.resumed_step is None:
        message = f"Resumed with {size}; the program does not report at which step"
    else:
        lost = None if stop.reached is None else max(0, stop.reached - report.resumed_step)
        steps = "" if lost is None else f", {_steps(lost)} lost" if lost else ", no step lost"
        message = f"Resumed at step {report.resumed_step} with {size}{steps}"
    ctx.event("Normal", "Resumed", message)
    ctx.count("resumes")
    return True


def _no_chief_to_ask(ctx: ReconcileContext) -> str:
    """Returns why the pods may end at once; empty if the chief's launcher has to be asked first."""
    chief, report = ctx.chief_pod, ctx.chief_report
    if not ctx.launcher:
        return "its pods have no launcher"
    if chief is None or chief.terminating or chief.phase != "Running":
        return "its chief is not running"
    if report is None:
        return ""
    if not report.saves:
        return "its launcher has an older version; the program saves when it is terminated"
    if report.hook is False:
        return "its program does not use ElasticCheckpoint"
    return ""


def _idle(report: Report, generation: int, asked: datetime) -> bool:
    """Whether a program has made no step, by a report received after it was asked for a checkpoint: reports come every
    few seconds, in which a program that has just begun makes hundreds of steps. The time of asking is in whole
    seconds."""
    begun = report.generation != generation or report.first_step_at is not None
    return not begun and report.received_at >= asked.timestamp() + 1


def _missed(ctx: ReconcileContext, stop: Stop, why: str) -> Stop:
    """Ends the stop without a confirmed checkpoint."""
    report = ctx.chief_report
    lost = _behind(report)
    newest = "its newest checkpoint" if lost is None else f"its checkpoint of step {_newest(report)}"
    steps = "the number of lost steps is unknown" if lost is None else f"at most {_steps(lost)} lost"
    message = f"Stopping without a new checkpoint ({why}). It will resume from {newest}: {steps}"
    ctx.event("Warning", "CheckpointMissed", message)
    ended = _end(ctx, stop, lost=lost)
    if lost:
        ctx.count("stop_lost_steps", float(lost))
    return ended


def _end(ctx: ReconcileContext, stop: Stop, *, lost: int | None) -> Stop:
    began = moment_of(stop.asked)
    waited_s = max(0.0, (ctx.now - began).total_seconds()) if began is not None else 0.0
    if waited_s:
        ctx.count("stop_wait_seconds", waited_s)
    return replace(stop, ended=ctx.now_text, lost=lost)


def _newest(report: Report | None) -> int | None:
    """Returns the step of the newest checkpoint that the program has reported."""
    return report.checkpoint.step if report is not None and report.checkpoint is not None else None


def _behind(report: Report | None) -> int | None:
    """Returns how many reported steps are in no checkpoint; None if unknown."""
    newest = _newest(report)
    if report is None or newest is None or report.step is None:
        return None
    return max(0, report.step - newest)


def _steps(count: int) -> str:
    return "1 step is" if count == 1 else f"{count} steps are"
