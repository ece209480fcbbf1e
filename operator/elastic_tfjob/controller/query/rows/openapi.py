"""The OpenAPI document, written from the types of the answers. Pure."""

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import version
from typing import Annotated, Any, Final

from elastic_tfjob.api.reading import MAX_WORD
from elastic_tfjob.api.tfjob import GROUP, KIND
from elastic_tfjob.api.tfjob import VERSION as GROUP_VERSION
from elastic_tfjob.api.words import MAX_ADDED_NODES
from elastic_tfjob.controller.query.rows.jobs import JOB_STATES, JobRow, LiveRow, QueueRow
from elastic_tfjob.controller.query.rows.listing import (
    MAX_FILTER,
    MAX_OFFSET,
    MAX_PAGE,
    NAMES,
    PAGE,
    SORTED_BY,
    NodeRow,
)
from elastic_tfjob.controller.query.rows.timeline import Happening, Size
from elastic_tfjob.controller.query.rows.what_if import ForecastRow, WhatIfOthers, WhatIfRow
from elastic_tfjob.scheduling.profiles import PROFILES
from elastic_tfjob.scheduling.reasons import CODES

__all__ = [
    "LISTED",
    "PAGED",
    "PREFIX",
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
    "WhatIf",
    "document",
]

# -- The answers of the query API, as data -----------------------------------------------------------------------------
# Pure: openapi.py writes the document from these, server.py fills them.


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
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
class QueueList:
    """A page of the queue."""

    items: Annotated[tuple[QueueRow, ...], "jobs of this page"]
    total: Annotated[int, "how many jobs wait that the asker may see"]
    offset: Annotated[int, "how many of them come before this page"]
    limit: Annotated[int, "the most that a page of this size has"]
    profile: Annotated[str, "profile whose order this is"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeList:
    """A page of nodes."""

    items: Annotated[tuple[NodeRow, ...], "nodes of this page, by name"]
    total: Annotated[int, "how many nodes there are"]
    offset: Annotated[int, "how many of them come before this page"]
    limit: Annotated[int, "the most that a page of this size has"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastList:
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


PREFIX: Final = "/api/v1"
STREAM: Final = f"{PREFIX}/stream"
"""Below it are the same paths with answers that go on."""
WHAT_IF: Final = f"{PREFIX}/what-if"
"""A question that has a body, and so is posted; nothing is written for it."""
PAGED: Final = ("namespace", "limit", "offset")
LISTED: Final = ("namespace", "state", "reason", "name", "sort", "limit", "offset")

_NAMES: Final = {
    name: {"type": "string", "minLength": 1, "maxLength": most, "pattern": pattern}
    for name, (pattern, most, _) in NAMES.items()
}
_CODES: Final = "|".join(CODES)
_FILTER: Final = {"type": "string", "maxLength": MAX_FILTER, "pattern": r"^[\x20-\x7E]*$"}

_PARAMETERS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "namespace": (
        "only of this namespace",
        {"type": "string", "maxLength": NAMES["namespace"][1], "pattern": f"^({NAMES['namespace'][0][1:-1]})?$"},
    ),
    "name": ("only jobs with this text in their names", _FILTER),
    "state": (
        "only jobs in one of these states, with commas between them",
        {
            "type": "string",
            "maxLength": MAX_FILTER,
            "pattern": "^(" + "|".join(JOB_STATES) + ")(,(" + "|".join(JOB_STATES) + "))*$",
        },
    ),
    "reason": (
        "only jobs whose reason_code is one of these, with commas between them",
        {"type": "string", "maxLength": MAX_FILTER, "pattern": f"^({_CODES})(,({_CODES}))*$"},
    ),
    "sort": (
        "what to sort by; with - before it the largest comes first. A job without that value comes last",
        {"type": "string", "enum": [sign + name for name in SORTED_BY for sign in ("", "-")], "default": "name"},
    ),
    "limit": ("rows of a page", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": PAGE}),
    "offset": ("rows before the page", {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET, "default": 0}),
}


@dataclass(frozen=True, slots=True)
class Route:
    """A path below PREFIX, what it answers, and the parameters of its query."""

    path: str
    name: str
    text: str
    answer: type
    query: Sequence[str] = ()


ROUTES: Final = (
    Route("/jobs", "listJobs", "Jobs, filtered, sorted, a page of them.", JobList, LISTED),
    Route("/jobs/{namespace}/{name}", "getJob", "One job with its timeline and forecast.", JobDetail),
    Route("/queue", "listQueue", "Jobs that wait, first to serve first, and why.", QueueList, PAGED),
    Route("/nodes", "listNodes", "Nodes with the CPU held, lent and used there.", NodeList, PAGED[1:]),
    Route("/forecasts", "listForecasts", "When jobs are expected to end.", ForecastList, LISTED),
)

_REFUSALS: Final = {
    "400": "a parameter is wrong, or a name is none that anything can have",
    "401": "no token, or one that the API server does not accept",
    "403": "not allowed to read this",
    "404": "there is no such job",
    "429": "you, or others at your address, ask too much at once, or have too many streams open",
    "503": "too many requests are open, or the operator has not read all objects yet",
}


_QUANTITY: Final = {"type": "string", "maxLength": MAX_WORD, "pattern": r"^[0-9]+(\.[0-9]+)?([mkMGT]|[KMGT]i)?$"}
_QUESTION: Final[Mapping[str, Any]] = {
    "type": "object",
    "description": "What if this job were submitted, these nodes added, that profile chosen: at least one of them.",
    "additionalProperties": False,
    "minProperties": 1,
    "properties": {
        "job": {
            "type": "object",
            "description": "a TFJob that does not exist yet, as for kubectl create, in a namespace that you may list",
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
        "add_nodes": {"type": "integer", "minimum": 0, "maximum": MAX_ADDED_NODES, "description": "nodes to be added"},
        "node_cpu": {**_QUANTITY, "description": "CPU of each for pods, with node_memory; else as most nodes have"},
        "node_memory": {**_QUANTITY, "description": "memory of each for pods, with node_cpu"},
        "profile": {"type": "string", "enum": list(PROFILES), "description": "with the parameters configured for it"},
        "namespace": {**_NAMES["namespace"], "description": "tell only jobs of this namespace one by one"},
    },
}
_NO_ANSWER: Final = {
    "409": "there is a TFJob of this name already",
    "413": "the body has more than 256 KiB",
    "415": "the body is not sent as application/json",
    "422": "this cannot be foreseen: nodes are lent between pools, or the profile would not decide for the job",
}

_EVENTS: Final = (
    "Events: `snapshot`, the whole answer as the path without `/stream` gives it; `same`, in its place where "
    "Last-Event-ID is the id of just that answer; `delta`, the fields that are others now, of which `items` is either "
    "a whole page or an object of rows by their index; `refused`, an Error, after which the stream ends; `end`: come "
    "back with Last-Event-ID. A comment comes where nothing has changed for 15 s."
)
_LAST: Final = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "the id of the last event that was read",
    "schema": {"type": "string", "pattern": "^[0-9a-f]{24}$"},
}
_STREAMED: Final = {
    "description": "Server-sent events.",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}


def document() -> dict[str, Any]:
    """The document, OpenAPI 3.1."""
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
                "summary": f"{route.text} First all of it, then what changes, as server-sent events.",
                "description": _EVENTS,
                "parameters": [*placed, *asked, _LAST],
                "responses": {"200": _STREAMED, **refusals},
            }
        }
    refused = {code: text for code, text in (_REFUSALS | _NO_ANSWER).items() if code != "404"}
    told = "What would become of jobs, without and with a change, if no other job came."
    paths[WHAT_IF] = {
        "post": {
            "operationId": "whatIf",
            "summary": f"{told} Nothing is written.",
            "requestBody": {"required": True, "content": {"application/json": {"schema": _QUESTION}}},
            "responses": {
                "200": {"description": told, **_content(schemas, WhatIf)},
                **{code: {"description": text, **error} for code, text in sorted(refused.items())},
            },
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "elastic-tfjob query API",
            "version": version("elastic-tfjob"),
            "description": "What the operator knows of TFJobs. Nothing can be changed here.",
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
        (inner,) = (each for each in arguments if each is not types.NoneType)
        schema = _schema(schemas, inner)
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
        schemas[kind.__name__] = {}  # keeps its place, should it name itself
        hints = typing.get_type_hints(kind, include_extras=True)
        schemas[kind.__name__] = {
            "type": "object",
            "description": " ".join((kind.__doc__ or "").split()),
            "properties": {name: _schema(schemas, hint) for name, hint in hints.items()},
            "required": [each.name for each in fields(kind)],
            "additionalProperties": False,
        }
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
