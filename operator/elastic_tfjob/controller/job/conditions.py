"""The conditions of a job, from the counts of its pods, as upstream sets them. Pure."""

from typing import Final

from elastic_tfjob.api.reading import after
from elastic_tfjob.api.tfjob import REPLICA_TYPES
from elastic_tfjob.controller.job.decision import Count
from elastic_tfjob.controller.job.reconcile_pass import Pass
from elastic_tfjob.controller.job.replicas import leaves
from elastic_tfjob.controller.objects.status import moment_of

# While it prepares, a job runs.
_PAUSED: Final = ("Checkpointing", "Switching", "Recreating")


def update_status(p: Pass) -> None:
    """Conditions from the counts, in upstream's order of types. See docs/compatibility.md for the full table."""
    p.status.start_time = p.status.start_time or p.now
    # Running would replace Restarting before a later type is looked at, so remember it.
    restarting = p.status.get("Restarting")
    has_chief = any(name in p.spec.tf_replica_specs and _runs_with(p, name) for name in ("Chief", "Master"))
    for name in REPLICA_TYPES:
        replica = p.spec.tf_replica_specs.get(name)
        if replica is None:
            continue
        counts = p.status.replicas[name]
        complete = replica.count == counts.succeeded and _runs_with(p, name)
        if has_chief:
            if name in ("Chief", "Master"):
                if counts.active:
                    _runs_on(p)
                if complete:
                    _succeed(p)
        elif name == "Worker":
            any_worker = p.spec.success_policy != "AllWorkers"
            if complete or (any_worker and _worker_0_completed(p)):
                _succeed(p)
            elif counts.active:
                _runs_on(p)
        if counts.failed:
            if restarting is not None and not _has_rescaled(p, restarting.reason):
                p.condition("Restarting", restarting.reason, restarting.message)
            elif not (p.spec.enable_dynamic_worker and name == "Worker"):
                fail(
                    p,
                    "TFJobFailed",
                    f"TFJob {p.job.namespace}/{p.job.name} has failed because {counts.failed} {name} "
                    "replica(s) failed.",
                )
    if p.status.finished:
        count_active_as_succeeded(p)
        p.again_at = p.time  # the verdict is stored first; then another pass cleans up
    _count_as_declared(p)


def _has_rescaled(p: Pass, reason: str) -> bool:
    """Whether a job is called restarting since it rescaled, which is over: a pod that failed is no part of that."""
    return reason == "TFJobRescaling" and p.state is not None and p.state.phase not in _PAUSED


def _runs_with(p: Pass, name: str) -> bool:
    """Whether replicas of a type can tell how the job fares. Of a job that follows a target there may be none, by
    its bounds or since the type is not part of its size (yet): what has no pod has not succeeded. Else the spec
    says it, 0 included, as upstream has it."""
    return p.state is None or bool(p.state.replicas.get(name))


def _worker_0_completed(p: Pass) -> bool:
    """Whether it has ended by itself: a program may end with 0 when it is told to stop, and has not done its work."""
    return any(
        pod.index == 0 and pod.phase == "Succeeded" and pod.exit_code == 0 and not leaves(p, "Worker", pod)
        for pod in p.of_type("Worker")
    )


def _runs_on(p: Pass) -> None:
    if p.state is not None and p.state.phase in _PAUSED:
        name, stop = f"TFJob {p.job.namespace}/{p.job.name}", p.state.stop
        if stop is not None and p.state.phase == "Recreating":
            p.condition("Restarting", "TFJobStopping", f"{name} is stopped: {stop.reason}")
        else:
            p.condition("Restarting", "TFJobRescaling", f"{name} is rescaling.")
        return
    p.condition("Running", "TFJobRunning", f"TFJob {p.job.namespace}/{p.job.name} is running.")


def _succeed(p: Pass) -> None:
    message = f"TFJob {p.job.namespace}/{p.job.name} successfully completed."
    p.status.completion_time = p.status.completion_time or p.now
    if p.condition("Succeeded", "TFJobSucceeded", message):
        p.event("Normal", "TFJobSucceeded", message)
        p.counts.append(Count("successful"))


def fail(p: Pass, reason: str, message: str) -> None:
    """The job has failed: the verdict is stored first, then another pass cleans up."""
    p.status.completion_time = p.status.completion_time or p.now
    if p.condition("Failed", reason, message):
        p.event("Normal", reason, message)
    if Count("failed") not in p.counts:
        p.counts.append(Count("failed"))
    p.again_at = p.time


def count_active_as_succeeded(p: Pass) -> None:
    """What still ran when the job succeeded ends as succeeded, once and for all."""
    if p.status.is_true("Succeeded"):
        for counts in p.status.replicas.values():
            counts.succeeded += counts.active
            counts.active = 0


def _count_as_declared(p: Pass) -> None:
    """A job that succeeded with another size than its spec's is counted as if it had had that one: tools wait for
    `replicaStatuses.Worker.succeeded` to be what the manifest says. They must not find it before: of one that has
    grown, fewer have succeeded until all have."""
    if p.state is None:
        return
    over = p.status.is_true("Succeeded")
    for name, counts in p.status.replicas.items():
        replica = p.declared.tf_replica_specs.get(name)
        if replica is None:
            continue
        size = p.state.replicas.get(name, 0)
        all_have = counts.succeeded > 0 and counts.succeeded == size
        if over:
            counts.succeeded = replica.count if all_have else min(counts.succeeded, replica.count)
        elif size > replica.count and not all_have:
            counts.succeeded = min(counts.succeeded, max(replica.count - 1, 0))


# -- Why a job fails whatever its pods do ------------------------------------------------------------------------------
# `backoffLimit` and `activeDeadlineSeconds`, as upstream counts them.

_COUNTED_BY_BACKOFF: Final = ("OnFailure", "Always", "ExitCode")


def limit_reached(p: Pass) -> str | None:
    """Why the job has to fail now, whatever its pods do; None while it may go on."""
    policy = p.spec.run_policy
    # A size that is yet to make its first step has a limit of its own, after which another one gets the job.
    on_trial = p.state is not None and p.state.on_trial
    if policy.backoff_limit is not None and not on_trial and _past_backoff(p, policy.backoff_limit):
        return f"Job {p.job.name} has failed because it has reached the specified backoff limit"
    if policy.active_deadline_seconds is not None:
        start = moment_of(p.status.start_time)
        due = after(start or p.time, policy.active_deadline_seconds)
        if start is not None and p.time >= due:
            return f"Job {p.job.name} has failed because it was active longer than specified deadline"
        p.again_at = due
    return None


def _past_backoff(p: Pass, limit: int) -> bool:
    restarts = 0
    for name, replica in p.spec.tf_replica_specs.items():
        if replica.restart in _COUNTED_BY_BACKOFF:
            running = (pod for pod in p.of_type(name) if pod.phase == "Running")
            restarts += sum(pod.restarts for pod in running)
    forgiven = p.state.forgiven if p.state is not None else 0
    if restarts - forgiven >= max(limit, 1):
        return True
    # A failure that the stored status does not show yet counts as one retry; upstream forgets earlier ones.
    own = [pod for name in p.spec.tf_replica_specs for pod in p.of_type(name) if not leaves(p, name, pod)]
    failed = sum(pod.phase == "Failed" for pod in own)
    active = sum(not pod.ended and not pod.terminating for pod in own)
    known = sum(counts.failed for counts in p.status.replicas.values())
    size = p.spec.total_replicas if p.state is None else sum(p.state.replicas.values())
    return failed > known and active != size and limit < 1
