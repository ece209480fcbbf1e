"""What the operator keeps in annotations: a job's target and state, and the command to a pod. Pure.

All of an elastic job's memory is here, so that any replica of the operator can go on with it after any crash. Each
datum has one writer: the scheduling loop writes `target`, the reconcile loop writes `state` and the pods' commands.

Users can write all of them too, or copy them from another job. So each value is read with its type and bounds
(api/limits.py), and only ValueError comes out of reading, with a message that names the key. Unknown keys are passed
over: a newer operator may have written them.
"""

import re
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any, Final, Literal, TypeVar, cast, get_args

import orjson

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.fields import Fields, cut, describe
from elastic_tfjob.api.limits import (
    MAX_ANNOTATION_BYTES,
    MAX_DURATION_S,
    MAX_ENTRIES,
    MAX_GENERATION,
    MAX_MILLICORES,
    MAX_NODE_NAME,
    MAX_PROBLEM_LENGTH,
    MAX_RATE,
    MAX_REPLICAS,
    MAX_STEPS,
    MAX_TEXT,
    MAX_WORD,
)
from elastic_tfjob.controller.objects.indexes import INDEXES_ANNOTATION, Indexes, as_text, numbered, parse, spans
from elastic_tfjob.controller.objects.stop import Stop, read_stop

__all__ = [
    "COMMAND_ANNOTATION",
    "ETA_ANNOTATION",
    "STATE_ANNOTATION",
    "STEP_ANNOTATION",
    "STOP_COMMAND",
    "TARGET_ANNOTATION",
    "UID_ANNOTATION",
    "Command",
    "Mode",
    "Next",
    "Phase",
    "Refused",
    "Rescaled",
    "State",
    "Target",
    "abridged",
    "bytes_of",
    "claim",
    "mine",
    "words",
]

TARGET_ANNOTATION: Final = f"{PREFIX}target"
STATE_ANNOTATION: Final = f"{PREFIX}state"
STEP_ANNOTATION: Final = f"{PREFIX}step"
ETA_ANNOTATION: Final = f"{PREFIX}eta"
# The job that all of these are of. Under another prefix: an older operator would call it an unknown one of the user's.
UID_ANNOTATION: Final = "elastic-tfjob.kubeflow.org/uid"

# The operator's mailbox to a pod. Written also before the operator deletes a running pod, so that whoever looks at the
# terminating pod later (another replica, the operator after a restart) knows that it did not fail.
COMMAND_ANNOTATION: Final = f"{PREFIX}command"
STOP_COMMAND: Final = '{"action":"stop"}'

Counts = Mapping[str, int]
"""Replicas per type."""
Nodes = Mapping[str, tuple[str, ...]]
"""Node names per type, in the order of the replicas' indices."""
Cpu = Mapping[str, tuple[int, ...]]
"""CPU in millicores per type and replica, where it shall differ from the template's request."""

Mode = Literal["overlap", "spare", "recreate"]
Phase = Literal["Waiting", "Stable", "Preparing", "Checkpointing", "Switching", "RollingBack", "Recreating"]

# Characters of a command that is kept as it is. One of a large job names all of its replicas.
_KEPT: Final = 1024
_DIGEST: Final = "blake2b:"

_HISTORY: Final = 10
# Steps per second between which a measurement can be believed.
_SLOWEST, _FASTEST = 1e-9, 1e9
_NODE_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_SIZE: Final = re.compile(r"[0-9]{1,9}/[0-9]{1,9}")

T = TypeVar("T")


def words(counts: Counts) -> str:
    """`1 Chief + 2 PS + 4 Worker`."""
    return " + ".join(f"{count} {name}" for name, count in sorted(counts.items()) if count) or "nothing"


