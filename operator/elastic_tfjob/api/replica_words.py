"""How many replicas, in words: `1 chief`, `2 workers`, `3 PS`. Fields, labels and metrics keep type names."""

from collections.abc import Mapping
from typing import Final

from elastic_tfjob.api.tfjob import REPLICA_TYPES

__all__ = ["count_in_words", "counts_in_words"]

# Said letter by letter, and the same for one and for many.
_UNCHANGED: Final = "PS"


def count_in_words(count: int, replica_type: str) -> str:
    """`1 worker`, `2 workers`, `2 PS`. A name that is no replica type stays as it is."""
    if replica_type == _UNCHANGED or replica_type not in REPLICA_TYPES:
        return f"{count} {replica_type}"
    return f"{count} {replica_type.lower()}{'' if count == 1 else 's'}"


def counts_in_words(counts: Mapping[str, int]) -> str:
    """`1 chief + 2 PS + 4 workers`, in the order of `counts`; types without a replica are left out."""
    return " + ".join(count_in_words(count, name) for name, count in counts.items() if count) or "nothing"
