"""What a job shall hold: the annotation `target`, which the scheduling loop writes. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import orjson

from elastic_tfjob.api.fields import Fields, cut, describe
from elastic_tfjob.api.limits import MAX_PROBLEM_LENGTH, MAX_WORD
from elastic_tfjob.controller.objects.annotations import (
    TARGET_ANNOTATION,
    mine,
    read_annotation,
    shorten_reason,
)
from elastic_tfjob.controller.objects.outcomes import EXPECTS_ANNOTATION, expects_json, read_expects
from elastic_tfjob.controller.objects.size import Counts, Cpu, Nodes, read_counts, read_cpu, read_generation, read_nodes
from elastic_tfjob.scheduling.causes import CAUSES, Cause
from elastic_tfjob.scheduling.memory import Memory, readable


@dataclass(frozen=True, slots=True)
class Target:
    """What a job shall hold. No replicas: it shall wait, and `reason` says why. No nodes: kube-scheduler chooses.

    `generation` grows when `replicas` change, or a replica that runs is to go to another node. `declared` are the
    spec's replicas that the job's size follows from: an edit of them counts once the job has that size. `cause`: why it
    changes, in one word, where the sizes do not tell it; another word counts as none. `memory`: what the profile
    remembers of the job (scheduling/memory.py), which nobody else goes by. `expects`: steps per second that the job is
    expected to have then (None: not known), in an annotation of its own, `expects_json` (objects/outcomes.py).
    """

    generation: int
    replicas: Counts
    nodes: Nodes = field(default_factory=dict)
    cpu: Cpu = field(default_factory=dict)
    reason: str = ""
    declared: Counts = field(default_factory=dict)
    cause: Cause | Literal[""] = ""
    memory: Memory = field(default_factory=dict)
    expects: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        shorten_reason(self)

    @classmethod
    def parse(cls, text: str | None) -> "Target | None":
        """Read the annotation alone, which has no speed; None where there is none. Raises ValueError for
        nonsense, and nothing else."""
        return None if text is None else read_annotation("target", text, _target)

    @classmethod
    def of(cls, annotations: Mapping[str, str], uid: str, types: Collection[str]) -> "Target | None":
        """The target of the job with this uid and these replica types; None where there is none, or another job's.
        Raises ValueError for nonsense, and nothing else."""
        found = cls.parse(annotations.get(TARGET_ANNOTATION)) if mine(annotations, uid) else None
        if found is None:
            return None
        if unknown := found.replicas.keys() - set(types):
            raise ValueError(
                f"{TARGET_ANNOTATION}: replicas of {describe(min(unknown))}, which the spec does not have; "
                f"it has {cut(', '.join(sorted(types)), MAX_PROBLEM_LENGTH)}"
            )
        expects = read_expects(annotations.get(EXPECTS_ANNOTATION), found.generation)
        return replace(found, expects=expects) if expects is not None else found

    def to_json(self) -> str:
        """The annotation's text."""
        written = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "expects"}
        for name in ("cause", "memory"):
            if not written[name]:
                del written[name]
        return orjson.dumps(written).decode()

    @property
    def expects_json(self) -> str | None:
        """The text of the annotation with the speed; None where there is nothing to say."""
        return expects_json(self.generation, self.expects)


def _target(raw: Fields) -> Target:
    replicas = read_counts(raw, "replicas", required=True)
    return Target(
        generation=read_generation(raw),
        replicas=replicas,
        nodes=read_nodes(raw, replicas),
        cpu=read_cpu(raw),
        reason=raw.text("reason"),
        declared=read_counts(raw, "declared"),
        cause=_cause(raw),
        memory=readable(raw.any("memory")),
    )


def _cause(raw: Fields) -> Cause | Literal[""]:
    """It labels metrics, and a newer operator, or anybody else, may have written another word."""
    found = raw.text("cause", MAX_WORD)
    return next((cause for cause in CAUSES if cause == found), "")
