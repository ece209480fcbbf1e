"""The annotations that make a TFJob elastic.

The CRD prunes unknown spec fields, so everything that upstream's API does not have is an annotation. An invalid value,
or one beyond its limit (api/reading.py), never stops a job: the annotation is ignored, and an event has the allowed
values."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from elastic_tfjob.api.quantity import is_quantity, whole
from elastic_tfjob.api.reading import (
    MAX_DURATION_S,
    MAX_LOAN_GRACE_S,
    MAX_POD_BYTES,
    MAX_REPLICAS,
    MAX_STEPS,
    MAX_VALUE,
    MAX_WORD,
    cut,
    describe,
    few,
    moment,
)
from elastic_tfjob.api.tfjob import MAX_NAME, TFJobSpec, nameable
from elastic_tfjob.api.words import REPLICA_TYPES, did_you_mean

__all__ = ["ANNOTATIONS", "OPERATOR_ANNOTATIONS", "PREFIX", "Elasticity", "duration"]

PREFIX: Final = "elastic.kubeflow.org/"
TENSORFLOW_EXITS: Final = "tensorflow-exits"
"""`done-when`: a replica is done when its container `tensorflow` has ended, even if other containers still run."""

MIB: Final = 1 << 20
_DURATION: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def duration(text: str) -> timedelta:
    """Parse a duration such as `1d2h30m10s`. Raises ValueError for anything else, including an empty text and a
    duration above MAX_DURATION_S."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(text)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    if (total := 86_400 * days + 3_600 * hours + 60 * minutes + seconds) > MAX_DURATION_S:
        raise ValueError(text)
    return timedelta(seconds=total)


def _whole(least: int, most: int) -> tuple[Callable[[str], int], str]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= (number := int(text)) <= most:
            raise ValueError(text)
        return number

    return parse, f"a whole number from {least} to {most}"


def _deadline(text: str) -> datetime | timedelta:
    try:
        return duration(text)
    except ValueError:
        return moment(text)


def _path(text: str) -> str:
    if not text.strip() or any(character in text for character in "\0*?[\\"):
        raise ValueError(text)
    return text


_MODEL: Final = re.compile(rf"[A-Za-z0-9](?:[-A-Za-z0-9_.]{{0,{MAX_WORD - 2}}}[A-Za-z0-9])?")


def _model(text: str) -> str:
    if not _MODEL.fullmatch(text):
        raise ValueError(text)
    return text


_OF_TYPES: Final = {name.lower(): name for name in REPLICA_TYPES}


def _memory(text: str) -> Mapping[str, int]:
    """Bytes by replica type, or of each type under an empty name: `2Gi`, `worker=4Gi,ps=16Gi`."""
    found: dict[str, int] = {}
    for part in text.split(","):
        word, _, amount = part.rpartition("=")
        name = _OF_TYPES[word.strip().lower()] if word or "=" in part else ""
        if name in found or (not name and "," in text) or not is_quantity(amount := amount.strip()):
            raise ValueError(text)
        found[name] = whole(amount)
    if not all(MIB <= each <= MAX_POD_BYTES for each in found.values()):
        raise ValueError(text)
    return found


