"""A job's state: the annotation `state`, which the reconcile loop writes. Pure."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, Final, Literal, TypeVar, cast, get_args

import orjson

from elastic_tfjob.api.reading import (
    MAX_DURATION_S,
    MAX_ENTRIES,
    MAX_GENERATION,
    MAX_PROBLEM_LENGTH,
    MAX_RATE,
    MAX_STARTS,
    MAX_STEPS,
    MAX_WORD,
    Fields,
    Lenient,
    UnknownWord,
    cut,
    describe,
    few,
)
from elastic_tfjob.controller.model.annotations import (
    STATE_ANNOTATION,
    Indexes,
    numbered,
    read_annotation,
    read_indexes,
    shorten_reason,
)
from elastic_tfjob.controller.model.injection import Injection, read_injection
from elastic_tfjob.controller.model.memory import TypeMemory, read_memory, written_memory
from elastic_tfjob.controller.model.speed_conditions import read_conditions, written_conditions
from elastic_tfjob.controller.model.target import (
    Counts,
    Cpu,
    Mode,
    Nodes,
    read_counts,
    read_cpu,
    read_generation,
    read_mode,
    read_nodes,
    read_rate,
    read_slot,
    written_rate,
)
from elastic_tfjob.scheduling.plan import CAUSES, STOPS, Cause, cause_of
from elastic_tfjob.scheduling.reasons import Why, read_reason
from elastic_tfjob.speed.history import Conditions, Size

# -- The state's record of a stop, from its request by a plan until the job resumes ------------------------------------

PREEMPT: Final[Cause] = "preempt"
"""The cause of a stop whose cause is unknown."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop of the job. `request` is the generation of the target that requests it, by which the launcher
    distinguishes requests for a checkpoint. Times are RFC 3339: `asked` is when the checkpoint was first requested,
    `ended` when the pods were first ended; empty before. `reached` is the last reported step, `saved` the step of the
    checkpoint that the program confirmed, and `lost` the number of lost steps at most; None: unknown.
    """

    request: int
    asked: str
    ended: str = ""
    reached: int | None = None
    saved: int | None = None
    lost: int | None = None
    cause: Cause = PREEMPT
    reason: Why = ""

    def __post_init__(self) -> None:
        if self.cause not in STOPS:  # it labels a metric, and a user may have written it
            object.__setattr__(self, "cause", PREEMPT)
        shorten_reason(self)


def read_stop(raw: Fields, lenient: Lenient) -> Stop:
    """Reads a stop from the annotation. Raises ValueError for an invalid request, and nothing else; other invalid
    fields count as missing."""
    return Stop(
        request=raw.whole("request", MAX_GENERATION),
        asked=lenient(raw.time, "asked", empty=True) or "",
        ended=lenient(raw.time, "ended", empty=True) or "",
        reached=lenient(raw.integer, "reached", MAX_STEPS),
        saved=lenient(raw.integer, "saved", MAX_STEPS),
        lost=lenient(raw.integer, "lost", MAX_STEPS),
        cause=cast("Cause", lenient(raw.text, "cause", MAX_WORD)),
        reason=lenient(read_reason, raw) or "",
    )


Phase = Literal["Waiting", "Stable", "Preparing", "Checkpointing", "Switching", "RollingBack", "Recreating"]
T = TypeVar("T")

_HISTORY: Final = 10
# Range of plausible measured speeds, in steps per second.
_SLOWEST, _FASTEST = 1e-9, 1e9
_SIZE: Final = re.compile(r"[0-9]{1,9}/[0-9]{1,9}")
_GENERATION: Final = re.compile(r"[0-9]{1,10}")
# Generations whose cause or outcome is read, at most.
_GENERATIONS: Final = 32
# Fields that are omitted when empty.
_ETA: Final = ("eta_earliest", "eta_latest", "eta_source")
_OPTIONAL: Final = (
    "indexes",
    "stop",
    "trained",
    "forgiven",
    "deaths",
    "injection",
    "causes",
    "outcomes",
    "uid",
    "chief_alone",
    "memory",
)
_SPARED: Final = (*_OPTIONAL, *_ETA, "starts", "prepare_s")
_SPARED_WITHIN: Final = ("indexes", "returns", "restarts", "chief_deaths", "no_room", "saved")
# Deaths of prepared programs in one mode, after which another mode is used.
MOST_DEATHS: Final = 2
_DIGEST: Final = 64


@dataclass(frozen=True, slots=True)
class Next:
    """The size that a job is changing to, and the mode. `before` is the size before the change. `indexes` are of pods.
    `returns`: the job returns to the last size that trained. `restarts` are container restarts before the size was
    prepared, then all restarts before the switch. `chief_deaths` is how often the chief's container had ended.
    `no_room`: the added pods did not fit while the pods to be removed still ran. `saved`, if the chief moves: the step
    of its newest checkpoint when the change began, then of the one with which it left.
    """

    generation: int
    slot: int
    mode: Mode
    replicas: Counts
    before: Counts
    nodes: Nodes = field(default_factory=dict)
    cpu: Cpu = field(default_factory=dict)
    reason: Why = ""
    indexes: Indexes = field(default_factory=dict)
    returns: bool = False
    restarts: int = 0
    chief_deaths: int = 0
    no_room: bool = False
    saved: int | None = None

    def __post_init__(self) -> None:
        shorten_reason(self)

    def pods(self, name: str) -> Sequence[int]:
        """Returns the indexes of a type's pods, in the order of its tasks."""
        return numbered(self.replicas, self.indexes, name)


