"""What an object has that its schema has not, as the API server says it with `fieldValidation=Strict`. Pure."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from elastic_tfjob.api.reading import cut, describe

__all__ = ["Misfit", "Strict", "without_nulls"]

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]

_ANY_KEY: Final = "*"
_ANY_ITEM: Final = "[]"
_ALIKE: Final = 0.75
# Of fields that older versions of TFJob had under another name.
_RENAMED: Final = {
    "ttlSecondsAfterFinishing": "ttlSecondsAfterFinished",
    "replicaSpecs": "tfReplicaSpecs",
    "cleanupPodPolicy": "cleanPodPolicy",
}
# At the top, or in spec, these are meant for the job itself.
_OF_METADATA: Final = ("name", "generateName", "namespace", "labels", "annotations")
# How many steps lead to a field of a replica type: spec, tfReplicaSpecs, its name, the field.
_OF_REPLICA: Final = 4
_KINDS: Final = {
    "object": "an object",
    "array": "a list",
    "string": "a text (put it in quotes)",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}


@dataclass(frozen=True, slots=True)
class Misfit:
    """A place where an object does not fit its schema. `unknown`: the schema has no such field. `right` is what to
    write instead, where that is known; `kind` the type that a value of another type should have."""

    at: Path
    text: str
    right: str = ""
    unknown: bool = False
    kind: str = ""

    @property
    def path(self) -> str:
        """The place as Kubernetes writes it."""
        return shown(self.at)


class Strict:
    """Compares objects with one structural schema (a CRD's)."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def misfits(self, value: object) -> Iterator[Misfit]:
        """Unknown fields, and values of a wrong type or form; not what CEL rules say. `value` is JSON of bounded
        depth."""
        yield from self._look(self._schema, value, ())

    @cached_property
    def _places(self) -> dict[str, list[Path]]:
        """All places that have a field of this name."""
        found: dict[str, list[Path]] = {}
        waiting: list[tuple[Schema, Path]] = [(self._schema, ())]
        while waiting:
            schema, path = waiting.pop()
            for name, inner in (schema.get("properties") or {}).items():
                if path or name not in ("status", "metadata"):
                    found.setdefault(name, []).append((*path, name))
                    waiting.append((inner, (*path, name)))
            if isinstance(inner := schema.get("additionalProperties"), Mapping):
                waiting.append((inner, (*path, _ANY_KEY)))
            if isinstance(inner := schema.get("items"), Mapping):
                waiting.append((inner, (*path, _ANY_ITEM)))
        return found

    def _look(self, schema: Schema, value: object, path: Path) -> Iterator[Misfit]:
        if schema.get("x-kubernetes-int-or-string"):
            yield from _int_or_string(schema, value, path)
            return
        kind = schema.get("type")
        if kind is None:
            return
        if not _is(kind, value):
            yield Misfit(path, f"it is {_said(value)}; allowed is {_KINDS.get(kind, kind)}", kind=kind)
        elif isinstance(value, dict):
            yield from self._object(schema, value, path)
        elif isinstance(value, list):
            for index, each in enumerate(value):
                yield from self._look(schema.get("items") or {}, each, (*path, index))
            yield from _twice(schema, value, path)
        else:
            yield from _scalar(schema, value, path)

    def _object(self, schema: Schema, value: Mapping[str, Any], path: Path) -> Iterator[Misfit]:
        known, others = schema.get("properties") or {}, schema.get("additionalProperties")
        for name, inner in value.items():
            if name in known:
                # The API server drops a null where a field is not required.
                if inner is not None or name in (schema.get("required") or ()):
                    yield from self._look(known[name], inner, (*path, name))
            elif isinstance(others, Mapping):
                if inner is not None:
                    yield from self._look(others, inner, (*path, name))
            elif not schema.get("x-kubernetes-preserve-unknown-fields"):
                right = self._right((*path, name), list(known))
                yield Misfit((*path, name), "v1 has no such field", right, unknown=True)
        for name in schema.get("required") or ():
            if name not in value:
                yield Misfit((*path, name), "it is missing, and required")

    def _right(self, path: Path, siblings: Sequence[str]) -> str:
        """Where the schema has a field: elsewhere under this name, or here under a name that is alike."""
        name = _RENAMED.get(str(path[-1]), str(path[-1]))
        if len(path) <= 2 and name in _OF_METADATA:
            return f"metadata.{name}"
        if name in siblings:
            return shown((*path[:-1], name))
        if name in self._places:
            return shown(_filled(self._nearest(name, path), path))
        if alike := _alike(name, siblings):
            return shown((*path[:-1], alike))
        # A typing error of a field that belongs elsewhere: only close by, as a pod has hundreds of names.
        near_by = [each for each, places in self._places.items() if any(_near(place, path) for place in places)]
        if alike := _alike(name, near_by):
            return shown(_filled(self._nearest(alike, path), path))
        return ""

    def _nearest(self, name: str, path: Path) -> Path:
        """The one that has the most steps in common with the path; else the replica type's, else the container's."""
        return max(
            self._places[name],
            key=lambda place: (_shared(place, path), len(place) == _OF_REPLICA, "containers" in place, -len(place)),
        )


def without_nulls(value: Any) -> Any:
    """JSON of bounded depth as the API server stores it: a null is a field that is not there."""
    if isinstance(value, Mapping):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def shown(path: Path) -> str:
    """A path as Kubernetes writes it: `spec.tfReplicaSpecs[Worker].template.spec.containers[0].image`."""
    text = ""
    for k, part in enumerate(path):
        keyed = isinstance(part, int) or (k and path[k - 1] == "tfReplicaSpecs") or not re.fullmatch(r"[\w-]+", part)
        text += f"[{part}]" if keyed and part != _ANY_ITEM else part if part == _ANY_ITEM else f".{part}"
    return cut(text.lstrip("."), 300)


def _alike(name: str, names: Sequence[str]) -> str:
    lowered = {each.lower(): each for each in names}
    wanted = name.lower().replace("_", "").replace("-", "")
    found = [wanted] if wanted in lowered else difflib.get_close_matches(wanted, lowered, 1, _ALIKE)
    return lowered[found[0]] if found else ""


def _shared(place: Path, path: Path) -> int:
    """How many steps from the root two paths have in common."""
    count = 0
    for a, b in zip(place, path, strict=False):
        if a not in (b, _ANY_KEY) and not (a == _ANY_ITEM and isinstance(b, int)):
            break
        count += 1
    return count


def _near(place: Path, path: Path) -> bool:
    """Whether a place is one step away: a field of the parent, or of an object beside."""
    shared = _shared(place, path)
    return shared >= len(path) - 2 and len(place) - shared <= 2


def _filled(place: Path, path: Path) -> Path:
    shared = _shared(place, path)
    return (*path[:shared], *("TYPE" if part == _ANY_KEY else part for part in place[shared:]))


def _twice(schema: Schema, value: Sequence[Any], path: Path) -> Iterator[Misfit]:
    """Entries of a list that have the same key, such as two containers of one name."""
    if schema.get("x-kubernetes-list-type") != "map":
        return
    defaults = (schema.get("items") or {}).get("properties") or {}
    names, seen = schema.get("x-kubernetes-list-map-keys") or (), set()
    for index, each in enumerate(value):
        if not isinstance(each, dict):
            continue
        key = tuple(str(each.get(name, defaults.get(name, {}).get("default", ""))) for name in names)
        if key in seen:
            yield Misfit((*path, index), f"{', '.join(names)} {', '.join(key)} is there twice")
        seen.add(key)


def _is(kind: str, value: object) -> bool:
    if kind in ("integer", "number"):
        return not isinstance(value, bool) and isinstance(value, int if kind == "integer" else int | float)
    return isinstance(value, {"object": dict, "array": list, "string": str, "boolean": bool}[kind])


def _said(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else describe(value)


def _int_or_string(schema: Schema, value: object, path: Path) -> Iterator[Misfit]:
    if isinstance(value, bool) or not isinstance(value, int | str):
        said = "put it in quotes" if isinstance(value, float) else "allowed is a whole number or a text"
        yield Misfit(path, f"it is {_said(value)}: {said}", kind="string" if isinstance(value, float) else "")
    elif (pattern := schema.get("pattern")) and not re.search(pattern, str(value)):
        yield Misfit(path, f"{describe(value)} is no quantity such as 500m, 2 or 4Gi")


def _scalar(schema: Schema, value: Any, path: Path) -> Iterator[Misfit]:
    if (allowed := schema.get("enum")) and value not in allowed:
        yield Misfit(path, f"it is {_said(value)}; allowed is {' or '.join(map(str, allowed))}")
    elif (most := schema.get("maxLength")) and len(value) > most:
        yield Misfit(path, f"it has {len(value)} characters; allowed are {most}")
    elif (pattern := schema.get("pattern")) and not re.search(pattern, value):
        yield Misfit(path, f"{describe(value)} does not have the form {pattern}")
