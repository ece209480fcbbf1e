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
    "DEADLINES",
    "DEADLINE_JOBS",
    "DEADLINE_SLACK",
    "EVENTS",
    "EXPERIENCE",
    "FAILED_PODS",
    "FAILED_PODS_LEFT_OUT",
    "JOBS",
    "LEADER",
    "LOOP_LAG",
    "NAMESPACE_LIMIT",
    "NODE_LOANS",
    "NODE_RETURN_SECONDS",
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
    "TOTAL_LIMIT",
    "UNREADABLE",
    "WATCH_RESTARTS",
    "count",
    "count_job",
    "name_failed_pods",
    "named_failures",
]


# -- Which failed pods a metric names: not all there could be, as each is a time series of its own ---------------------

NAMESPACE_LIMIT: Final = 100
TOTAL_LIMIT: Final = 1000
# A job that failed keeps its pods until somebody deletes it. After this time it is old news.
_RECENT: Final = timedelta(hours=1)

Labels = tuple[str, str, str, str, str]
"""Namespace, job, pod, reason and exit code."""


def named_failures(failed: Iterable[tuple[TFJob, Pod]], now: datetime) -> tuple[list[Labels], int]:
    """The labels of failed pods, and how many pods were left out by the limits. Of a job that succeeded, or failed
    more than an hour ago, no pod is named; nor one that the operator itself had end. In turn by namespace: one with
    many failures takes no place from the others."""
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
    """Whether a job goes on, or failed within the last hour. A time that is no time counts as now."""
    status = job.status()
    if (condition := status.get("Failed")) is not None and condition.status == "True":
        since = moment_of(condition.lastTransitionTime)
        return since is None or now - since < _RECENT
    return not status.finished


_LABELS: Final = ("job_namespace", "framework")

