"""The size of a job: replicas per type, their nodes and CPU, as annotations have them. Pure."""

import re
from collections.abc import Mapping
from typing import Final, Literal, cast, get_args

from elastic_tfjob.api.fields import Fields, describe
from elastic_tfjob.api.limits import MAX_GENERATION, MAX_MILLICORES, MAX_NODE_NAME, MAX_REPLICAS
from elastic_tfjob.api.replica_words import counts_in_words

Counts = Mapping[str, int]
"""Replicas per type."""
Nodes = Mapping[str, tuple[str, ...]]
"""Node names per type, in the order of the replicas' indices."""
Cpu = Mapping[str, tuple[int, ...]]
"""CPU in millicores per type and replica, where it shall differ from the template's request."""
Mode = Literal["overlap", "spare", "recreate"]
_NODE_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


def words(counts: Counts) -> str:
    """`1 chief + 2 PS + 4 workers`."""
    return counts_in_words(dict(sorted(counts.items())))


def read_generation(raw: Fields, default: int | None = None) -> int:
    """Which change of size this is of, counted up."""
    return raw.whole("generation", MAX_GENERATION, default=default)


def read_slot(raw: Fields, default: int | None = None) -> int:
    """Which of its two ports a job uses."""
    return raw.whole("slot", 1, default=default)


def read_mode(raw: Fields) -> Mode:
    """How a job goes to another size."""
    return cast("Mode", raw.word("mode", get_args(Mode)))


def read_counts(raw: Fields, name: str, *, required: bool = False) -> Counts:
    """Replicas per type, of all types together no more than a job may have."""
    counts = raw.within(name)
    if counts is None:
        if required:
            raise raw.wrong(name, "an object of replicas per type")
        return {}
    found = {kind: counts.whole(kind, MAX_REPLICAS, default=0) for kind in counts.names()}
    if (total := sum(found.values())) > MAX_REPLICAS:
        raise ValueError(f"{raw.place(name)} are {total} in total; at most {MAX_REPLICAS} are allowed")
    return found


def read_nodes(raw: Fields, replicas: Counts) -> Nodes:
    """Node names per type, no more than replicas."""
    nodes = raw.within("nodes")
    if nodes is None:
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for kind in nodes.names():
        names = nodes.items(kind, replicas.get(kind, 0))
        for each in names:
            if not (isinstance(each, str) and len(each) <= MAX_NODE_NAME and _NODE_NAME.fullmatch(each)):
                raise ValueError(f"{nodes.place(kind)} has what is no node's name: {describe(each)}")
        found[kind] = tuple(names)
    return found


def read_cpu(raw: Fields) -> Cpu:
    """Millicores per type and replica. There may be more than replicas: what was granted to those of a larger size."""
    cpu = raw.within("cpu")
    if cpu is None:
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for kind in cpu.names():
        values = cpu.items(kind, MAX_REPLICAS)
        for each in values:
            if type(each) is not int or not 1 <= each <= MAX_MILLICORES:
                raise ValueError(
                    f"{cpu.place(kind)} has what is not 1 to {MAX_MILLICORES} millicores: {describe(each)}"
                )
        found[kind] = tuple(values)
    return found
