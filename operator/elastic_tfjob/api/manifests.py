"""Manifest files, read exactly as kubectl reads them. Pure.

kubectl reads YAML with go-yaml v2 and converts it to JSON (sigs.k8s.io/yaml): a date stays a string, `yes` is true,
`0o17` is 15, `1e3` is 1000, a numeric key becomes a string, and merge keys (`<<`) apply in their order. The result is
bounded for any text, because aliases and merge keys count with their whole content."""

import base64
import json
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from elastic_tfjob.api.reading import cut, describe

__all__ = ["Manifest", "as_text", "manifests"]

_DEEPEST: Final = 64
_VALUES: Final = 100_000
_TAG: Final = "tag:yaml.org,2002:"
_PLAIN: Final = "plain"
"""Tag of a scalar without quotes or an explicit tag; its type depends on its text."""

_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_NO_NUMBER: Final = re.compile(r"[+-]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WHOLE: Final = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|0[0-7]*|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LONGEST_NUMBER: Final = 400
_SEPARATOR: Final = "---"


@dataclass(frozen=True, slots=True)
class Manifest:
    """One document of a file. `text`: its original text. `value`: its JSON as kubectl sends it. `notes`: likely
    mistakes that kubectl accepts silently, such as duplicate keys."""

    text: str
    value: Any
    notes: tuple[str, ...] = ()


def manifests(text: str) -> list[Manifest]:
    """The documents of a file as `kubectl create -f` reads it: YAML documents, or consecutive JSON objects. Empty
    documents are skipped. Raises only ValueError, for input that kubectl refuses or that is deeper or larger than any
    Kubernetes object."""
    found: list[Manifest] = []
    if text.lstrip().startswith("{"):
        found, text = _json_objects(text)
    for part in _parts(text):
        reader = _Reader()
        try:
            value = reader.read(part)
        except RecursionError:
            raise ValueError("not YAML: nested too deeply") from None
        except yaml.YAMLError as error:
            raise ValueError(f"not YAML: {cut(' '.join(str(error).split()))}") from error
        if value is not None:
            found.append(Manifest(part, value, tuple(reader.notes)))
    return found


def as_text(value: object) -> str:
    """A JSON value as YAML that every YAML reader, including kubectl, reads as the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)


def _parts(text: str) -> Iterator[str]:
    """The texts of the documents. Raises ValueError for a separator that kubectl refuses."""
    lines: list[str] = []
    for number, line in enumerate(re.findall(r"[^\n]*\n|[^\n]+", text), 1):
        if not line.startswith(_SEPARATOR):
            lines.append(line)
            continue
        after = line.removeprefix(_SEPARATOR).strip()
        if after and not after.startswith("#"):
            problem = f"only a comment may follow {_SEPARATOR}, not {describe(after)}"
            raise ValueError(f"not YAML: line {number}: {problem}")
        yield "".join(lines)
        lines = []
    yield "".join(lines)


def _json_objects(text: str) -> tuple[list[Manifest], str]:
    """The JSON objects at the start of a text, and the rest, which is YAML. Raises ValueError if two or more objects
    are followed by something else, since kubectl then reads only JSON."""
    found: list[Manifest] = []
    while rest := text.lstrip():
        notes: list[str] = []

        def pairs(given: list[tuple[str, Any]], notes: list[str] = notes) -> dict[str, Any]:
            made = dict(given)
            if len(made) < len(given):
                names = [name for name, _ in given]
                notes += [_twice(name) for name in made if names.count(name) > 1]
            return made

        decoder = json.JSONDecoder(object_pairs_hook=pairs, parse_constant=_no_constant)
        try:
            value, end = decoder.raw_decode(rest)
        except RecursionError:
            raise ValueError("not JSON: nested too deeply") from None
        except ValueError as error:
            if len(found) > 1:
                raise ValueError(f"not JSON: {cut(str(error))}") from None
            # It may be YAML: `{a: b}`, or JSON followed by a separator.
            return found, rest if found else text
        counted = _Reader()
        found.append(Manifest(rest[:end], counted.json(value, 0), tuple(notes)))
        text = rest[end:]
    return found, ""


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _twice(name: str) -> str:
    return f"the key {describe(name)} is given twice; the last value is used"


class _Composer(yaml.SafeLoader):
    """Composes nodes with uninterpreted scalars, and treats tabs as libyaml and go-yaml do."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else f"{_TAG}str"
        return str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]

    def scan_to_next_token(self) -> None:
        """As in PyYAML, except that a tab separates tokens where no indentation is expected: `key:<tab>value`."""
        if self.index == 0 and self.peek() == "\ufeff":
            self.forward()
        while True:
            while self.peek() == " " or (self.peek() == "\t" and (self.flow_level or not self.allow_simple_key)):
                self.forward()
            if self.peek() == "#":
                while self.peek() not in "\0\r\n\x85\u2028\u2029":
                    self.forward()
            if not self.scan_line_break():  # type: ignore[no-untyped-call]
                return
            if not self.flow_level:
                self.allow_simple_key = True

    def scan_plain_spaces(self, indent: int, start_mark: Any) -> list[str]:
        """As in PyYAML, except that a tab is white space."""
        length = 0
        while self.peek(length) in " \t":
            length += 1
        if "\t" not in (space := self.prefix(length)):
            return super().scan_plain_spaces(indent, start_mark) or []
        self.forward(length)
        if self.peek() in "\0\r\n\x85\u2028\u2029":
            return super().scan_plain_spaces(indent, start_mark) or []
        return [space]