@dataclass(frozen=True, slots=True)
class Refused:
    """A target that could not be reached, and is not tried again. `no_room` is copied from the `Next` of that
    target."""

    generation: int
    reason: Why
    at: str
    no_room: bool = False

    def __post_init__(self) -> None:
        shorten_reason(self)


@dataclass(frozen=True, slots=True)
class Trained:
    """The newest generation that has made a step. Its size is empty while the job still has that size."""

    generation: int
    replicas: Counts = field(default_factory=dict)
    nodes: Nodes = field(default_factory=dict)
    cpu: Cpu = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Deaths:
    """How often prepared programs died beside a running one, by mode, at most MOST_DEATHS each. `template` is the
    digest of their pod templates, `reason` the cause of the last death."""

    template: str
    overlap: int = 0
    spare: int = 0
    reason: str = ""

    def __post_init__(self) -> None:
        shorten_reason(self)

    def too_many(self, mode: Mode) -> bool:
        """Whether programs cannot be prepared in this mode, as too many died."""
        return {"overlap": self.overlap, "spare": self.spare}.get(mode, 0) >= MOST_DEATHS

    def count(self, mode: Mode, reason: str) -> "Deaths":
        """Returns the counts after one more death in this mode, with its reason."""
        return Deaths(
            self.template,
            min(self.overlap + (mode == "overlap"), MOST_DEATHS),
            min(self.spare + (mode == "spare"), MOST_DEATHS),
            reason,
        )

    def without(self, mode: Mode) -> "Deaths | None":
        """Returns the counts after a successful change in this mode; None if all are zero."""
        overlap = 0 if mode == "overlap" else self.overlap
        spare = 0 if mode == "spare" else self.spare
        return Deaths(self.template, overlap, spare, self.reason) if overlap or spare else None


