"""A job's events, as the API server has them, and what they say about a size that a person requests."""

from collections.abc import Sequence
from typing import Final

from elastic_tfjob.commands import show
from elastic_tfjob.commands.cluster import Cluster, path_of
from elastic_tfjob.controller.kube.errors import ApiError
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.planning.request import asked_for
from elastic_tfjob.controller.query.rows.jobs import JobRow, ReadJob
from elastic_tfjob.controller.query.rows.timeline import Happening

_MOST: Final = 50


async def job_events(at: Cluster, seen: ReadJob) -> tuple[list[Happening], str]:
    """The job's newest events, the oldest first, and why they are missing if they cannot be read. The API server sorts
    them by their names, which say nothing about their times."""
    about = f"involvedObject.uid={seen.job.uid}"
    try:
        items = await at.items(path_of(at.namespace, "events"), fieldSelector=about)
    except ApiError as error:
        return [], f"events cannot be read: {show.plain(error.message or error.reason)}"
    found = []
    for item in items:
        when = item.get("lastTimestamp") or item.get("eventTime") or item.get("firstTimestamp")
        text, reason = str(item.get("message") or ""), str(item.get("reason") or "")
        found.append(Happening(at=when if moment_of(when) else None, kind="condition", text=text, reason=reason))
    return sorted(found, key=lambda each: each.at or "")[-_MOST:], ""


def why_pending(seen: ReadJob, row: JobRow, events: Sequence[Happening]) -> str:
    """Why a job does not have the size that a person requests, by an annotation or an edit of the spec: by its newest
    event of a rescale, as `job_events` sorts them; empty if it has the size, or changes to it."""
    if seen.request is None or row.phase != "Stable":
        return ""
    asked, _ = asked_for(seen.request, seen.target, seen.state, row.replicas)
    if all(row.replicas.get(name, 0) == count for name, count in asked.items()):
        return ""
    newest = next((each for each in reversed(events) if each.reason.startswith("Rescale") and each.at), None)
    return newest.text if newest is not None and newest.reason == "RescalePending" else ""
