"""YAML that others wrote, as data: bounded whatever is in it. Pure."""

from collections.abc import Hashable, Iterator
from typing import Any, Final

import yaml

from elastic_tfjob.api.fields import cut, describe

__all__ = ["as_json", "document", "documents"]

_DEEPEST: Final = 64
_VALUES: Final = 100_000


class _Loader(yaml.SafeLoader):
    """Without merge keys (`<<`): a few lines of them, each with the one before ten times, are more than fits into
    memory. An alias by itself is a second name, and costs nothing. Nor may a key be there twice, of which PyYAML takes
    the last one without a word."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.constructor.ConstructorError(None, None, "merge keys (<<) are not read here", node.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            left = set(found)
            for key, _ in node.value:
                if (name := self.construct_object(key, deep=True)) not in left:
                    said = f"the key {describe(name)} is there twice"
                    raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
                left.remove(name)
        return found


def documents(text: str) -> list[Any]:
    """All documents of a text. Raises ValueError, and nothing else."""
    try:
        return list(yaml.load_all(text, _Loader))
    except RecursionError:
        raise ValueError("not YAML: nested too deeply") from None
    # Beside its own errors PyYAML lets through what a value's conversion raises: AttributeError for `!!timestamp 9`.
    except Exception as error:
        raise ValueError(f"not YAML: {cut(' '.join(str(error).split()))}") from error


def document(text: str) -> Any:
    """The only document of a text; None where it has none. Raises ValueError, and nothing else."""
    found = documents(text)
    if len(found) > 1:
        raise ValueError(f"not YAML: {len(found)} documents, where one is expected")
    return found[0] if found else None


def as_json(value: object) -> Any:
    """The same value, where JSON can say it. Raises ValueError for dates and other types, keys that are no texts, and
    what is deeper or larger, each alias written out, than any object of Kubernetes."""
    left = _VALUES
    for where, each, depth in _walk(value):
        left -= 1
        if left < 0 or depth > _DEEPEST:
            raise ValueError(
                f"larger or deeper than any object: {_VALUES} values and a depth of {_DEEPEST} are allowed"
            )
        if isinstance(each, dict) and not all(isinstance(key, str) for key in each):
            raise ValueError(f"{where or 'the whole'}: a key is no text: put it in quotes")
        if not (each is None or isinstance(each, dict | list | str | bool | int | float)):
            raise ValueError(f"{where}: a {type(each).__name__}, which JSON does not have: put it in quotes")
        if isinstance(each, int) and each.bit_length() > 63:
            raise ValueError(f"{where}: a number of {each.bit_length()} bits; 63 are allowed")
    return value


def _walk(value: object) -> Iterator[tuple[str, object, int]]:
    """Each value in it, with its place and depth."""
    waiting: list[tuple[str, object, int]] = [("", value, 0)]
    while waiting:
        where, each, depth = waiting.pop()
        yield where, each, depth
        if isinstance(each, dict):
            waiting += [(cut(f"{where}.{key}".lstrip("."), 200), part, depth + 1) for key, part in each.items()]
        elif isinstance(each, list):
            waiting += [(f"{where}[{k}]", part, depth + 1) for k, part in enumerate(each)]
