"""Who waits, in which order, and why. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.query.rows.job import JobRow
from elastic_tfjob.controller.schedule.scheduled_job import scheduled_job
from elastic_tfjob.scheduling.profile import Order
from elastic_tfjob.scheduling.queue import Entry, entry

__all__ = ["QueueRow", "place_in_order", "queue_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A job that waits. `position` counts all jobs that wait, also those that the asker may not see."""

    position: Annotated[int, "place in the profile's order, from 1; one behind may start first where it fits"]
    namespace: Annotated[str, "namespace of the TFJob"]
    name: Annotated[str, "name of the TFJob"]
    waits_since: Annotated[str | None, "since when it waits"]
    reason: Annotated[str, "why it waits"]
    priority: Annotated[int, "of its PriorityClass; the lowest there is while it waits behind all others"]
    deadline: Annotated[str | None, "when it shall have ended"]
    bounds: Annotated[Mapping[str, tuple[int, int]], "least and most replicas, by type"]
    stops: Annotated[int, "how often all was taken from it while it ran"]


def place_in_order(
    job: Job, order: Order, priorities: Mapping[str, int], now: datetime, *, all_jobs: bool
) -> Entry | None:
    """What a waiting job is sorted by, smallest first; None: the profile does not decide for it. Entries of the same
    `now` compare. Raises what `scheduled_job` raises."""
    found = scheduled_job(job, (), nodes={}, now=now, all_jobs=all_jobs, priorities=priorities)
    return entry(order, found.job, now.timestamp()) if found.job is not None else None


def queue_rows(waiting: Iterable[tuple[Entry, JobRow]]) -> list[QueueRow]:
    """The queue, first to serve first."""
    return [
        QueueRow(
            position=position,
            namespace=row.namespace,
            name=row.name,
            waits_since=row.waits_since,
            reason=row.reason,
            priority=int(-place[0]),
            deadline=row.deadline,
            bounds=row.bounds,
            stops=row.stops,
        )
        for position, (place, row) in enumerate(sorted(waiting, key=lambda each: each[0]), 1)
    ]
