"""Why a job fails whatever its pods do: `backoffLimit` and `activeDeadlineSeconds`, as upstream counts them. Pure."""

from typing import Final

from elastic_tfjob.api.limits import after
from elastic_tfjob.controller.job.reconcile_pass import Pass
from elastic_tfjob.controller.job.replicas import leaves
from elastic_tfjob.controller.objects.status import moment_of

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
