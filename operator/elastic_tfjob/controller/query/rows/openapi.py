"""The OpenAPI document, generated from the types of the answers. Pure."""

import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import version
from typing import Annotated, Any, Final

from elastic_tfjob.api.reading import MAX_WORD
from elastic_tfjob.api.tfjob import GROUP, KIND
from elastic_tfjob.api.tfjob import VERSION as GROUP_VERSION
from elastic_tfjob.api.words import MAX_ADDED_NODES, REASON_CODES
from elastic_tfjob.controller.query.rows.jobs import JOB_STATES, JobRow, LiveRow, QueueRow
from elastic_tfjob.controller.query.rows.listing import (
    MAX_FILTER,
    MAX_OFFSET,
    MAX_PAGE,
    NAMES,
    PAGE,
    SORTED_BY,
    NodeRow,
    TeamRow,
)
from elastic_tfjob.controller.query.rows.timeline import Happening, Size
from elastic_tfjob.controller.query.rows.what_if import ForecastRow, WhatIfOthers, WhatIfRow
from elastic_tfjob.scheduling.profiles import all_profiles

__all__ = [
    "LISTED",
    "PAGED",
    "PREFIX",
    "QUEUED",
    "ROUTES",
    "STREAM",
    "WHAT_IF",
    "Error",
    "ForecastList",
    "JobDetail",
    "JobList",
    "NodeList",
    "Problem",
    "QueueList",
    "Route",
    "TeamList",
    "WhatIf",
    "document",
]

