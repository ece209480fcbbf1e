"""The answers of the query API, as data. Pure: openapi.py writes the document from these, server.py fills them."""

from dataclasses import dataclass
from typing import Annotated

from elastic_tfjob.controller.query.rows.forecast import ForecastRow
from elastic_tfjob.controller.query.rows.job import JobRow
from elastic_tfjob.controller.query.rows.live import LiveRow
from elastic_tfjob.controller.query.rows.node import NodeRow
from elastic_tfjob.controller.query.rows.queue import QueueRow
from elastic_tfjob.controller.query.rows.timeline import Happening, Size
from elastic_tfjob.controller.query.rows.what_if import WhatIfOthers, WhatIfRow

__all__ = ["Error", "Forecasts", "JobDetail", "Jobs", "Nodes", "Problem", "Queue", "WhatIf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """A page of jobs."""

    items: Annotated[tuple[JobRow, ...], "jobs of this page"]
    total: Annotated[int, "how many jobs match"]
    offset: Annotated[int, "how many of them come before this page"]
    limit: Annotated[int, "the most that a page of this size has"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail:
    """One job, what is expected of it and what happened to it."""

    job: Annotated[JobRow, "the job"]
    position: Annotated[int | None, "place in the queue, where it waits"]
    forecast: Annotated[ForecastRow, "what is expected"]
    live: Annotated[
        LiveRow | None, "what its pods say now; null: none has made a step, or this replica does not lead and asks none"
    ]
    timeline: Annotated[tuple[Happening, ...], "what happened and why, in order of time; what is to come is last"]
    sizes: Annotated[tuple[Size, ...], "its sizes in order of time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A page of the queue."""

    items: Annotated[tuple[QueueRow, ...], "jobs of this page"]
    total: Annotated[int, "how many jobs wait that the asker may see"]
    offset: Annotated[int, "how many of them come before this page"]
    limit: Annotated[int, "the most that a page of this size has"]
    profile: Annotated[str, "profile whose order this is"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """A page of nodes."""

    items: Annotated[tuple[NodeRow, ...], "nodes of this page, by name"]
    total: Annotated[int, "how many nodes there are"]
    offset: Annotated[int, "how many of them come before this page"]
    limit: Annotated[int, "the most that a page of this size has"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecasts:
    """A page of forecasts, of the jobs that `/jobs` gives for the same question."""

    items: Annotated[tuple[ForecastRow, ...], "forecasts of this page"]
    total: Annotated[int, "how many jobs match"]
    offset: Annotated[int, "how many of them come before this page"]
    limit: Annotated[int, "the most that a page of this size has"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What would become of jobs, without and with a change, if no other job came."""

    at: Annotated[str, "when the cluster was looked at"]
    profile_now: Annotated[str, "profile that decides"]
    profile_then: Annotated[str, "profile that would decide"]
    nodes_added: Annotated[int, "nodes that would be added"]
    node: Annotated[str | None, "how large each of them is; null: none is added, or you may not list nodes"]
    items: Annotated[tuple[WhatIfRow, ...], "jobs: the new one first, then those whose end changes most; 200 at most"]
    total: Annotated[int, "how many jobs there are in the namespaces that are told"]
    changed: Annotated[int, "how many of them end at another time"]
    others: Annotated[WhatIfOthers, "jobs of all other namespaces"]
    until_now: Annotated[str | None, "up to when was looked, as things are, where there was no time for more"]
    until_then: Annotated[str | None, "the same, with the change"]
    problems: Annotated[tuple[str, ...], "what is wrong with the new job's annotations, which are then left out"]
    notes: Annotated[tuple[str, ...], "what the answer leaves out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a request is refused."""

    message: Annotated[str, "what is wrong"]
    where: Annotated[str, "the parameter or header it is about; empty: the request as a whole"]
    allowed: Annotated[str, "what is allowed instead; empty where that does not apply"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """What every refusal is answered with."""

    error: Annotated[Problem, "the refusal"]