@dataclass(frozen=True, slots=True)
class Rescaled:
    """A finished rescale. `downtime_s` is the time in seconds from the last step before it to the first step after
    it."""

    generation: int
    at: str
    before: Counts
    after: Counts
    mode: Mode
    downtime_s: float | None
    lost_steps: int | None
    reason: Why

    def __post_init__(self) -> None:
        shorten_reason(self)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Speed at a size, in steps per second: expected by its target, and measured."""

    expected: float
    measured: float

    @property
    def ratio(self) -> float:
        """The measured speed divided by the expected one."""
        return self.measured / self.expected


@dataclass(frozen=True, slots=True)
class StoredState:
    """A job's state. `slot` selects one of its programs' two ports; `since` is when the phase began (RFC 3339).

    `speeds` are the measured steps per second by size, "PS/workers", and `speed_conditions` those
    under which they were measured. `prepare_s` is how long the last added or moved replicas took
    until their programs were ready. `metrics_at` is when these figures were last updated. `eta` is
    the expected end, `eta_earliest` and `eta_latest` are its 90 % interval, and `eta_source` is the source of the
    speed. `starts` is how the chief's next program will be started, and the reason (Report.starts). `indexes` are those
    of the pods (model/annotations.py). `stop` is a planned stop, kept until the job makes steps again. `trained` is the
    newest generation that has made a step. `forgiven` is the number of container restarts that `backoffLimit` does not
    count, as a resize caused them. `deaths` counts deaths of prepared programs. `causes` and `outcomes` are by
    generation, for sizes that the state remembers: the cause that the target gave if the sizes do not imply it, and the
    expected and measured speed. `injection` is set if the job's namespace does not admit the injected containers as
    configured. `chief_alone` is the digest of pod templates with which the next chief's pod did not start beside the
    chief's. `memory` is that of replicas, by type. `problems` lists the values that were ignored when the annotation
    was read.
    """

    phase: Phase
    generation: int = 0
    slot: int = 0
    replicas: Counts = field(default_factory=dict)
    nodes: Nodes = field(default_factory=dict)
    cpu: Cpu = field(default_factory=dict)
    since: str = ""
    reason: Why = ""
    next: Next | None = None
    refused: Refused | None = None
    rescales: int = 0
    last_downtime_s: float | None = None
    history: tuple[Rescaled, ...] = ()
    step: int | None = None
    total_steps: int | None = None
    steps_per_s: float | None = None
    eta: str | None = None
    eta_earliest: str | None = None
    eta_latest: str | None = None
    eta_source: str | None = None
    speeds: Mapping[str, float] = field(default_factory=dict)
    speed_conditions: Mapping[str, Conditions] = field(default_factory=dict)
    metrics_at: str | None = None
    prepare_s: float | None = None
    starts: str | None = None
    indexes: Indexes = field(default_factory=dict)
    stop: Stop | None = None
    trained: Trained | None = None
    forgiven: int = 0
    deaths: Deaths | None = None
    injection: Injection | None = None
    causes: Mapping[int, Cause] = field(default_factory=dict)
    outcomes: Mapping[int, Outcome] = field(default_factory=dict)
    chief_alone: str = ""
    memory: Mapping[str, TypeMemory] = field(default_factory=dict)
    problems: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        shorten_reason(self)

    @classmethod
    def parse(cls, text: str | None, uid: str | None = None) -> "StoredState | None":
        """Reads the annotation; None if it is missing, or belongs to a job other than the one with this uid (None: any
        job). Phase, generation, slot, replicas, nodes and next must be valid. Every other invalid value counts as
        missing, and is listed in `problems`. Raises UnknownWord for a phase or mode that a newer operator may have
        written, ValueError for other invalid text, and nothing else."""
        return read_annotation("state", text, uid, _state)

    @classmethod
    def of(cls, annotations: Mapping[str, str], uid: str, types: Collection[str]) -> "StoredState | None":
        """Returns the state of the job with this uid and these replica types; None if it is missing or another job's.
        Raises the errors of `parse`, and nothing else. A type that an edit removed from the spec stays in the state:
        rejecting the state would discard the other types' progress, and the job would start over."""
        state = cls.parse(annotations.get(STATE_ANNOTATION), uid)
        if state is None:
            return None
        for size in (state.replicas, state.next.replicas if state.next is not None else {}):
            if size and not size.keys() & set(types):
                raise ValueError(
                    f"{STATE_ANNOTATION}: replicas of {describe(min(size))}, which the spec does not have; "
                    f"it has {cut(', '.join(sorted(types)), MAX_PROBLEM_LENGTH)}"
                )
        return state

    def to_json(self, uid: str = "") -> str:
        """Returns the annotation's text, for the job with this uid."""
        past = {change.generation for change in self.history}
        coming = {self.next.generation} if self.next is not None else set()
        written = {**_fields(self), "uid": uid}
        del written["problems"]  # only about the text that was read
        written["causes"] = {str(each): cause for each, cause in self.causes.items() if each in past | coming}
        written["outcomes"] = {
            str(each): {"expected": written_rate(outcome.expected), "measured": written_rate(outcome.measured)}
            for each, outcome in self.outcomes.items()
            if each in past or each == self.generation
        }
        written["speed_conditions"] = {size: written_conditions(found) for size, found in self.speed_conditions.items()}
        written["memory"] = written_memory(self.memory)
        for name in _SPARED:
            if not written[name]:
                del written[name]
        if self.next is not None:
            written["next"] = _sparing(_fields(self.next))
        if self.refused is not None:
            written["refused"] = _sparing(asdict(self.refused))
        if self.injection is not None:
            written["injection"] = self.injection.to_dict()
        return orjson.dumps(written).decode()

    def cause(self, change: Next | Rescaled) -> Cause:
        """Returns the cause of a resize, in one word: from its target, else implied by the two sizes."""
        after = change.replicas if isinstance(change, Next) else change.after
        stored_cause = self.causes.get(change.generation)
        return stored_cause or cause_of(change.before, after, moved=True, stopped=False)

    def pods(self, name: str) -> Sequence[int]:
        """Returns the indexes of a type's pods, in the order of its tasks."""
        return numbered(self.replicas, self.indexes, name)

    @property
    def rescaling(self) -> bool:
        """Whether the job is changing from one size to another."""
        return self.phase not in ("Waiting", "Stable")

    @property
    def way_back(self) -> Trained | None:
        """The size to return to if the present one makes no step. None if the present size has made one, no earlier
        size did, or the job has already returned to it."""
        coming, trained = self.next, self.trained
        if self.phase != "Switching" or coming is None or coming.returns or trained is None:
            return None
        return trained if trained.replicas and trained.generation != self.generation else None

    @property
    def on_trial(self) -> bool:
        """Whether a permanent pod failure does not fail the job: the job is returning to another size, may return to
        one, or does not know yet whether it has left its size. The failure is judged again afterwards."""
        returns = self.phase == "Recreating" and self.next is not None and self.next.returns
        return returns or self.phase in ("Checkpointing", "RollingBack") or self.way_back is not None

    @property
    def measured(self) -> dict[Size, tuple[float, Conditions]]:
        """`speeds` by (number of PS, number of workers), each with its conditions. Invalid sizes and speeds are left
        out."""
        found: dict[Size, tuple[float, Conditions]] = {}
        for text, rate in self.speeds.items():
            ps, _, workers = text.partition("/")
            if (
                ps.isdecimal()
                and workers.isdecimal()
                and max(len(ps), len(workers)) < 10
                and _SLOWEST < rate < _FASTEST
            ):
                found[int(ps), int(workers)] = rate, self.speed_conditions.get(text, Conditions())
        return found

    def remember(self, done: Rescaled) -> tuple[Rescaled, ...]:
        """Returns the history with one more entry, limited to the newest _HISTORY."""
        return (*self.history, done)[-_HISTORY:]