@dataclass(frozen=True, slots=True)
class Target:
    """What a job shall hold. No replicas: it shall wait, and `reason` says why. No nodes: kube-scheduler chooses.

    `generation` grows when `replicas` change, or a replica that runs is to go to another node. `declared` are the
    spec's replicas when this was decided. `cause`: why all is taken from a job that runs, in one word.
    """

    generation: int
    replicas: Counts
    nodes: Nodes = field(default_factory=dict)
    cpu: Cpu = field(default_factory=dict)
    reason: str = ""
    declared: Counts = field(default_factory=dict)
    cause: str = ""

    def __post_init__(self) -> None:
        _shorten(self)

    @classmethod
    def parse(cls, text: str | None) -> "Target | None":
        """Read the annotation; None where there is none. Raises ValueError for nonsense, and nothing else."""
        return None if text is None else _read("target", text, _target)

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
        return found

    def to_json(self) -> str:
        """The annotation's text."""
        return _bare(self, "cause")


@dataclass(frozen=True, slots=True)
class Next:
    """The size that a job is on its way to, and how. `before` is the size that it comes from. `indexes` are of pods."""

    generation: int
    slot: int
    mode: Mode
    replicas: Counts
    before: Counts
    nodes: Nodes = field(default_factory=dict)
    cpu: Cpu = field(default_factory=dict)
    reason: str = ""
    indexes: Indexes = field(default_factory=dict)

    def __post_init__(self) -> None:
        _shorten(self)

    def pods(self, name: str) -> Sequence[int]:
        """The indexes of a type's pods, in the order of its tasks."""
        return numbered(self.replicas, self.indexes, name)


@dataclass(frozen=True, slots=True)
class Refused:
    """A target that could not be reached, and is not tried again."""

    generation: int
    reason: str
    at: str

    def __post_init__(self) -> None:
        _shorten(self)


@dataclass(frozen=True, slots=True)
class Rescaled:
    """A rescale that is done. `downtime_s` is from the last step before to the first step after it."""

    generation: int
    at: str
    before: Counts
    after: Counts
    mode: Mode
    downtime_s: float | None
    lost_steps: int | None
    reason: str

    def __post_init__(self) -> None:
        _shorten(self)