# -- Types of the answers ----------------------------------------------------------------------------------------------
# The document below is generated from these types; server.py fills them.


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """A page of jobs."""

    items: Annotated[tuple[JobRow, ...], "jobs on this page"]
    total: Annotated[int, "number of matching jobs"]
    offset: Annotated[int, "rows before this page"]
    limit: Annotated[int, "maximum rows of this page"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail:
    """One job with its forecast and timeline."""

    job: Annotated[JobRow, "the job"]
    position: Annotated[int | None, "place in the queue, if the job waits"]
    forecast: Annotated[ForecastRow, "forecast of its end"]
    live: Annotated[
        LiveRow | None, "current reports of its pods; null: no step has been made, or this replica is not the leader"
    ]
    timeline: Annotated[
        tuple[Happening, ...], "what happened and why, in chronological order; pending changes come last"
    ]
    sizes: Annotated[tuple[Size, ...], "its sizes, in chronological order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueList:
    """A page of the queue."""

    items: Annotated[tuple[QueueRow, ...], "jobs on this page"]
    total: Annotated[int, "number of waiting jobs that the user may see"]
    offset: Annotated[int, "rows before this page"]
    limit: Annotated[int, "maximum rows of this page"]
    profile: Annotated[str, "profile that defines the order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeList:
    """A page of nodes."""

    items: Annotated[tuple[NodeRow, ...], "nodes on this page, sorted by name"]
    total: Annotated[int, "number of nodes"]
    offset: Annotated[int, "rows before this page"]
    limit: Annotated[int, "maximum rows of this page"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamList:
    """A page of teams."""

    items: Annotated[tuple[TeamRow, ...], "teams on this page whose namespaces you may list, sorted by name"]
    total: Annotated[int, "number of these teams; 0: no teams are configured, or this replica is not the leader"]
    offset: Annotated[int, "rows before this page"]
    limit: Annotated[int, "maximum rows of this page"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastList:
    """A page of forecasts, for the jobs that `/jobs` returns with the same parameters."""

    items: Annotated[tuple[ForecastRow, ...], "forecasts on this page"]
    total: Annotated[int, "number of matching jobs"]
    offset: Annotated[int, "rows before this page"]
    limit: Annotated[int, "maximum rows of this page"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Forecasts for jobs without and with a change, if no other job arrives."""

    at: Annotated[str, "time of the cluster's state"]
    profile_now: Annotated[str, "current profile"]
    profile_then: Annotated[str, "profile with the change"]
    nodes_added: Annotated[int, "number of added nodes"]
    node: Annotated[str | None, "size of each added node; null: none is added, or you may not list nodes"]
    items: Annotated[tuple[WhatIfRow, ...], "jobs: the new one first, then those whose end changes most; at most 200"]
    total: Annotated[int, "number of jobs in the listed namespaces"]
    changed: Annotated[int, "number of them whose end changes"]
    others: Annotated[WhatIfOthers, "total for the jobs of all other namespaces"]
    until_now: Annotated[str | None, "end of the forecast without the change, if it was cut short; null: complete"]
    until_then: Annotated[str | None, "end of the forecast with the change, if it was cut short; null: complete"]
    problems: Annotated[tuple[str, ...], "problems of the new job's annotations, which are then ignored"]
    notes: Annotated[tuple[str, ...], "limitations of the answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a request was refused."""

    message: Annotated[str, "error message"]
    where: Annotated[str, "parameter or header with the error; empty: the whole request"]
    allowed: Annotated[str, "allowed values; empty: not applicable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """The body of every error."""

    error: Annotated[Problem, "the error"]


PREFIX: Final = "/api/v1"
STREAM: Final = f"{PREFIX}/stream"
"""Prefix of the same paths with streamed answers."""
WHAT_IF: Final = f"{PREFIX}/what-if"
"""The path of what-if questions. They have a body, so they are sent by POST; nothing is written."""
PAGED: Final = ("limit", "offset")
QUEUED: Final = ("namespace", "reason", *PAGED)
LISTED: Final = ("namespace", "state", "reason", "name", "sort", *PAGED)

_NAMES: Final = {
    name: {"type": "string", "minLength": 1, "maxLength": most, "pattern": pattern}
    for name, (pattern, most, _) in NAMES.items()
}
_FILTER: Final = {"type": "string", "maxLength": MAX_FILTER, "pattern": r"^[\x20-\x7E]*$"}


def _list_of(words: Sequence[str]) -> dict[str, Any]:
    """The schema of a comma-separated list."""
    word = f"({'|'.join(words)})"
    return {"type": "string", "maxLength": MAX_FILTER, "pattern": f"^{word}(,{word})*$"}


_PARAMETERS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "namespace": (
        "only this namespace",
        {"type": "string", "maxLength": NAMES["namespace"][1], "pattern": f"^({NAMES['namespace'][0][1:-1]})?$"},
    ),
    "name": ("only jobs whose names contain this text", _FILTER),
    "state": (
        "only jobs in these states (comma-separated)",
        _list_of(JOB_STATES),
    ),
    "reason": ("only jobs whose scheduler's reason has one of these codes (comma-separated)", _list_of(REASON_CODES)),
    "sort": (
        "field to sort by; prefix - for descending order. Jobs without the value come last",
        {"type": "string", "enum": [sign + name for name in SORTED_BY for sign in ("", "-")], "default": "name"},
    ),
    "limit": ("maximum rows of the page", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": PAGE}),
    "offset": ("rows before the page", {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET, "default": 0}),
}


@dataclass(frozen=True, slots=True)
class Route:
    """A path below PREFIX, its answer, and its query parameters."""

    path: str
    name: str
    text: str
    answer: type
    query: Sequence[str] = ()


ROUTES: Final = (
    Route("/jobs", "listJobs", "A page of jobs, filtered and sorted.", JobList, LISTED),
    Route("/jobs/{namespace}/{name}", "getJob", "One job with its timeline and forecast.", JobDetail),
    Route(
        "/queue",
        "listQueue",
        "A page of waiting jobs, in the order in which they are served, with reasons.",
        QueueList,
        QUEUED,
    ),
    Route("/nodes", "listNodes", "A page of nodes with their held, borrowed and used CPU.", NodeList, PAGED),
    Route("/teams", "listTeams", "A page of teams with their shares of the cluster.", TeamList, PAGED),
    Route("/forecasts", "listForecasts", "A page of forecasts of when jobs end.", ForecastList, LISTED),
)

_REFUSALS: Final = {
    "400": "invalid parameter or resource name",
    "401": "no token, or a token that the API server does not accept",
    "403": "you may not read this",
    "404": "the job does not exist",
    "429": "you, or other clients at your address, have too many open requests or streams",
    "503": "too many open requests, or the operator has not read all objects yet",
}


_QUANTITY: Final = {"type": "string", "maxLength": MAX_WORD, "pattern": r"^[0-9]+(\.[0-9]+)?([mkMGT]|[KMGT]i)?$"}
_QUESTION: Final[Mapping[str, Any]] = {
    "type": "object",
    "description": "The change: a new job, additional nodes, another profile, or several of these.",
    "additionalProperties": False,
    "minProperties": 1,
    "properties": {
        "job": {
            "type": "object",
            "description": "a new TFJob, as for kubectl create, in a namespace that you may list",
            "required": ["apiVersion", "kind", "metadata", "spec"],
            "properties": {
                "apiVersion": {"type": "string", "enum": [f"{GROUP}/{GROUP_VERSION}"]},
                "kind": {"type": "string", "enum": [KIND]},
                "metadata": {
                    "type": "object",
                    "required": ["name", "namespace"],
                    "properties": {
                        **_NAMES,
                        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
                        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                    },
                },
                "spec": {"type": "object", "required": ["tfReplicaSpecs"]},
            },
        },
        "add_nodes": {
            "type": "integer",
            "minimum": 0,
            "maximum": MAX_ADDED_NODES,
            "description": "number of nodes to add",
        },
        "node_cpu": {
            **_QUANTITY,
            "description": "allocatable CPU of each added node, together with node_memory; default: the most common "
            "kind of node",
        },
        "node_memory": {**_QUANTITY, "description": "allocatable memory of each added node, together with node_cpu"},
        "profile": {},  # see `_profile`
        "namespace": {**_NAMES["namespace"], "description": "list only jobs of this namespace"},
    },
}
_NO_ANSWER: Final = {
    "409": "a TFJob of this name exists already",
    "413": "the body is larger than 256 KiB",
    "415": "the body's type is not application/json",
    "422": "no forecast is possible: nodes are lent between pools, or the profile does not schedule the job",
}

_EVENTS: Final = (
    "Events: `snapshot`: the whole answer, as from the path without `/stream`; `same`: instead of `snapshot`, if "
    "Last-Event-ID is the id of the current answer; `delta`: the changed fields, where `items` is either "
    "a whole page or an object of changed rows by index; `refused`: an Error, after which the stream ends; `end`: "
    "reconnect with Last-Event-ID. If nothing changes for 15 s, a comment is sent."
)
_LAST: Final = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "id of the last received event",
    "schema": {"type": "string", "pattern": "^[0-9a-f]{24}$"},
}
_STREAMED: Final = {
    "description": "Server-sent events.",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}


def document(profiles: Iterable[str] | None = None) -> dict[str, Any]:
    """The OpenAPI 3.1 document. `profiles`: the names that a what-if question may have; None: those of this
    installation."""
    schemas: dict[str, Any] = {}
    error = _content(schemas, Error)
    paths: dict[str, Any] = {}
    for route in ROUTES:
        placed = [
            {"name": name, "in": "path", "required": True, "schema": dict(_NAMES[name])}
            for name in ("namespace", "name")
            if f"{{{name}}}" in route.path
        ]
        asked = [
            {"name": name, "in": "query", "description": _PARAMETERS[name][0], "schema": dict(_PARAMETERS[name][1])}
            for name in route.query
        ]
        refusals: dict[str, Any] = {code: {"description": text, **error} for code, text in _REFUSALS.items()}
        found: dict[str, Any] = {"200": {"description": route.text, **_content(schemas, route.answer)}}
        paths[PREFIX + route.path] = {
            "get": {
                "operationId": route.name,
                "summary": route.text,
                "parameters": [*placed, *asked],
                "responses": {**found, **refusals},
            }
        }
        paths[STREAM + route.path] = {
            "get": {
                "operationId": f"stream{route.name.removeprefix('list').removeprefix('get')}",
                "summary": f"{route.text} The answer is streamed: first all of it, then changes, as server-sent "
                "events.",
                "description": _EVENTS,
                "parameters": [*placed, *asked, _LAST],
                "responses": {"200": _STREAMED, **refusals},
            }
        }
    refused = {code: text for code, text in (_REFUSALS | _NO_ANSWER).items() if code != "404"}
    summary = "Forecasts for jobs without and with a change, if no other job arrives."
    question = {**_QUESTION, "properties": {**_QUESTION["properties"], "profile": _profile(profiles)}}
    paths[WHAT_IF] = {
        "post": {
            "operationId": "whatIf",
            "summary": f"{summary} Nothing is written.",
            "requestBody": {"required": True, "content": {"application/json": {"schema": question}}},
            "responses": {
                "200": {"description": summary, **_content(schemas, WhatIf)},
                **{code: {"description": text, **error} for code, text in sorted(refused.items())},
            },
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "elastic-tfjob query API",
            "version": version("elastic-tfjob"),
            "description": "Read-only access to the operator's information about TFJobs.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "tokenBehindProxy": {"type": "apiKey", "in": "header", "name": "X-Elastic-Tfjob-Token"},
            },
        },
        "security": [{}, {"token": []}, {"tokenBehindProxy": []}],
    }


def _profile(names: Iterable[str] | None) -> dict[str, Any]:
    """The schema of the parameter `profile`."""
    return {
        "type": "string",
        "enum": list(all_profiles() if names is None else names),
        "description": "profile with the change, with its configured parameters",
    }


def _content(schemas: dict[str, Any], kind: type) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": _schema(schemas, kind)}}}


def _schema(schemas: dict[str, Any], kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type; dataclasses become components."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        schema = _schema(schemas, arguments[0])
        return {**schema, "description": arguments[1]}
    if origin is typing.Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin in (types.UnionType, typing.Union):
        inner = [each for each in arguments if each is not types.NoneType]
        if len(inner) > 1:
            return {"anyOf": [_schema(schemas, each) for each in arguments]}
        schema = _schema(schemas, inner[0])
        if "type" not in schema:
            return {"anyOf": [schema, {"type": "null"}]}
        either = {**schema, "type": [schema["type"], "null"]}
        return {**either, "enum": [*schema["enum"], None]} if "enum" in schema else either
    if origin is tuple:
        if arguments[-1] is not Ellipsis:
            return {
                "type": "array",
                "prefixItems": [_schema(schemas, each) for each in arguments],
                "minItems": len(arguments),
                "maxItems": len(arguments),
            }
        return {"type": "array", "items": _schema(schemas, arguments[0])}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(schemas, arguments[1])}
    if is_dataclass(kind):
        return _component(schemas, typing.cast("type", kind))
    return {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[kind]}


def _component(schemas: dict[str, Any], kind: type) -> dict[str, Any]:
    if kind.__name__ not in schemas:
        schemas[kind.__name__] = {}  # ends the recursion of a type that refers to itself
        hints = typing.get_type_hints(kind, include_extras=True)
        schemas[kind.__name__] = {
            "type": "object",
            "description": " ".join((kind.__doc__ or "").split()),
            "properties": {name: _schema(schemas, hint) for name, hint in hints.items()},
            "required": [each.name for each in fields(kind)],
            "additionalProperties": False,
        }
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
