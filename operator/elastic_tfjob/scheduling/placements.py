"""Placements: how replicas are spread over nodes, and which come or go when a size changes."""

from collections.abc import Iterator

from elastic_tfjob.scheduling.snapshot import Counts, Placement


def replicas_per_node(placement: Placement) -> Iterator[tuple[str, str, int]]:
    """(type, node, replicas of that type there), in the order of types and of their first replica."""
    for type_, names in placement.items():
        if not names:
            continue
        first = names[0]
        if names[-1] == first and names.count(first) == len(names):
            yield type_, first, len(names)
        else:
            per_node: dict[str, int] = {}
            for name in names:
                per_node[name] = per_node.get(name, 0) + 1
            for name, n in per_node.items():
                yield type_, name, n


def nodes_of(*placements: Placement) -> set[str]:
    """The nodes that any of these placements uses."""
    return {name for placement in placements for names in placement.values() for name in names}


def grown(placement: Placement, added: Placement) -> dict[str, tuple[str, ...]]:
    """The placement with the added replicas after those it has."""
    return {**placement, **{type_: placement.get(type_, ()) + names for type_, names in added.items() if names}}


def lacking(placement: Placement, counts: Counts) -> dict[str, int]:
    """How many replicas of each type the placement has too few."""
    return {t: n - len(placement.get(t, ())) for t, n in counts.items() if n > len(placement.get(t, ()))}


def shrunk(placement: Placement, counts: Counts) -> dict[str, tuple[str, ...]]:
    """The placement with only the first replicas of each type, as TFJobs remove the highest indices first."""
    return {type_: names[: counts.get(type_, 0)] for type_, names in placement.items() if counts.get(type_, 0)}


def replicas_on_nodes(placement: Placement) -> dict[str, int]:
    """How many replicas of any type each node has."""
    counts: dict[str, int] = {}
    for names in placement.values():
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    return counts


def more_replicas(one: Placement, other: Placement) -> list[str]:
    """The nodes where `one` has more replicas than `other`."""
    has, had = replicas_on_nodes(one), replicas_on_nodes(other)
    return [name for name, n in has.items() if n > had.get(name, 0)]