@dataclass(frozen=True, slots=True)
class State:
    """Where a job is. `slot` says which of its two ports it uses, `since` when the phase began (RFC 3339).

    `speeds` are the steps per second seen at each size, "PS/workers", and `speed_cpu` the millicores that a worker had
    then in the mean, where that is not what it requests; `numbers_at` is when the figures were refreshed. `indexes` are
    those of the pods (objects/indexes.py); they are in an annotation of their own, `indexes_json`.
    `stop` is the stop that a plan asked for, until the job makes steps again.
    """

    phase: Phase
    generation: int = 0
    slot: int = 0
    replicas: Counts = field(default_factory=dict)
    nodes: Nodes = field(default_factory=dict)
    cpu: Cpu = field(default_factory=dict)
    since: str = ""
    reason: str = ""
    next: Next | None = None
    refused: Refused | None = None
    rescales: int = 0
    last_downtime_s: float | None = None
    history: tuple[Rescaled, ...] = ()
    step: int | None = None
    total_steps: int | None = None
    steps_per_s: float | None = None
    eta: str | None = None
    speeds: Mapping[str, float] = field(default_factory=dict)
    speed_cpu: Mapping[str, int] = field(default_factory=dict)
    numbers_at: str | None = None
    indexes: Indexes = field(default_factory=dict)
    stop: Stop | None = None

    def __post_init__(self) -> None:
        _shorten(self)

    @classmethod
    def parse(cls, text: str | None) -> "State | None":
        """Read the annotation alone, which counts pods up to the highest index; None where there is none. Raises
        ValueError for nonsense, and nothing else."""
        return None if text is None else _read("state", text, _state)

    @classmethod
    def of(cls, annotations: Mapping[str, str], uid: str, types: Collection[str]) -> "State | None":
        """The state of the job with this uid and these replica types; None where there is none, or another job's.
        Raises ValueError for nonsense, and nothing else. A type that an edit took out of the spec stays in the state:
        without its memory of the others the job would begin anew."""
        found = cls.parse(annotations.get(STATE_ANNOTATION)) if mine(annotations, uid) else None
        if found is None:
            return None
        for size in (found.replicas, found.next.replicas if found.next is not None else {}):
            if size and not size.keys() & set(types):
                raise ValueError(
                    f"{STATE_ANNOTATION}: replicas of {describe(min(size))}, which the spec does not have; "
                    f"it has {cut(', '.join(sorted(types)), MAX_PROBLEM_LENGTH)}"
                )
        text = annotations.get(INDEXES_ANNOTATION)
        return found if text is None else _with_indexes(found, text)

    def to_json(self) -> str:
        """The annotation's text."""
        written = _written(self)
        if self.stop is None:
            del written["stop"]
        if self.next is not None:
            written["next"] = _written(self.next)
        return orjson.dumps(written).decode()

    @property
    def indexes_json(self) -> str | None:
        """The text of the annotation with the indexes; None where there is nothing to say."""
        coming = [(self.next.generation, self.next.indexes)] if self.next is not None else []
        return as_text([(self.generation, self.indexes), *coming])

    def pods(self, name: str) -> Sequence[int]:
        """The indexes of a type's pods, in the order of its tasks."""
        return numbered(self.replicas, self.indexes, name)

    @property
    def rescaling(self) -> bool:
        """On its way from one size to another."""
        return self.phase not in ("Waiting", "Stable")

    @property
    def measured(self) -> dict[tuple[int, int], tuple[float, int | None]]:
        """`speeds` by (PSs, workers), each with the CPU that a worker had then; None: what it requests. What cannot be
        a size or a speed is left out."""
        found: dict[tuple[int, int], tuple[float, int | None]] = {}
        for text, rate in self.speeds.items():
            ps, _, workers = text.partition("/")
            if (
                ps.isdecimal()
                and workers.isdecimal()
                and max(len(ps), len(workers)) < 10
                and _SLOWEST < rate < _FASTEST
            ):
                found[int(ps), int(workers)] = rate, self.speed_cpu.get(text)
        return found

    def remember(self, done: Rescaled) -> tuple[Rescaled, ...]:
        """The history with one more, of which the last ones are kept."""
        return (*self.history, done)[-_HISTORY:]


@dataclass(frozen=True, slots=True)
class Command:
    """What a pod's launcher shall do: see runtime/ for the meaning of each action. `request`: which stop a `save` is
    for."""

    generation: int
    action: Literal["prepare", "switch", "run", "save"]
    tf_config: str
    mode: Mode = "overlap"
    timeout_s: float = 120.0
    request: int | None = None

    def to_json(self) -> str:
        """The annotation's text; equal commands have equal texts."""
        return _bare(self, "request")


def _bare(found: "Target | Command", *optional: str) -> str:
    """The JSON of an annotation, without these keys where they say nothing: most have no use for them."""
    text = orjson.dumps(found).decode()
    for name in optional:
        if not getattr(found, name) and getattr(found, name) != 0:
            # In a text of JSON's own a quote would have a backslash before it.
            text = text.replace(f',"{name}":{orjson.dumps(getattr(found, name)).decode()}', "")
    return text


def abridged(command: str, begin: str = "", hashes: MutableMapping[str, blake2b] | None = None) -> str:
    """A pod's command as it is kept: one of more than 1,024 characters as its digest, and with two spaces at its end at
    most. Two commands that differ in more than further spaces are kept as two. `begin` is a first part of it that it
    has in common with others, of which `hashes` remembers the hash: a thousand long commands are soon compared then.
    """
    bare = command.rstrip()
    spaces = command[len(bare) : len(bare) + 2]
    if len(begin) + len(bare) <= _KEPT:
        short = begin + bare
        if not short.startswith(_DIGEST):  # else somebody could write what looks like another's digest
            return short + spaces
    hashed = hashes.get(begin) if hashes is not None else None
    if hashed is None:
        hashed = blake2b(begin.encode("utf-8", "surrogatepass"), digest_size=16)
        if hashes is not None:
            hashes[begin] = hashed
    hashed = hashed.copy()
    hashed.update(bare.encode("utf-8", "surrogatepass"))
    return f"{_DIGEST}{hashed.hexdigest()}{spaces}"


