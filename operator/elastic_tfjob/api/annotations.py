"""The annotations by which a TFJob says how elastic it is.

Unknown spec fields are pruned by the CRD, so all that upstream's API does not know is said here. A wrong value never
stops a job: it is reported with what is allowed, and the job runs as if the annotation were not there.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from elastic_tfjob.api.tfjob import TFJobSpec

__all__ = ["ANNOTATIONS", "OPERATOR_ANNOTATIONS", "PREFIX", "Elasticity", "duration"]

PREFIX: Final = "elastic.kubeflow.org/"

_DURATION: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def duration(text: str) -> timedelta:
    """Read `1d2h30m10s` and its parts. Raises ValueError for anything else, an empty text included."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(text)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _positive(text: str) -> int:
    if (number := _count(text)) == 0:
        raise ValueError(text)
    return number


def _deadline(text: str) -> datetime | timedelta:
    try:
        return duration(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError(text) from None
        return moment


def _path(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text


def _one_of(*words: str) -> tuple[Callable[[str], str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return parse, " or ".join(words)


_BOOLEAN: Final = {"true": True, "false": False}
_INTEGER: Final = "a whole number from 0 up"

# Name to its parser, which raises ValueError or KeyError, and to what is allowed, in words.
ANNOTATIONS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "min-workers": (_count, _INTEGER),
    "max-workers": (_positive, "a whole number from 1 up"),
    "min-ps": (_count, _INTEGER),
    "max-ps": (_positive, "a whole number from 1 up"),
    "target-workers": (_count, _INTEGER),
    "target-ps": (_count, _INTEGER),
    "deadline": (_deadline, "a time with its zone (2026-01-31T18:00:00Z) or a duration after creation (1d12h, 90m)"),
    "total-steps": (_positive, "a whole number from 1 up"),
    "checkpoint-dir": (_path, "a path or URL that tf.io.gfile can open"),
    "rescale": _one_of("overlap", "spare", "recreate", "never"),
    "placement": _one_of("auto", "pack", "spread", "none"),
    "loanable": (_BOOLEAN.__getitem__, "true or false"),
    "estimated-duration": (duration, "a duration (1d12h, 90m, 30s)"),
    "inject": _one_of("launcher", "sidecar", "both", "none"),
}

# Written by the operator, not by users. `step` and `eta` repeat two values of `state` for kubectl's columns, which
# cannot look into JSON.
OPERATOR_ANNOTATIONS: Final = frozenset({"target", "state", "command", "step", "eta"})


@dataclass(frozen=True, slots=True)
class Elasticity:
    """What a job's annotations say, and what is wrong with them. None means that nothing was said.

    `annotated` tells that the user wrote any of them at all: a job without is treated as upstream treats it.
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
    loanable: bool = False
    estimated_duration: timedelta | None = None
    inject: str | None = None
    problems: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def parse(cls, annotations: Mapping[str, str], spec: TFJobSpec) -> "Elasticity":
        """Read a TFJob's annotations. `problems` has a line for each that is wrong or unknown; those are left out."""
        values: dict[str, Any] = {}
        problems = []
        for key, text in annotations.items():
            name = key.removeprefix(PREFIX)
            if name == key or name in OPERATOR_ANNOTATIONS:
                continue
            values["annotated"] = True
            if name not in ANNOTATIONS:
                problems.append(f"{key} is not known; there are {', '.join(sorted(ANNOTATIONS))}")
                continue
            parse, allowed = ANNOTATIONS[name]
            try:
                values[name.replace("-", "_")] = parse(text)
            except (ValueError, KeyError):
                problems.append(f"{key}: {text!r} is ignored: allowed is {allowed}")
        found = cls(**values)
        for kind, replica_type in (("workers", "Worker"), ("ps", "PS")):
            declared = spec.tf_replica_specs.get(replica_type)
            found, wrong = found._within(kind, declared.count if declared else 0)
            problems += wrong
        return replace(found, problems=tuple(problems))

    def bounds(self, replica_type: str, replicas: int) -> tuple[int, int]:
        """The least and the most replicas of a type whose spec says `replicas`."""
        low, high = {
            "Worker": (self.min_workers, self.max_workers),
            "PS": (self.min_ps, self.max_ps),
        }.get(replica_type, (None, None))
        least = replicas if low is None else low
        return least, max(replicas, least) if high is None else high

    def elastic(self, spec: TFJobSpec) -> bool:
        """Whether the job may be rescaled at all: it has somewhere to resume from, and room between its bounds."""
        if self.checkpoint_dir is None or self.rescale == "never" or spec.enable_dynamic_worker:
            return False
        bounds = (self.bounds(name, replica.count) for name, replica in spec.tf_replica_specs.items())
        return any(least < most for least, most in bounds)

    def injected(self, spec: TFJobSpec) -> str:
        """What goes into the pods: launcher, sidecar, both or none."""
        return self.inject or ("both" if self.elastic(spec) else "none")

    def asked(self, replica_type: str) -> int | None:
        """How many replicas of a type a person asks for."""
        return {"Worker": self.target_workers, "PS": self.target_ps}.get(replica_type)

    def _within(self, kind: str, replicas: int) -> tuple["Elasticity", list[str]]:
        """Without bounds that exclude each other, or a target outside of them."""
        low, high, target = f"min_{kind}", f"max_{kind}", f"target_{kind}"
        least = getattr(self, low) if getattr(self, low) is not None else replicas
        most = getattr(self, high) if getattr(self, high) is not None else max(replicas, least)
        if least > most:
            text = f"{PREFIX}min-{kind} {least} is above max-{kind} {most} (default: {replicas}): both are ignored"
            neither: dict[str, Any] = {low: None, high: None, target: None}
            return replace(self, **neither), [text]
        wanted = getattr(self, target)
        if wanted is not None and not least <= wanted <= most:
            text = f"{PREFIX}target-{kind}: {wanted} is ignored: allowed is {least} to {most}"
            without: dict[str, Any] = {target: None}
            return replace(self, **without), [text]
        return self, []
