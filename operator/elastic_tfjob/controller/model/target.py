"""What a job shall hold: the annotation `target`, which the scheduling loop writes. Pure."""

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
"""Steps per second by which others can be divided."""


def read_rate(raw: Fields, name: str) -> float | None:
    """Steps per second that others can be divided by; None for what is none."""
    found = raw.number(name, MAX_RATE)
    return found if found is not None and found >= _SLOWEST else None


def written_rate(steps_per_s: float) -> float:
    """Steps per second as annotations have them."""
    return float(f"{steps_per_s:.4g}")


# -- The size of a job: replicas per type, their nodes and CPU, as annotations have them -------------------------------

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


@dataclass(frozen=True, slots=True)
class Target:
    """What a job shall hold. No replicas: it shall wait, and `reason` says why. No nodes: kube-scheduler chooses.

    `generation` grows when `replicas` change, or a replica that runs is to go to another node. `declared` are the
    spec's replicas that the job's size follows from: an edit of them counts once the job has that size. `cause`: why it
    changes, in one word, where the sizes do not tell it; another word counts as none. `memory`: what the profile
    remembers of the job (scheduling/snapshot.py), which nobody else goes by. `expects`: steps per second that the job
    is expected to have then; None: not known. It is written with what else is new, and is no reason to write.
    """

    generation: int
    replicas: Counts
    nodes: Nodes = field(default_factory=dict)
    cpu: Cpu = field(default_factory=dict)
    reason: Why = ""
    declared: Counts = field(default_factory=dict)
    cause: Cause | Literal[""] = ""
    memory: Memory = field(default_factory=dict)
    expects: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        shorten_reason(self)

    @classmethod
    def parse(cls, text: str | None, uid: str | None = None) -> "Target | None":
        """Read the annotation; None where there is none, or it is of another job than that with this uid (None: of any
        job). Raises ValueError for nonsense, and nothing else."""
        return read_annotation("target", text, uid, _target)

    @classmethod
    def of(cls, annotations: Mapping[str, str], uid: str, types: Collection[str]) -> "Target | None":
        """The target of the job with this uid and these replica types; None where there is none, or another job's.
        Raises ValueError for nonsense, and nothing else."""
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
        """The annotation's text, for the job with this uid."""
        written = {each.name: getattr(self, each.name) for each in fields(self)}
        if self.expects is not None:
            written["expects"] = written_rate(self.expects) if _SLOWEST <= self.expects <= MAX_RATE else None
        written["uid"] = uid
        for name in ("cause", "memory", "expects", "uid"):
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
        expects=Lenient()(read_rate, raw, "expects"),
    )


def _cause(raw: Fields) -> Cause | Literal[""]:
    """It labels metrics, and a newer operator, or anybody else, may have written another word."""
    found = raw.text("cause", MAX_WORD)
    return next((cause for cause in CAUSES if cause == found), "")
