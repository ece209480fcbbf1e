"""Sets the conditions of a job from the counts of its pods, as upstream does. Pure."""

from typing import Final

from elastic_tfjob.api.reading import after
from elastic_tfjob.api.tfjob import REPLICA_TYPES
from elastic_tfjob.controller.job.context import ReconcileContext
from elastic_tfjob.controller.job.decision import Count
from elastic_tfjob.controller.job.replicas import leaves
from elastic_tfjob.controller.model.status import moment_of

# Phases in which training pauses; a job that prepares still runs.
_PAUSED: Final = ("Checkpointing", "Switching", "Recreating")


def update_status(ctx: ReconcileContext) -> None:
    """Sets the conditions from the counts, in upstream's order of replica types. See docs/compatibility.md for the full
    table."""
    ctx.status.start_time = ctx.status.start_time or ctx.now_text
    # Running would replace Restarting before a later type is checked, so remember it.
    restarting = ctx.status.get("Restarting")
    has_chief = any(name in ctx.spec.tf_replica_specs and _runs_with(ctx, name) for name in ("Chief", "Master"))
    for name in REPLICA_TYPES:
        replica = ctx.spec.tf_replica_specs.get(name)
        if replica is None:
            continue
        counts = ctx.status.replicas[name]
        complete = replica.count == counts.succeeded and _runs_with(ctx, name)
        if has_chief:
            if name in ("Chief", "Master"):
                if counts.active:
                    _runs_on(ctx)
                if complete:
                    _succeed(ctx)
        elif name == "Worker":
            any_worker = ctx.spec.success_policy != "AllWorkers"
            if complete or (any_worker and _worker_0_completed(ctx)):
                _succeed(ctx)
            elif counts.active:
                _runs_on(ctx)
        if counts.failed:
            if restarting is not None and not _has_rescaled(ctx, restarting.reason):
                ctx.condition("Restarting", restarting.reason, restarting.message)
            elif not (ctx.spec.enable_dynamic_worker and name == "Worker"):
                fail(
                    ctx,
                    "TFJobFailed",
                    f"TFJob {ctx.job.namespace}/{ctx.job.name} has failed because {counts.failed} {name} "
                    "replica(s) failed.",
                )
    if ctx.status.finished:
        count_active_as_succeeded(ctx)
        ctx.again_at = ctx.now  # the result is stored first; the next pass cleans up
    _count_as_declared(ctx)


def _has_rescaled(ctx: ReconcileContext, reason: str) -> bool:
    """Whether a job has the condition Restarting because of a rescale that is over; a failed pod is not part of
    that."""
    return reason == "TFJobRescaling" and ctx.state is not None and not _is_paused(ctx)


def _is_paused(ctx: ReconcileContext) -> bool:
    """Whether a rescale has stopped training. The chief may train at the new size while the old one's values are saved
    beside it."""
    if ctx.state is None or ctx.state.phase not in _PAUSED:
        return False
    report = ctx.chief_report if ctx.state.phase == "Switching" else None
    return report is None or report.generation != ctx.state.generation or report.first_step_at is None


def _runs_with(ctx: ReconcileContext, name: str) -> bool:
    """Whether replicas of a type count for the job's conditions. A job that follows a target may have none of a type,
    by its bounds, or as the type is not part of its size (yet): a type without pods has not succeeded. Otherwise the
    spec decides, a count of 0 included, as upstream has it."""
    return ctx.state is None or bool(ctx.state.replicas.get(name))


def _worker_0_completed(ctx: ReconcileContext) -> bool:
    """Whether worker 0 has ended by itself: a program that is stopped may end with 0 without having finished its
    work."""
    return any(
        ctx.task("Worker", pod) == 0
        and pod.phase == "Succeeded"
        and pod.exit_code == 0
        and not leaves(ctx, "Worker", pod)
        for pod in ctx.of_type("Worker")
    )


def _runs_on(ctx: ReconcileContext) -> None:
    if ctx.state is not None and _is_paused(ctx):
        name, stop = f"TFJob {ctx.job.namespace}/{ctx.job.name}", ctx.state.stop
        if stop is not None and ctx.state.phase == "Recreating":
            ctx.condition("Restarting", "TFJobStopping", f"{name} is stopped: {stop.reason}")
        else:
            ctx.condition("Restarting", "TFJobRescaling", f"{name} is rescaling.")
        return
    ctx.condition("Running", "TFJobRunning", f"TFJob {ctx.job.namespace}/{ctx.job.name} is running.")