JOBS: Final = {
    what: Counter(f"training_operator_jobs_{what}", text, _LABELS)
    for what, text in (
        ("created", "Jobs that were created"),
        ("deleted", "Finished jobs that were deleted when their time to live was over"),
        ("successful", "Jobs that succeeded"),
        ("failed", "Jobs that failed"),
        ("restarted", "Times that a job was restarted because replicas failed"),
    )
}
POD_OPERATIONS: Final = Counter(
    "elastic_tfjob_object_operations", "Pods, services and PodGroups written", ("kind", "operation", "result")
)
API_REQUESTS: Final = Counter(
    "elastic_tfjob_api_requests",
    "Requests to the API server by answer (an HTTP status or an error)",
    ("method", "answer"),
)
EVENTS: Final = Counter(
    "elastic_tfjob_events", "Kubernetes events about jobs: queued to be written, or dropped", ("fate",)
)
EXPERIENCE: Final = Counter(
    "elastic_tfjob_experience_lines",
    "Rounds that were written down for a policy to learn from, or could not",
    ("fate",),
)
WATCH_RESTARTS: Final = Counter(
    "elastic_tfjob_watch_restarts", "Watches that were begun anew, by resource and cause", ("resource", "cause")
)
UNREADABLE: Final = Counter(
    "elastic_tfjob_unreadable_objects",
    "Objects of the API server that were left out since reading failed",
    ("resource",),
)
TASK_FAILURES: Final = Counter(
    "elastic_tfjob_task_failures", "Times that a background task failed and was begun anew", ("task",)
)
LOOP_LAG: Final = Histogram(
    "elastic_tfjob_loop_lag_seconds",
    "How late the event loop was, ten times a second: how long others waited for one step",
    buckets=(0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 15),
)
RECONCILE_FAILURES: Final = Counter(
    "elastic_tfjob_reconcile_failures", "Times that a bug kept one job or JobSet from being reconciled"
)
RECONCILE_SECONDS: Final = Histogram(
    "elastic_tfjob_reconcile_seconds",
    "Time from taking a job off the queue to the last answer of the API server",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30),
)
QUEUE_DEPTH: Final = Gauge("elastic_tfjob_queue_depth", "Jobs that wait to be reconciled")
SCHEDULING_SECONDS: Final = Histogram(
    "elastic_tfjob_scheduling_seconds",
    "Time of a scheduling round, from the caches to the last written target",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30),
)
SCHEDULING_FAILURES: Final = Counter("elastic_tfjob_scheduling_failures", "Scheduling rounds that failed")
TARGETS: Final = Counter("elastic_tfjob_targets", "Targets written to jobs, by result", ("result",))
SCHEDULED_JOBS: Final = Gauge("elastic_tfjob_scheduled_jobs", "Jobs that the profile decides for, by phase", ("phase",))
DEADLINES: Final = Counter("elastic_tfjob_deadlines", "Jobs whose deadline was met or missed", ("result",))
DEADLINE_JOBS: Final = Gauge(
    "elastic_tfjob_deadline_jobs", "Jobs with a deadline that have not ended, by what is expected of it", ("verdict",)
)
DEADLINE_SLACK: Final = Gauge(
    "elastic_tfjob_deadline_slack_seconds",
    "From the expected end to the deadline, of jobs that have not ended: the least of all, and the median",
    ("of",),
)
POOL_NODES: Final = Gauge(
    "elastic_tfjob_pool_nodes",
    "Nodes of a pool that lends: in use there, ready to be lent (offered), lent, or recalled",
    ("pool", "state"),
)
POOL_PENDING: Final = Gauge(
    "elastic_tfjob_pool_pending_pods",
    "Pods of a pool that kube-scheduler finds no node for: they fit beside others (room), on a node that is lent "
    "(recall), or nowhere",
    ("pool", "fit"),
)
NODE_LOANS: Final = Counter(
    "elastic_tfjob_node_loans", "Changes of loans that were written to nodes, by result", ("pool", "stage", "result")
)
NODE_RETURN_SECONDS: Final = Histogram(
    "elastic_tfjob_node_return_seconds",
    "Time from the recall of a node to its return",
    ("pool",),
    buckets=(1, 2, 5, 10, 20, 30, 60, 120, 300, 600),
)
STATUS_REQUESTS: Final = Counter(
    "elastic_tfjob_status_requests", "Questions to the pods' exporters, by result", ("result",)
)
TALLIES: Final = {
    "starts": Counter("elastic_tfjob_starts", "Jobs that were given their first size, or one after a stop", ("cause",)),
    "rescales": Counter("elastic_tfjob_rescales", "Rescales and moves that came to their end, by cause", ("cause",)),
    "roll_backs": Counter(
        "elastic_tfjob_roll_backs",
        "Rescales and moves that were taken back before they were done, by cause",
        ("cause",),
    ),
    "stops": Counter("elastic_tfjob_stops", "Running jobs that a plan stopped, by cause", ("cause",)),
    "resumes": Counter("elastic_tfjob_resumes", "Stopped jobs that make steps again"),
    "stop_wait_seconds": Counter(
        "elastic_tfjob_stop_wait_seconds", "Seconds that stops waited for the checkpoint that they asked for"
    ),
    "stop_lost_steps": Counter(
        "elastic_tfjob_stop_lost_steps", "Steps lost, at most, by jobs whose pods ended without a new checkpoint"
    ),
}
SPEED_RATIO: Final = Histogram(
    "elastic_tfjob_speed_ratio",
    "Speed a minute after a start, rescale or move over the one that its plan expected, by cause",
    ("cause",),
    buckets=(0.25, 0.5, 0.7, 0.85, 0.95, 1.05, 1.15, 1.3, 1.5, 2, 4),
)
FAILED_PODS: Final = Gauge(
    "elastic_tfjob_failed_pods",
    "1 for each failed pod of a job that goes on, or that failed within the last hour; 100 of a namespace and 1,000 in "
    "all are named",
    ("job_namespace", "tfjob", "tfjob_pod", "reason", "exit_code"),
)
FAILED_PODS_LEFT_OUT: Final = Gauge(
    "elastic_tfjob_failed_pods_left_out", "Failed pods that elastic_tfjob_failed_pods does not name, for these limits"
)
LEADER: Final = Gauge("elastic_tfjob_leader", "1 while this replica is the leader")


def count(what: str, namespace: str, amount: float = 1.0, cause: str = "") -> None:
    """Count what a decision says: a job's transition, or a figure of starts, rescales and stops."""
    if what in TALLIES:
        (TALLIES[what].labels(cause) if cause else TALLIES[what]).inc(amount)
    elif what == "speed_ratio":
        SPEED_RATIO.labels(cause).observe(amount)
    else:
        count_job(what, namespace)


def name_failed_pods(failed: Iterable[tuple[TFJob, Pod]]) -> None:
    """Set the series of failed pods to what is there now; those of others end."""
    named, left_out = named_failures(failed, datetime.now(UTC))
    FAILED_PODS.clear()
    for labels in named:
        FAILED_PODS.labels(*labels).set(1)
    FAILED_PODS_LEFT_OUT.set(left_out)


def count_job(what: str, namespace: str) -> None:
    """Count a job's transition: created, deleted, successful, failed or restarted."""
    JOBS[what].labels(namespace, "tensorflow").inc()