@dataclass(slots=True)
class _Reader:
    """Turns the nodes of one document into JSON, and limits the number of values."""

    notes: list[str] = field(default_factory=list)
    _left: int = _VALUES

    def read(self, text: str) -> Any:
        """The first document of a text; like kubectl, this ignores everything after `...`."""
        composer = _Composer(text)
        try:
            composer.check_node()
            node = composer.get_node()
        finally:
            composer.dispose()
        return None if node is None else self._value(node, 0)

    def json(self, value: Any, depth: int) -> Any:
        """The same value, with numbers and strings as kubectl sends them."""
        self._count(depth)
        if isinstance(value, dict):
            return {_writable(key): self.json(part, depth + 1) for key, part in value.items()}
        if isinstance(value, list):
            return [self.json(part, depth + 1) for part in value]
        return _writable(value) if isinstance(value, str) else _number(value)

    def _count(self, depth: int) -> None:
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            raise ValueError(f"too large or nested too deeply; allowed: {_VALUES} values and a depth of {_DEEPEST}")

    def _value(self, node: yaml.Node, depth: int) -> Any:
        self._count(depth)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(each, depth + 1) for each in node.value]
        found: dict[str, Any] = {}
        if isinstance(node, yaml.MappingNode):
            self._fill(node, found, depth)
        return found

    def _fill(self, node: yaml.MappingNode, found: dict[str, Any], depth: int) -> None:
        """Set the keys of a mapping in order. A merge key replaces keys before it."""
        own: set[str] = set()
        for key, value in node.value:
            if _is_merge(key):
                before = dict(found)
                self._merge(value, found, depth)
                self.notes += [
                    f"the merge key (<<) replaces the key {describe(name)} before it; put << first"
                    for name in own
                    if found[name] != before[name]
                ]
                continue
            name = self._key(key, depth)
            if name in own:
                self.notes.append(f"line {key.start_mark.line + 1}: {_twice(name)}")
            own.add(name)
            found[name] = self._value(value, depth + 1)

    def _merge(self, node: yaml.Node, found: dict[str, Any], depth: int) -> None:
        # The first of several merged objects takes precedence.
        parts = reversed(node.value) if isinstance(node, yaml.SequenceNode) else (node,)
        for part in parts:
            self._count(depth)
            if not isinstance(part, yaml.MappingNode):
                raise ValueError(f"not YAML: {_place(part)}: a merge key (<<) needs an object or a list of objects")
            self._fill(part, found, depth + 1)

    def _key(self, node: yaml.Node, depth: int) -> str:
        self._count(depth)
        value = _interpreted(node) if isinstance(node, yaml.ScalarNode) else None
        if isinstance(value, str):
            return _writable(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            return _float_key(value)
        if value is None:
            raise ValueError(f"not YAML: {_place(node)}: null, a list or an object cannot be a key; put it in quotes")
        return str(value)


def _is_merge(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.value == "<<" and node.tag in (_PLAIN, f"{_TAG}merge")


def _place(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}, column {node.start_mark.column + 1}"


def _scalar(node: yaml.ScalarNode) -> Any:
    value = _interpreted(node)
    try:
        return _writable(value) if isinstance(value, str) else _number(value)
    except ValueError as error:
        raise ValueError(f"not YAML: {_place(node)}: {error}") from None


def _interpreted(node: yaml.ScalarNode) -> str | bool | int | float | None:
    """The value of a scalar, from its tag or its text."""
    tag, text = node.tag.removeprefix(_TAG), node.value
    if tag == "binary":
        try:
            return base64.b64decode(re.sub("[\r\n]", "", text), validate=True).decode("utf-8", "replace")
        except ValueError:
            raise ValueError(f"not YAML: {_place(node)}: !!binary is not base64") from None
    if tag not in (_PLAIN, "bool", "int", "float", "null", "timestamp"):
        return str(text)
    value = _plain(text)
    kind = {bool: "bool", int: "int", float: "float", type(None): "null"}.get(type(value), "timestamp")
    if tag == "float" and isinstance(value, int) and kind == "int":
        return float(value)
    if tag not in (_PLAIN, kind):
        raise ValueError(f"not YAML: {_place(node)}: {describe(text)} is not a !!{tag}")
    return value


def _plain(text: str) -> str | bool | int | float | None:
    """The value of a scalar without quotes. A date is a string."""
    if text in _WORDS:
        return _WORDS[text]
    if _NO_NUMBER.fullmatch(text):
        return float(text.replace(".", ""))
    if not text[0].isascii() or not (text[0].isdigit() or text[0] in "+-."):
        return text
    plain = text.replace("_", "")
    if len(plain) > _LONGEST_NUMBER:
        return text
    if _WHOLE.fullmatch(plain):
        octal = re.fullmatch(r"([+-]?)0([0-7]+)", plain)
        whole = int(f"{octal[1]}0o{octal[2]}" if octal else plain, 0)
        if -(2**63) <= whole < 2**64:
            return whole
    if _FLOAT.fullmatch(plain) and math.isfinite(number := float(plain)):
        return number
    return text


def _number(value: float | None) -> float | None:
    """A number as it arrives at the API server: a whole number becomes an integer if it fits. Raises ValueError for
    numbers that JSON does not have."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("JSON has no such number; put it in quotes")
        if value.is_integer() and abs(value) < 2**63:
            return int(value)
        return value
    if value.bit_length() > 1_000:
        raise ValueError(f"the number has {value.bit_length()} bits; put it in quotes")
    return value if -(2**63) <= value < 2**63 else float(value)


def _float_key(value: float) -> str:
    """A fractional number as a key: its shortest 32-bit text, as Go writes it."""
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    near = _as_32_bits(value)
    digits = next(digits for digits in range(17) if _as_32_bits(float(f"{near:.{digits}e}")) == near)
    exponent = int(f"{near:.{digits}e}".partition("e")[2])
    small = -4 <= exponent < 6
    return f"{near:.{max(0, digits - exponent)}f}" if small else f"{near:.{digits}e}"


def _as_32_bits(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.inf


def _writable(text: str) -> str:
    """The text with unpaired UTF-16 surrogates, which cannot be encoded, replaced by the replacement character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes a string if a reader of YAML 1.1, go-yaml or YAML 1.2 would read it as another type."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        tag = str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]
        if tag == f"{_TAG}str" and implicit[0] and not isinstance(_plain(value), str):
            return _PLAIN  # not the tag of a text: it is quoted
        return tag


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    # What has lines is easier to read as a block.
    return dumper.represent_scalar(f"{_TAG}str", text, style="|" if "\n" in text.rstrip("\n") else None)


_Dumper.add_representer(str, _represent_text)