def _succeed(ctx: ReconcileContext) -> None:
    message = f"TFJob {ctx.job.namespace}/{ctx.job.name} successfully completed."
    ctx.status.completion_time = ctx.status.completion_time or ctx.now_text
    if ctx.condition("Succeeded", "TFJobSucceeded", message):
        ctx.event("Normal", "TFJobSucceeded", message)
        ctx.counts.append(Count("successful"))


def fail(ctx: ReconcileContext, reason: str, message: str) -> None:
    """Marks the job as failed: this result is stored first, the next pass cleans up."""
    ctx.status.completion_time = ctx.status.completion_time or ctx.now_text
    if ctx.condition("Failed", reason, message):
        ctx.event("Normal", reason, message)
    if Count("failed") not in ctx.counts:
        ctx.counts.append(Count("failed"))
    ctx.again_at = ctx.now


def count_active_as_succeeded(ctx: ReconcileContext) -> None:
    """Counts the pods that still ran when the job succeeded as succeeded."""
    if ctx.status.is_true("Succeeded"):
        for counts in ctx.status.replicas.values():
            counts.succeeded += counts.active
            counts.active = 0


def _count_as_declared(ctx: ReconcileContext) -> None:
    """Counts a job that succeeded with a size other than its spec's as if it had the spec's: tools wait until
    `replicaStatuses.Worker.succeeded` equals the manifest's count. They must not see that number too early: for a job
    that has grown, fewer are counted until all have succeeded."""
    if ctx.state is None:
        return
    over = ctx.status.is_true("Succeeded")
    for name, counts in ctx.status.replicas.items():
        replica = ctx.declared.tf_replica_specs.get(name)
        if replica is None:
            continue
        size = ctx.state.replicas.get(name, 0)
        all_have = counts.succeeded > 0 and counts.succeeded == size
        if over:
            counts.succeeded = replica.count if all_have else min(counts.succeeded, replica.count)
        elif size > replica.count and not all_have:
            counts.succeeded = min(counts.succeeded, max(replica.count - 1, 0))


# -- Limits that fail a job whatever its pods do -----------------------------------------------------------------------
# `backoffLimit` and `activeDeadlineSeconds`, as upstream counts them.

_COUNTED_BY_BACKOFF: Final = ("OnFailure", "Always", "ExitCode")


def limit_reached(ctx: ReconcileContext) -> str | None:
    """Returns why the job has to fail now, whatever its pods do; None if it may continue."""
    policy = ctx.spec.run_policy
    # A size before its first step has a time limit of its own, after which the job gets a different size.
    on_trial = ctx.state is not None and ctx.state.on_trial
    if policy.backoff_limit is not None and not on_trial and _past_backoff(ctx, policy.backoff_limit):
        return f"Job {ctx.job.name} has failed because it has reached the specified backoff limit"
    if policy.active_deadline_seconds is not None:
        start = moment_of(ctx.status.start_time)
        due = after(start or ctx.now, policy.active_deadline_seconds)
        if start is not None and ctx.now >= due:
            return f"Job {ctx.job.name} has failed because it was active longer than specified deadline"
        ctx.again_at = due
    return None


def _past_backoff(ctx: ReconcileContext, limit: int) -> bool:
    restarts = 0
    for name, replica in ctx.spec.tf_replica_specs.items():
        if replica.restart in _COUNTED_BY_BACKOFF:
            running = (pod for pod in ctx.of_type(name) if pod.phase == "Running")
            restarts += sum(pod.restarts for pod in running)
    forgiven = ctx.state.forgiven if ctx.state is not None else 0
    if restarts - forgiven >= max(limit, 1):
        return True
    # A failure that the stored status does not show yet counts as one retry; upstream forgets earlier failures.
    own = [pod for name in ctx.spec.tf_replica_specs for pod in ctx.of_type(name) if not leaves(ctx, name, pod)]
    failed = sum(pod.phase == "Failed" for pod in own)
    active = sum(not pod.ended and not pod.terminating for pod in own)
    known = sum(counts.failed for counts in ctx.status.replicas.values())
    size = ctx.spec.total_replicas if ctx.state is None else sum(ctx.state.replicas.values())
    return failed > known and active != size and limit < 1