def _one_of(*words: str) -> tuple[Callable[[str], str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return parse, " or ".join(words)


_BOOLEAN: Final = {"true": True, "false": False}
_LONGEST: Final = f"up to {MAX_DURATION_S // 86_400}d"

# By name: the parser, which raises ValueError or KeyError, and the allowed values in words.
ANNOTATIONS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "min-workers": _whole(0, MAX_REPLICAS),
    "max-workers": _whole(1, MAX_REPLICAS),
    "min-ps": _whole(0, MAX_REPLICAS),
    "max-ps": _whole(1, MAX_REPLICAS),
    "target-workers": _whole(0, MAX_REPLICAS),
    "target-ps": _whole(0, MAX_REPLICAS),
    "deadline": (
        _deadline,
        f"a time with its zone (2026-01-31T18:00:00Z) or a duration after creation (1d12h, 90m), {_LONGEST}",
    ),
    "total-steps": _whole(1, MAX_STEPS),
    "checkpoint-dir": (_path, "a path or URL for tf.io.gfile, without * ? [ and \\"),
    "rescale": _one_of("live", "overlap", "spare", "recreate", "never"),
    "durable-switch": (_BOOLEAN.__getitem__, "true or false"),
    "placement": _one_of("auto", "none"),
    "model": (
        _model,
        f"a name of up to {MAX_WORD} letters, digits, - _ . that starts and ends with a letter or digit",
    ),
    "loanable": (_BOOLEAN.__getitem__, "true or false"),
    "estimated-duration": (duration, f"a duration (1d12h, 90m, 30s), {_LONGEST}"),
    "inject": _one_of("launcher", "sidecar", "both", "none"),
    "done-when": _one_of("pod-ends", TENSORFLOW_EXITS),
    "max-memory": (_memory, "memory of a replica, from 1Mi to 64Ti: 2Gi, or by type worker=4Gi,ps=16Gi"),
}

_BOUNDS: Final = ("min_workers", "max_workers", "target_workers", "min_ps", "max_ps", "target_ps")
OPERATOR_ANNOTATIONS: Final = frozenset(
    {"target", "state", "record", "step", "eta", "notices", "verdict", "slack", "growth", "jobset-spec", "command"}
)
"""Written by the operator, not by users: on TFJobs, and `command` on pods. `step` and `eta` repeat two values of
`state`, `verdict` and `slack` two of `notices`, for kubectl's columns, which cannot look into JSON."""


def _ends_slowly(spec: TFJobSpec) -> str:
    """A replica type whose pods may end too slowly for a lent node, in words; empty if there is none."""
    for name, replica in spec.tf_replica_specs.items():
        grace_s = (replica.template.get("spec") or {}).get("terminationGracePeriodSeconds")
        if isinstance(grace_s, int) and grace_s > MAX_LOAN_GRACE_S:
            return f"terminationGracePeriodSeconds of {cut(name, MAX_WORD)} is {grace_s}"
    return ""


@dataclass(frozen=True, slots=True)
class Elasticity:
    """The values of a job's annotations, and the problems with them. None: the annotation is not set.

    `annotated`: the user set at least one of them. A job without any is handled as upstream handles it.
    """

    annotated: bool = field(default=False, compare=False)

    min_workers: int | None = None
    max_workers: int | None = None
    min_ps: int | None = None
    max_ps: int | None = None
    target_workers: int | None = None
    target_ps: int | None = None
    deadline: datetime | timedelta | None = None
    total_steps: int | None = None
    checkpoint_dir: str | None = None
    rescale: str | None = None
    placement: str = "auto"
    estimated_duration: timedelta | None = None
    loanable: bool = False
    model: str | None = None
    inject: str | None = None
    done_when: str = "pod-ends"
    durable_switch: bool = False
    max_memory: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def parse(cls, annotations: Mapping[str, str], spec: TFJobSpec, job: str = "") -> "Elasticity":
        """Read the annotations of a TFJob, whatever their content. Invalid and unknown annotations are ignored;
        `problems` has a line for each, up to MAX_PROBLEMS, and one for the rest. `job` is the TFJob's name, which
        limits the bounds, since a replica's name must not be too long (empty: no such limit)."""
        values: dict[str, Any] = {}
        problems = []
        for key, text in annotations.items():
            name = key.removeprefix(PREFIX)
            if name == key or name in OPERATOR_ANNOTATIONS:
                continue
            values["annotated"] = True
            if name not in ANNOTATIONS:
                guess = did_you_mean(name, ANNOTATIONS)
                problems.append(f"{key} is not known; allowed: {', '.join(sorted(ANNOTATIONS))}.{guess}".rstrip("."))
                continue
            parse, allowed = ANNOTATIONS[name]
            if len(text) > MAX_VALUE:
                problems.append(f"{key} is ignored: it has {len(text)} characters; allowed: {MAX_VALUE}")
                continue
            try:
                values[name.replace("-", "_")] = parse(text)
            except (ValueError, KeyError):
                problems.append(f"{key}: {describe(text)} is ignored; allowed: {allowed}")
        elasticity = cls(**values)
        if elasticity.loanable and not elasticity.stoppable(spec):
            problems.append(
                f"{PREFIX}loanable: 'true' is ignored: the job must be able to leave a lent node, "
                f"so it needs the annotation {PREFIX}checkpoint-dir, and rescale must not be never"
            )
            elasticity = replace(elasticity, loanable=False)
        if elasticity.loanable and (slow := _ends_slowly(spec)):
            problems.append(
                f"{PREFIX}loanable: 'true' is ignored: the job must leave a lent node quickly, but {slow}; "
                f"allowed: up to {MAX_LOAN_GRACE_S}"
            )
            elasticity = replace(elasticity, loanable=False)
        for kind, replica_type in (("workers", "Worker"), ("ps", "PS")):
            declared = spec.tf_replica_specs.get(replica_type)
            count = declared.count if declared else 0
            elasticity, wrong = elasticity._nameable(job, kind, replica_type, count)
            problems += wrong
            elasticity, wrong = elasticity._within(kind, count)
            problems += wrong
        elasticity, wrong = elasticity._together(spec)
        return replace(elasticity, problems=tuple(few([*problems, *wrong, *elasticity._idle(spec)])))

    def deadline_s(self, created_s: float) -> float | None:
        """The deadline as Unix time, for a job created at `created_s`; None: no deadline."""
        if isinstance(self.deadline, timedelta):
            return created_s + self.deadline.total_seconds()
        return None if self.deadline is None else self.deadline.timestamp()

    def bounds(self, replica_type: str, replicas: int) -> tuple[int, int]:
        """The minimum and maximum replicas of a type whose spec has `replicas`."""
        low, high = {
            "Worker": (self.min_workers, self.max_workers),
            "PS": (self.min_ps, self.max_ps),
        }.get(replica_type, (None, None))
        least = replicas if low is None else low
        return least, max(replicas, least) if high is None else high

    def stoppable(self, spec: TFJobSpec) -> bool:
        """Whether all of the job's pods may be stopped and recreated later, because it can restore a checkpoint."""
        return self.checkpoint_dir is not None and self.rescale != "never" and not spec.enable_dynamic_worker

    def elastic(self, spec: TFJobSpec) -> bool:
        """Whether the job may be rescaled: it is stoppable, and its bounds differ."""
        if not self.stoppable(spec):
            return False
        bounds = (self.bounds(name, replica.count) for name, replica in spec.tf_replica_specs.items())
        return any(least < most for least, most in bounds)

    def injected(self, spec: TFJobSpec) -> str:
        """What is injected into the pods: launcher, sidecar, both or none."""
        return self.inject or ("both" if self.stoppable(spec) else "none")

    def reports(self, spec: TFJobSpec) -> bool:
        """Whether an exporter in the pods reports the job's progress."""
        return self.injected(spec) in ("sidecar", "both")

    def asked(self, replica_type: str) -> int | None:
        """The number of replicas of a type that a person requests."""
        return {"Worker": self.target_workers, "PS": self.target_ps}.get(replica_type)

    def most_memory(self, replica_type: str) -> int | None:
        """The bytes up to which the operator may raise a replica's memory; None: it is never changed."""
        return self.max_memory.get(replica_type, self.max_memory.get(""))

    def _nameable(self, job: str, kind: str, replica_type: str, replicas: int) -> tuple["Elasticity", list[str]]:
        """Limit the bounds so that all replicas can have a name. The size in the spec is not limited."""
        most = self.bounds(replica_type, replicas)[1]
        limit = max(nameable(job, replica_type), replicas)
        if not job or most <= limit:
            return self, []
        name = f"{job}-{replica_type.lower()}-{limit}"
        text = (
            f"{PREFIX}max-{kind}: {most} is reduced to {limit}: {name}, the next pod and Service, "
            f"would have {len(name)} characters; allowed: {MAX_NAME}"
        )
        least = getattr(self, f"min_{kind}")
        cut: dict[str, Any] = {f"max_{kind}": limit, f"min_{kind}": None if least is None else min(least, limit)}
        return replace(self, **cut), [text]

    def _within(self, kind: str, replicas: int) -> tuple["Elasticity", list[str]]:
        """Ignore contradictory bounds, and a target outside the bounds."""
        low, high, target = f"min_{kind}", f"max_{kind}", f"target_{kind}"
        least = getattr(self, low) if getattr(self, low) is not None else replicas
        most = getattr(self, high) if getattr(self, high) is not None else max(replicas, least)
        if least > most:
            text = f"{PREFIX}min-{kind} {least} is above max-{kind} {most} (default: {replicas}): both are ignored"
            neither: dict[str, Any] = {low: None, high: None, target: None}
            return replace(self, **neither), [text]
        wanted = getattr(self, target)
        if wanted is not None and not least <= wanted <= most:
            text = f"{PREFIX}target-{kind}: {wanted} is ignored; allowed: {least} to {most}"
            without: dict[str, Any] = {target: None}
            return replace(self, **without), [text]
        return self, []

    def _idle(self, spec: TFJobSpec) -> Iterator[str]:
        """A problem if bounds have no effect because the job cannot be rescaled."""
        given = [PREFIX + name.replace("_", "-") for name in _BOUNDS if getattr(self, name) is not None]
        if not given or self.rescale == "never" or self.stoppable(spec):
            return
        why = (
            f"it would lose its training progress without {PREFIX}checkpoint-dir"
            if self.checkpoint_dir is None
            else "enableDynamicWorker is true"
        )
        yield (
            f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect: the job is never rescaled, "
            f"because {why}"
        )

    def _together(self, spec: TFJobSpec) -> tuple["Elasticity", list[str]]:
        """Ignore bounds whose total over all types is above the limit of a job."""
        most = sum(self.bounds(name, replica.count)[1] for name, replica in spec.tf_replica_specs.items())
        if most <= MAX_REPLICAS:
            return self, []
        text = (
            f"{PREFIX}max-workers and {PREFIX}max-ps allow {most} replicas in total, so all bounds are "
            f"ignored; allowed: {MAX_REPLICAS}"
        )
        without: dict[str, Any] = dict.fromkeys(_BOUNDS)
        return replace(self, **without), [text]
