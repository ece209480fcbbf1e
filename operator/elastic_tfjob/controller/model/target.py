"""The size, nodes and CPU that a job should have: the annotation `target`, which the scheduling loop writes. Pure."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal, cast, get_args

import orjson

from elastic_tfjob.api.reading import (
    MAX_GENERATION,
    MAX_MILLICORES,
    MAX_NODE_NAME,
    MAX_PROBLEM_LENGTH,
    MAX_RATE,
    MAX_REPLICAS,
    MAX_WORD,
    Fields,
    Lenient,
    cut,
    describe,
)
from elastic_tfjob.api.words import counts_in_words
from elastic_tfjob.controller.model.annotations import TARGET_ANNOTATION, read_annotation, shorten_reason
from elastic_tfjob.scheduling.plan import CAUSES, Cause
from elastic_tfjob.scheduling.reasons import Why, read_reason
from elastic_tfjob.scheduling.snapshot import Memory, readable

_SLOWEST: Final = 1e-9
"""The smallest speed, in steps per second, that may be a divisor."""


def read_rate(raw: Fields, name: str) -> float | None:
    """Reads steps per second that may be a divisor; None for any other value."""
    found = raw.number(name, MAX_RATE)
    return found if found is not None and found >= _SLOWEST else None


def written_rate(steps_per_s: float) -> float:
    """Returns steps per second with four significant digits, as annotations have them."""
    return float(f"{steps_per_s:.4g}")


# -- The size of a job: replicas per type, their nodes and CPU, as annotations have them -------------------------------

Counts = Mapping[str, int]
"""Number of replicas per type."""
Nodes = Mapping[str, tuple[str, ...]]
"""Node names per type, in the order of the replicas' indexes."""
Cpu = Mapping[str, tuple[int, ...]]
"""CPU in millicores per type and replica, if it differs from the template's request."""
Mode = Literal["live", "overlap", "spare", "recreate"]
_NODE_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


def words(counts: Counts) -> str:
    """Returns replica counts in words, as in `1 chief + 2 PS + 4 workers`."""
    return counts_in_words(dict(sorted(counts.items())))


def read_generation(raw: Fields, default: int | None = None) -> int:
    """Reads a generation: the number of a change of size, which increases."""
    return raw.whole("generation", MAX_GENERATION, default=default)


def read_slot(raw: Fields, default: int | None = None) -> int:
    """Reads a slot: which of its two ports each program of a job uses."""
    return raw.whole("slot", 1, default=default)


def read_mode(raw: Fields) -> Mode:
    """Reads a rescaling mode."""
    return cast("Mode", raw.word("mode", get_args(Mode)))


def read_counts(raw: Fields, name: str, *, required: bool = False) -> Counts:
    """Reads replicas per type, in total no more than a job may have."""
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
    """Reads node names per type, no more than there are replicas."""
    nodes = raw.within("nodes")
    if nodes is None:
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for kind in nodes.names():
        names = nodes.items(kind, replicas.get(kind, 0))
        for each in names:
            if not (isinstance(each, str) and len(each) <= MAX_NODE_NAME and _NODE_NAME.fullmatch(each)):
                raise ValueError(f"{nodes.place(kind)}: {describe(each)} is not a node name")
        found[kind] = tuple(names)
    return found


def read_cpu(raw: Fields) -> Cpu:
    """Reads millicores per type and replica. There may be more values than replicas: they were granted to a larger
    size."""
    cpu = raw.within("cpu")
    if cpu is None:
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for kind in cpu.names():
        values = cpu.items(kind, MAX_REPLICAS)
        for each in values:
            if type(each) is not int or not 1 <= each <= MAX_MILLICORES:
                raise ValueError(f"{cpu.place(kind)}: {describe(each)} is not 1 to {MAX_MILLICORES} millicores")
        found[kind] = tuple(values)
    return found


@dataclass(frozen=True, slots=True)
class Target:
    """What a job should have. Without replicas it should wait, and `reason` says why. Without nodes kube-scheduler
    chooses them.

    `generation` increases when `replicas` change, or a running replica has to move. `declared` are the spec's replicas
    from which the job's size follows: an edit of them takes effect once the job has that size. `cause` is the cause of
    the change, in one word, if the sizes do not imply it; an unknown word counts as none. `memory` is what the profile
    remembers of the job (scheduling/snapshot.py); only the profile reads it. `orders`: the replicas per type for which
    the job asks an autoscaler for nodes. `expects` is the expected speed in steps
    per second; None: unknown. It is written together with other changes, and is no reason to write by itself.
    """

    generation: int
    replicas: Counts
    nodes: Nodes = field(default_factory=dict)
    cpu: Cpu = field(default_factory=dict)
    reason: Why = ""
    declared: Counts = field(default_factory=dict)
    cause: Cause | Literal[""] = ""
    memory: Memory = field(default_factory=dict)
    orders: Counts = field(default_factory=dict)
    expects: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        shorten_reason(self)

    @classmethod
    def parse(cls, text: str | None, uid: str | None = None) -> "Target | None":
        """Reads the annotation; None if it is missing, or belongs to a job other than the one with this uid (None: any
        job). Raises ValueError for invalid text, and nothing else."""
        return read_annotation("target", text, uid, _target)

    @classmethod
    def of(cls, annotations: Mapping[str, str], uid: str, types: Collection[str]) -> "Target | None":
        """Returns the target of the job with this uid and these replica types; None if it is missing or another job's.
        Raises ValueError for invalid text, and nothing else."""
        found = cls.parse(annotations.get(TARGET_ANNOTATION), uid)
        if found is None:
            return None
        if unknown := found.replicas.keys() - set(types):
            raise ValueError(
                f"{TARGET_ANNOTATION}: replicas of {describe(min(unknown))}, which the spec does not have; "
                f"it has {cut(', '.join(sorted(types)), MAX_PROBLEM_LENGTH)}"
            )
        return found

    def to_json(self, uid: str = "") -> str:
        """Returns the annotation's text, for the job with this uid."""
        written = {each.name: getattr(self, each.name) for each in fields(self)}
        if self.expects is not None:
            written["expects"] = written_rate(self.expects) if _SLOWEST <= self.expects <= MAX_RATE else None
        written["uid"] = uid
        for name in ("cause", "memory", "orders", "expects", "uid"):
            if not written[name]:
                del written[name]
        return orjson.dumps(written).decode()


def _target(raw: Fields) -> Target:
    replicas = read_counts(raw, "replicas", required=True)
    return Target(
        generation=read_generation(raw),
        replicas=replicas,
        nodes=read_nodes(raw, replicas),
        cpu=read_cpu(raw),
        reason=read_reason(raw),
        declared=read_counts(raw, "declared"),
        cause=_cause(raw),
        memory=readable(raw.any("memory")),
        orders=read_counts(raw, "orders"),
        expects=Lenient()(read_rate, raw, "expects"),
    )


def _cause(raw: Fields) -> Cause | Literal[""]:
    """Reads the cause; empty for an unknown word. The cause labels metrics, and a newer operator or a user may have
    written any word."""
    found = raw.text("cause", MAX_WORD)
    return next((cause for cause in CAUSES if cause == found), "")
