"""YAML of this project's own files: strict, and bounded whatever is in it. Pure.

What users give to kubectl is read by `api.manifests`.
"""

from collections.abc import Hashable
from typing import Any

import yaml

from elastic_tfjob.api.fields import cut, describe

__all__ = ["document"]


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


def document(text: str) -> Any:
    """The only document of a text; None where it has none. Raises ValueError, and nothing else."""
    try:
        found = list(yaml.load_all(text, _Loader))
    except RecursionError:
        raise ValueError("not YAML: nested too deeply") from None
    # Beside its own errors PyYAML lets through what a value's conversion raises: AttributeError for `!!timestamp 9`.
    except Exception as error:
        raise ValueError(f"not YAML: {cut(' '.join(str(error).split()))}") from error
    if len(found) > 1:
        raise ValueError(f"not YAML: {len(found)} documents, where one is expected")
    return found[0] if found else None
