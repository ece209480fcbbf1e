"""An API server in memory: versions, optimistic concurrency, subresources, watches with history, garbage collection.

Stored objects are never changed in place: a write stores another one, so that answers and watch events can hand out
what is stored without copying it. Whoever gets one must not change it.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson

from campaign.clock import format_now
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Expired, Invalid, NotFound, Unavailable
from elastic_tfjob.controller.model.owned_objects import ORDER_PRIORITY_CLASS

__all__ = ["ApiServer", "Change", "Object", "Place", "place_of"]

Object = dict[str, Any]
ObjectKey = tuple[str, str]
"""Namespace and name."""

_CLUSTER_SCOPED: Final = frozenset({"nodes", "priorityclasses"})
_COLLECT_S: Final = 0.2
"""How long after its owner the garbage collector deletes an object."""


class Place(NamedTuple):
    """A request's path, read."""

    resource: str
    namespace: str
    name: str
    subresource: str


@lru_cache(maxsize=65536)
def place_of(path: str) -> Place:
    """Read `/api/v1/namespaces/default/pods/x/status` and the like."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    name = rest[1] if len(rest) > 1 else ""
    return Place(rest[0], namespace, name, rest[2] if len(rest) > 2 else "")


@dataclass(frozen=True, slots=True)
class Change:
    """One write. `old` is None for a creation, `new` is None for a removal, whose last state is `old`."""

    version: int
    at: float
    resource: str
    old: Object | None
    new: Object | None
    by: str


def _copy(body: Mapping[str, Any]) -> Object:
    """As it goes over the wire."""
    found: Object = orjson.loads(orjson.dumps(body))
    return found


def merge(old: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """RFC 7386."""
    new = dict(old)
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        elif isinstance(value, Mapping):
            before = old.get(name)
            new[name] = merge(before if isinstance(before, Mapping) else {}, value)
        else:
            new[name] = value
    return new


@lru_cache(maxsize=256)
def _selectors(labels: str, fields: str) -> tuple[tuple[str, tuple[str, ...], bool, str | None], ...]:
    found = []
    for text, prefix in ((labels, ("metadata", "labels")), (fields, ())):
        for part in filter(None, text.split(",")):
            name, equals, value = part.partition("=")
            equal = not name.endswith("!")
            name = name.rstrip("!")
            path = (*prefix, name) if prefix else tuple(name.split("."))
            found.append((part, path, equal, value.lstrip("=") if equals else None))  # None: the label exists
    return tuple(found)


@dataclass
class ApiServer:
    """All objects, and what was ever written. `observers` are called with each change, after it is stored."""

    loop: asyncio.AbstractEventLoop
    objects: dict[str, dict[ObjectKey, Object]] = field(default_factory=dict)
    history: dict[str, list[Change]] = field(default_factory=dict)
    observers: list[Callable[[Change], None]] = field(default_factory=list)
    refuses: Callable[[str, Place], str] = lambda method, place: ""
    """Why a write is not allowed (a quota, a webhook); empty where it is."""
    version: int = 0
    forgotten: int = 0
    """The version up to which history is no longer told."""
    _uids: int = 0
    _deleted_s: dict[str, float] = field(default_factory=dict)
    """By uid, when pods that end were deleted."""
    _owners: set[str] = field(default_factory=set)
    _waiting: dict[str, list[asyncio.Future[None]]] = field(default_factory=dict)

    # Reading

    def get(self, resource: str, namespace: str, name: str) -> Object | None:
        """An object, or None."""
        return self.objects.get(resource, {}).get((namespace, name))

    def all(self, resource: str) -> list[Object]:
        """All objects of a resource, of all namespaces, in the order of their names."""
        return [each for _, each in sorted(self.objects.get(resource, {}).items())]

    @staticmethod
    def matches(found: Object | None, namespace: str, params: Mapping[str, str]) -> bool:
        """Whether a list with these parameters would show the object."""
        if found is None or (namespace and found["metadata"].get("namespace") != namespace):
            return False
        for _, path, equal, wanted in _selectors(params.get("labelSelector", ""), params.get("fieldSelector", "")):
            value: Any = found
            for step in path:
                value = value.get(step) if isinstance(value, Mapping) else None
            if ((value or "") == wanted if wanted is not None else value is not None) != equal:
                return False
        return True

    def page(self, place: Place, params: Mapping[str, str]) -> Object:
        """One page."""
        found = [each for each in self.all(place.resource) if self.matches(each, place.namespace, params)]
        version = self.version
        begin = 0
        if token := params.get("continue"):
            begin, version = (int(part) for part in token.split("."))
            if version < self.forgotten:
                raise Expired(f"GET {place.resource}", 410, "Expired", "the continue token is too old")
        limit = int(params.get("limit") or len(found) or 1)
        metadata = {"resourceVersion": str(version)}
        if begin + limit < len(found):
            metadata["continue"] = f"{begin + limit}.{version}"
        return {"items": found[begin : begin + limit] or None, "metadata": metadata}

    # Writing

    def handle(self, method: str, path: str, body: Mapping[str, Any] | None, *, by: str, tried: bool = False) -> Object:
        """Carry out a write, or read one object. `tried`: what is created is not stored. Raises ApiError."""
        place = place_of(path)
        request = f"{method} {path}"
        if method != "GET" and (why := self.refuses(method, place)):
            raise Invalid(request, 403, "Forbidden", why)
        if method == "POST":
            assert body is not None
            if tried:
                return _copy(body)
            return self.create(place.resource, place.namespace, _copy(body), by=by, request=request)
        found = self.get(place.resource, place.namespace, place.name)
        if found is None:
            raise NotFound(request, 404, "NotFound", f'{place.resource} "{place.name}" not found')
        if method == "GET":
            return _copy(found) if place.resource == "leases" else found
        assert body is not None
        if method == "DELETE":
            self._check(request, found, body.get("preconditions") or {})
            return self.delete(place.resource, found, by=by, grace_s=body.get("gracePeriodSeconds"))
        self._check(request, found, body.get("metadata") or {})
        if method == "PUT":
            if place.subresource == "status":
                new = {**found, "status": _copy(body["status"])}
            else:
                new = {**_copy(body), "metadata": {**found["metadata"], **body["metadata"]}}
        elif place.subresource == "resize":
            new = self._resized(request, found, body)
        else:
            new = merge(found, body)
        new["metadata"] = {**new["metadata"], "resourceVersion": found["metadata"]["resourceVersion"]}
        return found if new == found else self.store(place.resource, found, new, by=by)

    @staticmethod
    def _check(request: str, found: Object, wanted: Mapping[str, Any]) -> None:
        for name in ("uid", "resourceVersion"):
            if wanted.get(name) and wanted[name] != found["metadata"][name]:
                message = f"{name} is {found['metadata'][name]} and not {wanted[name]}"
                raise Conflict(request, 409, "Conflict", message)

    @staticmethod
    def _resized(request: str, found: Object, body: Mapping[str, Any]) -> Object:
        if (found.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            raise Invalid(request, 422, "Invalid", "the pod has ended")
        containers = []
        for container in found["spec"]["containers"]:
            changes = [each for each in body["spec"]["containers"] if each["name"] == container["name"]]
            containers.append(merge(container, changes[0]) if changes else container)
        return {**found, "spec": {**found["spec"], "containers": containers}}

    def create(self, resource: str, namespace: str, body: Object, *, by: str = "user", request: str = "POST") -> Object:
        """Store a new object. Raises Conflict where there is one of the name."""
        metadata = dict(body["metadata"])
        name = metadata["name"]
        if self.get(resource, namespace, name) is not None:
            raise Conflict(request, 409, "AlreadyExists", f'{resource} "{name}" already exists')
        self._uids += 1
        if resource not in _CLUSTER_SCOPED:
            metadata["namespace"] = namespace
        metadata |= {"uid": f"uid-{self._uids}", "creationTimestamp": format_now(), "resourceVersion": "0"}
        body = {**body, "metadata": metadata}
        if resource == "pods":
            body["status"] = {"phase": "Pending"}
            if body["spec"].get("priorityClassName") == ORDER_PRIORITY_CLASS:  # by manifests/base/priority.yaml
                body["spec"] = {**body["spec"], "priority": -5}
        return self.store(resource, None, body, by=by)

    def delete(self, resource: str, found: Object, *, by: str = "user", grace_s: float | None = None) -> Object:
        """Delete an object; of a pod that has a node, that is the beginning of its grace period."""
        if resource == "pods" and found["spec"].get("nodeName") and grace_s != 0:
            before = found["metadata"].get("deletionGracePeriodSeconds")
            own = found["spec"].get("terminationGracePeriodSeconds", 30)
            wanted = own if grace_s is None else grace_s
            if before is not None and (grace_s is None or grace_s >= before):
                return found
            deleted_s = self.loop.time() if before is None else self._deleted_s[found["metadata"]["uid"]]
            self._deleted_s[found["metadata"]["uid"]] = deleted_s
            ends = format_now(deleted_s + wanted - self.loop.time())
            metadata = {**found["metadata"], "deletionTimestamp": ends, "deletionGracePeriodSeconds": wanted}
            return self.store(resource, found, {**found, "metadata": metadata}, by=by)
        self.store(resource, found, None, by=by)
        return found

    def update(self, resource: str, found: Object, new: Object, *, by: str) -> Object | None:
        """Store another state of an object by somebody who has just read it; None where it is gone."""
        metadata = found["metadata"]
        current = self.get(resource, metadata.get("namespace", ""), metadata["name"])
        if current is None or current["metadata"]["uid"] != metadata["uid"]:
            return None
        assert current is found, "read it again before you write it"
        return self.store(resource, found, new, by=by)

    def store(self, resource: str, old: Object | None, new: Object | None, *, by: str) -> Object:
        """Keep a write and tell of it."""
        self.version += 1
        kept = self.objects.setdefault(resource, {})
        if new is None:
            assert old is not None
            metadata = {**old["metadata"], "resourceVersion": str(self.version)}
            old = {**old, "metadata": metadata}
            del kept[metadata.get("namespace", ""), metadata["name"]]
        else:
            metadata = new["metadata"] = {**new["metadata"], "resourceVersion": str(self.version)}
            kept[metadata.get("namespace", ""), metadata["name"]] = new
        change = Change(self.version, self.loop.time(), resource, old, new, by)
        self.history.setdefault(resource, []).append(change)
        for future in self._waiting.pop(resource, ()):
            if not future.done():
                future.set_result(None)
        if new is None:
            self._owners.discard(metadata["uid"])
            self.loop.call_later(_COLLECT_S, self._collect, metadata["uid"])
        elif old is None:
            self._owners.add(metadata["uid"])
            for owner in metadata.get("ownerReferences") or ():
                if owner["uid"] not in self._owners:  # it was deleted meanwhile
                    self.loop.call_later(_COLLECT_S, self._collect, owner["uid"])
        for observer in self.observers:
            observer(change)
        return new if new is not None else metadata

    def _collect(self, owner: str) -> None:
        """Delete what belongs to an owner that is gone."""
        for resource in ("pods", "services", "podgroups", "poddisruptionbudgets"):
            for found in self.all(resource):
                owners = found["metadata"].get("ownerReferences") or ()
                if any(each["uid"] == owner for each in owners):
                    self.delete(resource, found, by="garbage collector")

    # Watching

    def changes(self, resource: str, version: int) -> list[Change]:
        """What was written to a resource after a version. Raises Expired when that is not known any more."""
        if version < self.forgotten:
            raise Expired(f"WATCH {resource}", 410, "Expired", f"too old resource version: {version}")
        known = self.history.get(resource, [])
        return known[bisect_right(known, version, key=lambda change: change.version) :]

    def changed_since(self, resource: str, version: int) -> bool:
        """Whether something was written to a resource after a version."""
        known = self.history.get(resource, [])
        return bool(known) and known[-1].version > version

    def next_change(self, resource: str) -> asyncio.Future[None]:
        """Done when something is written to a resource."""
        future: asyncio.Future[None] = self.loop.create_future()
        self._waiting.setdefault(resource, []).append(future)
        return future

    @classmethod
    def event(cls, change: Change, namespace: str, params: Mapping[str, str]) -> Object | None:
        """How a watch with these parameters tells of a change, if at all."""
        before = cls.matches(change.old, namespace, params)
        after = cls.matches(change.new, namespace, params)
        if after:
            return {"type": "MODIFIED" if before else "ADDED", "object": change.new}
        if not before:
            return None
        assert change.old is not None
        metadata = {**change.old["metadata"], "resourceVersion": str(change.version)}
        return {"type": "DELETED", "object": {**change.old, "metadata": metadata}}


def error_of(status: int, request: str) -> ApiError:
    """What the client makes of an answer that says no for no reason of the object's."""
    kind: type[ApiError] = Conflict if status == 409 else Unavailable
    return kind(request, status, "Injected", "a fault of the campaign", 1.0 if status == 429 else 0.0)
