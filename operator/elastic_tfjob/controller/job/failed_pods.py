"""Which failed pods a metric names: not all there could be, as each is a time series of its own. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.objects.pod import Pod
from elastic_tfjob.controller.objects.status import moment_of

__all__ = ["NAMESPACE_LIMIT", "TOTAL_LIMIT", "named_failures"]

NAMESPACE_LIMIT: Final = 100
TOTAL_LIMIT: Final = 1000
# A job that failed keeps its pods until somebody deletes it. After this time it is old news.
_RECENT: Final = timedelta(hours=1)

Labels = tuple[str, str, str, str, str]
"""Namespace, job, pod, reason and exit code."""


def named_failures(failed: Iterable[tuple[Job, Pod]], now: datetime) -> tuple[list[Labels], int]:
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


def _is_current(job: Job, now: datetime) -> bool:
    """Whether a job goes on, or failed within the last hour. A time that is no time counts as now."""
    status = job.status()
    if (condition := status.get("Failed")) is not None and condition.status == "True":
        since = moment_of(condition.lastTransitionTime)
        return since is None or now - since < _RECENT
    return not status.finished