def bytes_of(annotations: Mapping[str, str], *, but: Collection[str]) -> int:
    """What annotations take of MAX_ANNOTATION_BYTES, without those of these names."""
    return sum(len(name.encode()) + len(text.encode()) for name, text in annotations.items() if name not in but)


def mine(annotations: Mapping[str, str], uid: str) -> bool:
    """Whether target and state are of the job with this uid, and no copy from another one (`kubectl get -o yaml`,
    changed and applied). Without a uid they were written by an operator that knew of none, and count."""
    return annotations.get(UID_ANNOTATION, uid) == uid


def claim(annotations: Mapping[str, str], uid: str) -> dict[str, str | None]:
    """What to write together with a target or state, so that it counts as of the job with this uid: the uid, and None
    for what is a copy from another job. An annotation of its own and no key of the JSON: operators before this one
    refuse a state with a key that they do not know, and would begin a running job anew after a downgrade."""
    if annotations.get(UID_ANNOTATION) == uid:
        return {}
    own = (TARGET_ANNOTATION, STATE_ANNOTATION, STEP_ANNOTATION, ETA_ANNOTATION, INDEXES_ANNOTATION)
    copied = () if mine(annotations, uid) else own
    return {UID_ANNOTATION: uid, **{name: None for name in copied if name in annotations}}


# Pod indexes


def _written(size: State | Next) -> dict[str, Any]:
    """The fields of a state as they are kept: its replicas are the pods up to the highest index."""
    found = {each.name: getattr(size, each.name) for each in fields(size) if each.name != "indexes"}
    if size.indexes:
        found["replicas"] = spans(size.replicas, size.indexes)
    return found


def _with_indexes(state: State, text: str) -> State:
    """A state that was read, with the indexes of its pods."""
    coming = state.next
    if coming is not None and (pods := parse(text, coming.generation, coming.replicas)):
        coming = replace(coming, indexes=pods, replicas=_counted(coming.replicas, pods))
    pods = parse(text, state.generation, state.replicas)
    return replace(state, next=coming, indexes=pods, replicas=_counted(state.replicas, pods))


def _counted(written: Counts, indexes: Indexes) -> Counts:
    return {name: len(indexes[name]) if name in indexes else count for name, count in written.items()}


# Reading


def _read(what: str, text: str, read: Callable[[Fields], T]) -> T:
    # A character has at least one byte, and the API server counts bytes: so no need to encode it for this.
    if len(text) > MAX_ANNOTATION_BYTES:
        raise ValueError(f"{PREFIX}{what} has {len(text)} characters: at most {MAX_ANNOTATION_BYTES} are read")
    try:
        return read(Fields(orjson.loads(text)))
    except ValueError as error:
        raise ValueError(f"{PREFIX}{what} is not what the operator wrote there: {error}") from None


def _target(raw: Fields) -> Target:
    replicas = _counts(raw, "replicas", required=True)
    return Target(
        generation=_generation(raw),
        replicas=replicas,
        nodes=_nodes(raw, replicas),
        cpu=_cpu(raw),
        reason=raw.text("reason"),
        declared=_counts(raw, "declared"),
        cause=raw.text("cause", MAX_WORD),
    )


