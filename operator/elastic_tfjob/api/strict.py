"""Unknown fields and invalid values of an object, as the API server finds them with `fieldValidation=Strict`. Pure."""

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
# Fields that older versions of TFJob had under other names.
_RENAMED: Final = {
    "ttlSecondsAfterFinishing": "ttlSecondsAfterFinished",
    "replicaSpecs": "tfReplicaSpecs",
    "cleanupPodPolicy": "cleanPodPolicy",
}
# Fields that belong to metadata when they are found at the top or in spec.
_OF_METADATA: Final = ("name", "generateName", "namespace", "labels", "annotations")
# Length of the path to a field of a replica type: spec, tfReplicaSpecs, the type, the field.
_OF_REPLICA: Final = 4
_KINDS: Final = {
    "object": "an object",
    "array": "a list",
    "string": "a string (put it in quotes)",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}


@dataclass(frozen=True, slots=True)
class Misfit:
    """A place where an object does not match its schema. `unknown`: the schema has no such field. `right`: what to
    write instead, if known. `kind`: the required type of a value."""

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
    """Compares objects with a CRD's structural schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def misfits(self, value: object) -> Iterator[Misfit]:
        """Unknown fields and values of a wrong type or form, without CEL rules. `value` is JSON of bounded depth."""
        yield from self._look(self._schema, value, ())

    @cached_property
    def _places(self) -> dict[str, list[Path]]:
        """By name: all places with such a field."""
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
            yield Misfit(path, f"it is {_value_text(value)}; allowed: {_KINDS.get(kind, kind)}", kind=kind)
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
                # The API server drops null values of optional fields.
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
                yield Misfit((*path, name), "this required field is missing")

    def _right(self, path: Path, siblings: Sequence[str]) -> str:
        """The correct place for a field: elsewhere with this name, or here with a similar name."""
        name = _RENAMED.get(str(path[-1]), str(path[-1]))
        if len(path) <= 2 and name in _OF_METADATA:
            return f"metadata.{name}"
        if name in siblings:
            return shown((*path[:-1], name))
        if name in self._places:
            return shown(_filled(self._nearest(name, path), path))
        if alike := _alike(name, siblings):
            return shown((*path[:-1], alike))
        # A misspelled field of another place: only near places count, because a pod has hundreds of names.
        near_by = [each for each, places in self._places.items() if any(_near(place, path) for place in places)]
        if alike := _alike(name, near_by):
            return shown(_filled(self._nearest(alike, path), path))
        return ""

    def _nearest(self, name: str, path: Path) -> Path:
        """The place that shares the most steps with the path; if equal, the replica type's, then the container's."""
        return max(
            self._places[name],
            key=lambda place: (_shared(place, path), len(place) == _OF_REPLICA, "containers" in place, -len(place)),
        )


def without_nulls(value: Any) -> Any:
    """JSON of bounded depth as the API server stores it: without null fields."""
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
    """How many first steps two paths share."""
    count = 0
    for a, b in zip(place, path, strict=False):
        if a not in (b, _ANY_KEY) and not (a == _ANY_ITEM and isinstance(b, int)):
            break
        count += 1
    return count


def _near(place: Path, path: Path) -> bool:
    """Whether a place is one step away: a field of the parent or of a sibling object."""
    shared = _shared(place, path)
    return shared >= len(path) - 2 and len(place) - shared <= 2


def _filled(place: Path, path: Path) -> Path:
    shared = _shared(place, path)
    return (*path[:shared], *("TYPE" if part == _ANY_KEY else part for part in place[shared:]))


def _twice(schema: Schema, value: Sequence[Any], path: Path) -> Iterator[Misfit]:
    """List entries with the same key, such as two containers with one name."""
    if schema.get("x-kubernetes-list-type") != "map":
        return
    defaults = (schema.get("items") or {}).get("properties") or {}
    names, seen = schema.get("x-kubernetes-list-map-keys") or (), set()
    for index, each in enumerate(value):
        if not isinstance(each, dict):
            continue
        key = tuple(str(each.get(name, defaults.get(name, {}).get("default", ""))) for name in names)
        if key in seen:
            yield Misfit((*path, index), f"{', '.join(names)} {', '.join(key)} is given twice")
        seen.add(key)


def _is(kind: str, value: object) -> bool:
    if kind in ("integer", "number"):
        return not isinstance(value, bool) and isinstance(value, int if kind == "integer" else int | float)
    return isinstance(value, {"object": dict, "array": list, "string": str, "boolean": bool}[kind])


def _value_text(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else describe(value)


def _int_or_string(schema: Schema, value: object, path: Path) -> Iterator[Misfit]:
    if isinstance(value, bool) or not isinstance(value, int | str):
        hint = "put it in quotes" if isinstance(value, float) else "allowed: a whole number or a string"
        yield Misfit(path, f"it is {_value_text(value)}: {hint}", kind="string" if isinstance(value, float) else "")
    elif (pattern := schema.get("pattern")) and not re.search(pattern, str(value)):
        yield Misfit(path, f"{describe(value)} is not a quantity such as 500m, 2 or 4Gi")


def _scalar(schema: Schema, value: Any, path: Path) -> Iterator[Misfit]:
    if (allowed := schema.get("enum")) and value not in allowed:
        yield Misfit(path, f"it is {_value_text(value)}; allowed: {' or '.join(map(str, allowed))}")
    elif (most := schema.get("maxLength")) and len(value) > most:
        yield Misfit(path, f"it has {len(value)} characters; allowed: {most}")
    elif (pattern := schema.get("pattern")) and not re.search(pattern, value):
        yield Misfit(path, f"{describe(value)} does not match the pattern {pattern}")
