"""Sizes in words, for reasons that a person reads."""

from elastic_tfjob.scheduling.snapshot import Counts


def describe_size(counts: Counts) -> str:
    """`2 PS + 4 Worker`."""
    return " + ".join(f"{n} {type_}" for type_, n in counts.items() if n) or "nothing"


def describe_change(before: Counts, after: Counts) -> str:
    """`Worker 1 -> 3, PS 1 -> 2`, or that the size stays."""
    differs = [
        f"{type_} {before.get(type_, 0)} -> {after.get(type_, 0)}"
        for type_ in dict.fromkeys((*before, *after))
        if before.get(type_, 0) != after.get(type_, 0)
    ]
    return ", ".join(differs) or f"stays {describe_size(after)}"