def _state(raw: Fields) -> State:
    phase = cast("Phase", raw.word("phase", get_args(Phase)))
    coming, refused = raw.within("next"), raw.within("refused")
    if coming is None and phase not in ("Waiting", "Stable"):
        raise ValueError(f"next is missing: phase {phase} needs the size to go to")
    replicas = _counts(raw, "replicas")
    return State(
        phase=phase,
        generation=_generation(raw, default=0),
        slot=_slot(raw, default=0),
        replicas=replicas,
        nodes=_nodes(raw, replicas),
        cpu=_cpu(raw),
        since=raw.time("since", empty=True) or "",
        reason=raw.text("reason"),
        next=_next(coming) if coming is not None else None,
        refused=_refused(refused) if refused is not None else None,
        rescales=raw.whole("rescales", MAX_GENERATION, default=0),
        last_downtime_s=raw.number("last_downtime_s", MAX_DURATION_S, least=None),
        history=tuple(map(_rescaled, raw.objects("history")))[-_HISTORY:],
        step=raw.integer("step", MAX_STEPS),
        total_steps=raw.integer("total_steps", MAX_STEPS),
        steps_per_s=raw.number("steps_per_s", MAX_RATE),
        eta=raw.time("eta"),
        speeds=_by_size(raw, "speeds", lambda sizes, size: sizes.number(size, MAX_RATE)),
        speed_cpu=_by_size(raw, "speed_cpu", lambda sizes, size: sizes.integer(size, MAX_MILLICORES)),
        numbers_at=raw.time("numbers_at"),
        stop=read_stop(raw.within("stop")),
    )


def _next(raw: Fields) -> Next:
    replicas = _counts(raw, "replicas", required=True)
    return Next(
        generation=_generation(raw),
        slot=_slot(raw),
        mode=_mode(raw),
        replicas=replicas,
        before=_counts(raw, "before", required=True),
        nodes=_nodes(raw, replicas),
        cpu=_cpu(raw),
        reason=raw.text("reason"),
    )


def _refused(raw: Fields) -> Refused:
    return Refused(_generation(raw), raw.text("reason"), _at(raw))


def _rescaled(raw: Fields) -> Rescaled:
    return Rescaled(
        generation=_generation(raw),
        at=_at(raw),
        before=_counts(raw, "before", required=True),
        after=_counts(raw, "after", required=True),
        mode=_mode(raw),
        downtime_s=raw.number("downtime_s", MAX_DURATION_S, least=None),
        lost_steps=raw.integer("lost_steps", MAX_STEPS, least=None),
        reason=raw.text("reason"),
    )


def _generation(raw: Fields, default: int | None = None) -> int:
    return raw.whole("generation", MAX_GENERATION, default=default)


def _slot(raw: Fields, default: int | None = None) -> int:
    return raw.whole("slot", 1, default=default)


def _mode(raw: Fields) -> Mode:
    return cast("Mode", raw.word("mode", get_args(Mode)))


def _at(raw: Fields) -> str:
    if (found := raw.time("at")) is None:
        raise raw.wrong("at", "a time")
    return found


def _counts(raw: Fields, name: str, *, required: bool = False) -> Counts:
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


def _nodes(raw: Fields, replicas: Counts) -> Nodes:
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


def _cpu(raw: Fields) -> Cpu:
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


def _by_size(raw: Fields, name: str, read: Callable[[Fields, str], T | None]) -> dict[str, T]:
    """Figures by size, "PS/workers": the newest, should there be more than are kept."""
    sizes = raw.within(name)
    if sizes is None:
        return {}
    found: dict[str, T] = {}
    for size in sizes.names(MAX_ANNOTATION_BYTES):
        if not _SIZE.fullmatch(size):
            raise ValueError(f"{raw.place(name)}: {describe(size)} is not a size such as 2/8")
        if (value := read(sizes, size)) is not None:
            found[size] = value
    return dict(list(found.items())[-MAX_ENTRIES:])


def _shorten(found: Target | Next | Refused | Rescaled | State) -> None:
    """A reason may hold what a pod or the kubelet said, at any length."""
    if len(found.reason) > MAX_TEXT:
        object.__setattr__(found, "reason", cut(found.reason))