def _fields(size: StoredState | Next) -> dict[str, Any]:
    return {each.name: getattr(size, each.name) for each in fields(size)}


def _sparing(found: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a part of a state, without optional fields that are empty."""
    return {name: each for name, each in found.items() if each or name not in _SPARED_WITHIN}


def _state(raw: Fields) -> StoredState:
    """Reads a state. An unknown word is raised last, as invalid text takes precedence. Without generation and replicas,
    which every operator writes, an unknown word counts as invalid text, too."""
    unknown: list[UnknownWord] = []
    lenient = Lenient()

    def known(read: Callable[[], T], instead: T) -> T:
        try:
            return read()
        except UnknownWord as error:
            unknown.append(error)
            return instead

    phase: Phase = known(partial(_phase, raw), "Stable")
    coming = raw.within("next")
    refused, stop = lenient(raw.within, "refused"), lenient(raw.within, "stop")
    injection = lenient(raw.within, "injection")
    if coming is None and phase not in ("Waiting", "Stable"):
        raise ValueError(f"next is missing: phase {phase} needs it")
    replicas = read_counts(raw, "replicas")
    found = StoredState(
        phase=phase,
        generation=read_generation(raw, default=0),
        slot=read_slot(raw, default=0),
        replicas=replicas,
        nodes=read_nodes(raw, replicas),
        cpu=lenient(read_cpu, raw) or {},
        since=lenient(raw.time, "since", empty=True) or "",
        reason=lenient(read_reason, raw) or "",
        next=known(partial(_next, coming, lenient), None) if coming is not None else None,
        refused=lenient(_refused, refused) if refused is not None else None,
        rescales=lenient(raw.whole, "rescales", MAX_GENERATION, default=0) or 0,
        last_downtime_s=lenient(raw.number, "last_downtime_s", MAX_DURATION_S, least=None),
        history=lenient(_history, raw) or (),
        step=lenient(raw.integer, "step", MAX_STEPS),
        total_steps=lenient(raw.integer, "total_steps", MAX_STEPS),
        steps_per_s=lenient(raw.number, "steps_per_s", MAX_RATE),
        eta=lenient(raw.time, "eta"),
        eta_earliest=lenient(raw.time, "eta_earliest"),
        eta_latest=lenient(raw.time, "eta_latest"),
        eta_source=lenient(raw.text, "eta_source", MAX_WORD) or None,
        speeds=_by_size(raw, "speeds", lenient, lambda sizes, size: sizes.number(size, MAX_RATE)),
        speed_conditions=_by_size(raw, "speed_conditions", lenient, read_conditions),
        metrics_at=lenient(raw.time, "metrics_at"),
        prepare_s=lenient(raw.number, "prepare_s", MAX_DURATION_S),
        starts=lenient(raw.text, "starts", MAX_STARTS) or None,
        indexes=read_indexes(raw, replicas, lenient),
        stop=lenient(read_stop, stop, lenient) if stop is not None else None,
        trained=lenient(_trained, raw),
        forgiven=lenient(raw.whole, "forgiven", MAX_GENERATION, default=0) or 0,
        deaths=lenient(_deaths, raw),
        injection=lenient(read_injection, injection) if injection is not None else None,
        causes=_by_generation(raw, "causes", lenient, _cause),
        outcomes=_by_generation(raw, "outcomes", lenient, _outcome),
        chief_alone=lenient(raw.text, "chief_alone", _DIGEST) or "",
        memory=read_memory(raw, lenient),
    )
    if unknown:
        raise unknown[0] if raw.has("generation") and raw.has("replicas") else ValueError(str(unknown[0]))
    if lenient.problems:
        passed_over = tuple(f"{STATE_ANNOTATION}: ignored: {problem}" for problem in few(lenient.problems))
        found = replace(found, problems=passed_over)
    return found


def _phase(raw: Fields) -> Phase:
    return cast("Phase", raw.word("phase", get_args(Phase)))


def _next(raw: Fields, lenient: Lenient) -> Next:
    replicas = read_counts(raw, "replicas", required=True)
    return Next(
        generation=read_generation(raw),
        slot=read_slot(raw),
        replicas=replicas,
        before=read_counts(raw, "before", required=True),
        nodes=read_nodes(raw, replicas),
        cpu=read_cpu(raw),
        reason=read_reason(raw),
        indexes=read_indexes(raw, replicas, lenient),
        returns=raw.flag("returns") or False,
        restarts=raw.whole("restarts", MAX_GENERATION, default=0),
        chief_deaths=raw.whole("chief_deaths", MAX_GENERATION, default=0),
        no_room=raw.flag("no_room") or False,
        saved=raw.integer("saved", MAX_STEPS),
        mode=read_mode(raw),  # read last, as a newer operator may have written an unknown mode
    )


def _refused(raw: Fields) -> Refused:
    return Refused(read_generation(raw), read_reason(raw), _at(raw), raw.flag("no_room") or False)


def _trained(raw: Fields) -> Trained | None:
    if (found := raw.within("trained")) is None:
        return None
    replicas = read_counts(found, "replicas")
    return Trained(read_generation(found), replicas, read_nodes(found, replicas), read_cpu(found))


def _deaths(raw: Fields) -> Deaths | None:
    if (found := raw.within("deaths")) is None:
        return None
    return Deaths(
        found.text("template", _DIGEST),
        found.whole("overlap", MOST_DEATHS, default=0),
        found.whole("spare", MOST_DEATHS, default=0),
        found.text("reason"),
    )


def _history(raw: Fields) -> tuple[Rescaled, ...]:
    """Reads past rescales. They are only displayed, so an unreadable entry is ignored."""
    found: list[Rescaled] = []
    for each in raw.items("history"):
        with suppress(ValueError):
            found.append(_rescaled(Fields(each, "history")))
    return tuple(found[-_HISTORY:])


def _rescaled(raw: Fields) -> Rescaled:
    return Rescaled(
        generation=read_generation(raw),
        at=_at(raw),
        before=read_counts(raw, "before", required=True),
        after=read_counts(raw, "after", required=True),
        mode=read_mode(raw),
        downtime_s=raw.number("downtime_s", MAX_DURATION_S, least=None),
        lost_steps=raw.integer("lost_steps", MAX_STEPS, least=None),
        reason=read_reason(raw),
    )


def _at(raw: Fields) -> str:
    if (found := raw.time("at")) is None:
        raise raw.wrong("at", "a time")
    return found


def _by_size(raw: Fields, name: str, lenient: Lenient, read: Callable[[Fields, str], T | None]) -> dict[str, T]:
    """Reads figures by size, "PS/workers": the newest MAX_ENTRIES if there are more."""
    sizes = lenient(raw.within, name) or Fields({})

    def of(size: str) -> T | None:
        if not _SIZE.fullmatch(size):
            raise ValueError(f"{raw.place(name)}: {describe(size)} is not a size such as 2/8")
        return read(sizes, size)

    read_of = {size: lenient(of, size) for size in tuple(sizes)[-MAX_ENTRIES:]}
    return {size: value for size, value in read_of.items() if value is not None}


def _by_generation(raw: Fields, name: str, lenient: Lenient, read: Callable[[Fields, str], T | None]) -> dict[int, T]:
    """Reads figures of sizes by generation."""
    sizes = lenient(raw.within, name) or Fields({})
    generations = lenient(lambda: [each for each in sizes.names(_GENERATIONS) if _GENERATION.fullmatch(each)]) or ()
    found = {int(each): lenient(read, sizes, each) for each in generations}
    return {generation: value for generation, value in found.items() if value is not None}


def _cause(sizes: Fields, generation: str) -> Cause | None:
    """Reads a cause; None for a word that only a newer operator may know."""
    word = sizes.any(generation)
    return next((cause for cause in CAUSES if cause == word), None)


def _outcome(sizes: Fields, generation: str) -> Outcome | None:
    if (speeds := sizes.within(generation)) is None:
        return None
    expected, measured = read_rate(speeds, "expected"), read_rate(speeds, "measured")
    return Outcome(expected, measured) if expected is not None and measured is not None else None
