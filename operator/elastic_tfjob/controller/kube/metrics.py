"""The operator's Prometheus metrics. The `training_operator_jobs_*` family has upstream's names and labels."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.status import moment_of

__all__ = [
    "API_REQUESTS",
    "AUTOSCALED_NODES",
    "DEADLINES",
    "DEADLINE_JOBS",
    "DEADLINE_SLACK",
    "EVENTS",
    "EXPERIENCE",
    "FAILED_PODS",
    "FAILED_PODS_LEFT_OUT",
    "GROWTH_WORKLOADS",
    "INTERRUPTIONS",
    "JOBS",
    "LEADER",
    "LOOP_LAG",
    "NAMESPACE_LIMIT",
    "NODES_GIVEN_UP",
    "NODE_LOANS",
    "NODE_RETURN_SECONDS",
    "ORDERS_FAILED",
    "ORDER_PODS",
    "ORDER_SECONDS",
    "POD_OPERATIONS",
    "POOL_NODES",
    "POOL_PENDING",
    "QUEUE_DEPTH",
    "RECONCILE_FAILURES",
    "RECONCILE_SECONDS",
    "SCHEDULED_JOBS",
    "SCHEDULING_FAILURES",
    "SCHEDULING_SECONDS",
    "SPEED_RATIO",
    "STATUS_REQUESTS",
    "TALLIES",
    "TARGETS",
    "TASK_FAILURES",
    "TEAM_BELOW_SHARE",
    "TEAM_DESERVED",
    "TEAM_RECLAIMED",
    "TEAM_SHARE",
    "TEAM_WAITING",
    "TOTAL_LIMIT",
    "UNREADABLE",
    "WATCH_RESTARTS",
    "count",
    "count_job",
    "name_failed_pods",
    "named_failures",
]


# -- Failed pods in metrics: a limited number, because each is a time series -------------------------------------------

NAMESPACE_LIMIT: Final = 100
TOTAL_LIMIT: Final = 1000
# A failed job keeps its pods until it is deleted. Its pods are not reported after this time.
_RECENT: Final = timedelta(hours=1)

Labels = tuple[str, str, str, str, str]
"""Namespace, job, pod, reason and exit code."""


def named_failures(failed: Iterable[tuple[TFJob, Pod]], now: datetime) -> tuple[list[Labels], int]:
    """The labels of failed pods, and the number of pods that exceed the limits. Pods are skipped if their job has
    succeeded, if it failed more than an hour ago, or if the operator ended them itself. Namespaces take turns, so one
    with many failures does not displace the pods of other namespaces."""
    current: dict[str, bool] = {}
    found: defaultdict[str, list[Labels]] = defaultdict(list)
    for job, pod in failed:
        if pod.failure is None or pod.stopped_by_us:
            continue
        if job.uid not in current:
            current[job.uid] = _is_current(job, now)
        if current[job.uid]:
            labels = (job.namespace, job.name, pod.name, pod.failure.reason, pod.failure.exit_code)
            found[job.namespace].append(labels)
    in_turn = sorted(
        (rank, labels) for each in found.values() for rank, labels in enumerate(sorted(each)[:NAMESPACE_LIMIT])
    )
    named = [labels for _, labels in in_turn[:TOTAL_LIMIT]]
    return named, sum(map(len, found.values())) - len(named)


def _is_current(job: TFJob, now: datetime) -> bool:
    """Whether a job is unfinished, or failed within the last hour. An invalid time counts as now."""
    status = job.status()
    if (condition := status.get("Failed")) is not None and condition.status == "True":
        since = moment_of(condition.lastTransitionTime)
        return since is None or now - since < _RECENT
    return not status.finished


_LABELS: Final = ("job_namespace", "framework")

JOBS: Final = {
    what: Counter(f"training_operator_jobs_{what}", text, _LABELS)
    for what, text in (
        ("created", "Created jobs"),
        ("deleted", "Finished jobs deleted after ttlSecondsAfterFinished"),
        ("successful", "Succeeded jobs"),
        ("failed", "Failed jobs"),
        ("restarted", "Job restarts because of failed replicas"),
    )
}
POD_OPERATIONS: Final = Counter(
    "elastic_tfjob_object_operations", "Writes of pods, services and PodGroups", ("kind", "operation", "result")
)
API_REQUESTS: Final = Counter(
    "elastic_tfjob_api_requests",
    "Requests to the API server, by answer (an HTTP status or an error)",
    ("method", "answer"),
)
EVENTS: Final = Counter("elastic_tfjob_events", "Kubernetes events, by fate (queued for writing or dropped)", ("fate",))
EXPERIENCE: Final = Counter(
    "elastic_tfjob_experience_lines",
    "Scheduling rounds logged for policy training, by fate (written or lost)",
    ("fate",),
)
WATCH_RESTARTS: Final = Counter(
    "elastic_tfjob_watch_restarts", "Restarted watches, by resource and cause", ("resource", "cause")
)
UNREADABLE: Final = Counter(
    "elastic_tfjob_unreadable_objects",
    "Objects of the API server that were skipped because they could not be read",
    ("resource",),
)
TASK_FAILURES: Final = Counter(
    "elastic_tfjob_task_failures", "Failures of background tasks, each followed by a restart", ("task",)
)
LOOP_LAG: Final = Histogram(
    "elastic_tfjob_loop_lag_seconds",
    "Delay of the event loop, measured ten times per second",
    buckets=(0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 15),
)
RECONCILE_FAILURES: Final = Counter(
    "elastic_tfjob_reconcile_failures", "Reconciliations of a job or JobSet that failed because of a bug"
)
RECONCILE_SECONDS: Final = Histogram(
    "elastic_tfjob_reconcile_seconds",
    "Time from dequeuing a job to the last answer of the API server",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30),
)
_TEAM: Final = ("team",)
TEAM_SHARE: Final = Gauge(
    "elastic_tfjob_team_share", "Dominant share of the cluster that a team's jobs request, 0 to 1", _TEAM
)
TEAM_DESERVED: Final = Gauge(
    "elastic_tfjob_team_deserved", "Dominant share of the cluster that a team deserves, 0 to 1", _TEAM
)
TEAM_WAITING: Final = Gauge("elastic_tfjob_team_waiting_jobs", "Jobs of a team that wait for resources", _TEAM)
TEAM_RECLAIMED: Final = Counter(
    "elastic_tfjob_team_reclaimed_replicas",
    "Replicas taken from a team for teams below their share, by how (shrink or stop)",
    ("team", "how"),
)
TEAM_BELOW_SHARE: Final = Counter(
    "elastic_tfjob_team_below_share_seconds",
    "Time in which a team had less than it deserves although its jobs could use more",
    _TEAM,
)
QUEUE_DEPTH: Final = Gauge("elastic_tfjob_queue_depth", "Jobs waiting for reconciliation")
SCHEDULING_SECONDS: Final = Histogram(
    "elastic_tfjob_scheduling_seconds",
    "Duration of a scheduling round, from reading the caches to writing the last target",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30),
)
SCHEDULING_FAILURES: Final = Counter("elastic_tfjob_scheduling_failures", "Failed scheduling rounds")
TARGETS: Final = Counter("elastic_tfjob_targets", "Targets written to jobs, by result", ("result",))
SCHEDULED_JOBS: Final = Gauge("elastic_tfjob_scheduled_jobs", "Jobs that the profile schedules, by phase", ("phase",))
GROWTH_WORKLOADS: Final = Gauge(
    "elastic_tfjob_growth_workloads", "Kueue Workloads of replicas beyond the declared size, by state", ("state",)
)
DEADLINES: Final = Counter("elastic_tfjob_deadlines", "Jobs that met or missed their deadline", ("result",))
DEADLINE_JOBS: Final = Gauge(
    "elastic_tfjob_deadline_jobs", "Unfinished jobs with a deadline, by forecast", ("verdict",)
)
DEADLINE_SLACK: Final = Gauge(
    "elastic_tfjob_deadline_slack_seconds",
    "Seconds from the expected end to the deadline of unfinished jobs: minimum and median",
    ("of",),
)
POOL_NODES: Final = Gauge(
    "elastic_tfjob_pool_nodes",
    "Nodes of a lending pool, by state: used by the pool, offered, lent, or recalled",
    ("pool", "state"),
)
POOL_PENDING: Final = Gauge(
    "elastic_tfjob_pool_pending_pods",
    "Unschedulable pods of a pool, by where they would fit: next to other pods (room), on a lent node "
    "(recall), or nowhere",
    ("pool", "fit"),
)
NODE_LOANS: Final = Counter(
    "elastic_tfjob_node_loans", "Loan changes written to nodes, by stage and result", ("pool", "stage", "result")
)
NODE_RETURN_SECONDS: Final = Histogram(
    "elastic_tfjob_node_return_seconds",
    "Time from the recall of a node to its return",
    ("pool",),
    buckets=(1, 2, 5, 10, 20, 30, 60, 120, 300, 600),
)
ORDER_PODS: Final = Gauge(
    "elastic_tfjob_order_pods", "Placeholder pods of jobs that order nodes: waiting for a node, or bound", ("state",)
)
ORDER_SECONDS: Final = Histogram(
    "elastic_tfjob_order_seconds",
    "Time from the creation of a placeholder pod until it is bound to a node",
    buckets=(1, 5, 15, 30, 60, 120, 300, 600, 900, 1800),
)
ORDERS_FAILED: Final = Counter(
    "elastic_tfjob_orders_failed",
    "Orders of nodes that failed: no node has come, the job did not use it, or a pod was refused",
    ("reason",),
)
AUTOSCALED_NODES: Final = Gauge(
    "elastic_tfjob_autoscaled_nodes",
    "Nodes that an autoscaler removes once they are empty: used, given up by jobs, or draining",
    ("state",),
)
NODES_GIVEN_UP: Final = Counter("elastic_tfjob_nodes_given_up", "Nodes that jobs have left to an autoscaler")
INTERRUPTIONS: Final = Counter(
    "elastic_tfjob_interruptions",
    "Jobs on nodes that were taken away with notice, once for each job and node: moved, shrunk, saved or lost",
    ("outcome",),
)
STATUS_REQUESTS: Final = Counter("elastic_tfjob_status_requests", "Status polls of pods, by result", ("result",))
TALLIES: Final = {
    "starts": Counter("elastic_tfjob_starts", "Job starts, first ones and those after a stop, by cause", ("cause",)),
    "rescales": Counter("elastic_tfjob_rescales", "Completed rescales and moves, by cause", ("cause",)),
    "roll_backs": Counter(
        "elastic_tfjob_roll_backs",
        "Rescales and moves that were rolled back, by cause",
        ("cause",),
    ),
    "memory_kills": Counter(
        "elastic_tfjob_memory_kills",
        "Replicas or their processes that the kernel killed for memory, by type",
        ("type",),
    ),
    "memory_raises": Counter(
        "elastic_tfjob_memory_raises", "Raises of the memory of a type's replicas by a forecast", ("type",)
    ),
    "stops": Counter("elastic_tfjob_stops", "Running jobs that the scheduler stopped, by cause", ("cause",)),
    "resumes": Counter("elastic_tfjob_resumes", "Stopped jobs that train again"),
    "stop_wait_seconds": Counter("elastic_tfjob_stop_wait_seconds", "Seconds that stops waited for a checkpoint"),
    "stop_lost_steps": Counter(
        "elastic_tfjob_stop_lost_steps", "Upper bound of the steps lost by stops without a new checkpoint"
    ),
}
SPEED_RATIO: Final = Histogram(
    "elastic_tfjob_speed_ratio",
    "Speed one minute after a start, rescale or move, relative to the expected speed, by cause",
    ("cause",),
    buckets=(0.25, 0.5, 0.7, 0.85, 0.95, 1.05, 1.15, 1.3, 1.5, 2, 4),
)
FAILED_PODS: Final = Gauge(
    "elastic_tfjob_failed_pods",
    "1 for each failed pod of a job that is unfinished or failed within the last hour; at most 100 pods per "
    "namespace and 1,000 in "
    "total",
    ("job_namespace", "tfjob", "tfjob_pod", "reason", "exit_code"),
)
FAILED_PODS_LEFT_OUT: Final = Gauge(
    "elastic_tfjob_failed_pods_left_out",
    "Failed pods that are missing in elastic_tfjob_failed_pods because of its limits",
)
LEADER: Final = Gauge("elastic_tfjob_leader", "1 while this replica is the leader")


def count(what: str, namespace: str, amount: float = 1.0, cause: str = "") -> None:
    """Count a job's transition, or a metric of starts, rescales and stops."""
    if what in TALLIES:
        (TALLIES[what].labels(cause) if cause else TALLIES[what]).inc(amount)
    elif what == "speed_ratio":
        SPEED_RATIO.labels(cause).observe(amount)
    else:
        count_job(what, namespace)


def name_failed_pods(failed: Iterable[tuple[TFJob, Pod]]) -> None:
    """Replace the time series of failed pods by those of the currently failed pods."""
    named, left_out = named_failures(failed, datetime.now(UTC))
    FAILED_PODS.clear()
    for labels in named:
        FAILED_PODS.labels(*labels).set(1)
    FAILED_PODS_LEFT_OUT.set(left_out)


def count_job(what: str, namespace: str) -> None:
    """Count a job's transition: created, deleted, successful, failed or restarted."""
    JOBS[what].labels(namespace, "tensorflow").inc()
