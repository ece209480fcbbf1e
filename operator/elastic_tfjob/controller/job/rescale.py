"""From one size of a running job to another: prepare beside it, then switch. Pure.

                                    target
        Waiting ──target──▶ Stable ────────▶ Preparing ──ready──▶ Checkpointing ──committed──▶ Switching ──┐
           ▲                 ▲ ▲ │               │ anything wrong      │ refused                  first step │
           │ target empty    │ │ │               ▼                     ▼                                     │
           │                 │ └─┼────────── RollingBack ◀─────────────┘                                     │
           │                 └───┼───────────────────────────────────────────────────────────────────────────┘
           │                     │ no launcher                          all pods gone
           └──────────── Recreating ────────────────────────────────▶ Switching

Until the chief's launcher has committed the switch, training has not stopped and everything can be undone. The launcher
decides alone, in the pod: its program has saved and the new one stands ready, or not. The operator only learns which,
so neither its death nor a slow API server prolongs the pause. The next rescale begins when the chief has made a step
and all pods have heard which generation runs.

A phase is stored before anything is done that follows from it: `advance` gives what the stored phase calls for, and
perhaps the next state. So it can be killed anywhere and goes on from the annotation.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from math import inf, log2
from typing import Final, Literal

import orjson

from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.controller.job import stopping
from elastic_tfjob.controller.job.decision import Count, Event, Timeouts
from elastic_tfjob.controller.job.eta import eta
from elastic_tfjob.controller.job.moves import Move, coming_indexes, described, moves
from elastic_tfjob.controller.job.pods import Sizes, TFConfigs, general_name
from elastic_tfjob.controller.objects.annotations import (
    STOP_COMMAND,
    Command,
    Counts,
    Cpu,
    Mode,
    Next,
    Phase,
    Refused,
    Rescaled,
    State,
    Target,
    abridged,
    words,
)
from elastic_tfjob.controller.objects.indexes import resized, simplest
from elastic_tfjob.controller.objects.observed import Job, Pod
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.status import format_time, moment_of

Role = tuple[str, int]
"""Replica type and index of the pod."""
Pods = Mapping[str, Sequence[int]]
"""The indexes of pods by replica type."""
Action = Literal["prepare", "switch", "run", "save"]

# How often the figures in a job's state are refreshed.
NUMBERS_S: Final = 60.0
# A second program beside the first needs about what that one uses: its heap, less the libraries that they share.
_SECOND_PROGRAM: Final = 0.8
# A program that makes steps has told its launcher that it can be rescaled; so long after, the launcher has looked.
_MODES_S: Final = 5.0
# A pod that has not heard its command after so long is told again; then after twice as long, and so on.
_NUDGE_S: Final = 5.0
# Commands of one pass: each names all replicas, so those of a large job are not held in memory together.
TOLD_AT_ONCE: Final = 200
# When it is looked again who has not been told yet: each pod that was brings the job back at once. This is for those
# that are gone, of which the operator has not heard yet; more questions would change nothing.
TOLD_S: Final = 1.0
# Of a program that was started later than this, nobody knows yet that it will not construct ElasticCheckpoint, whatever
# its launcher says.
_HOOK_S: Final = 30.0
# A new operator has asked each pod once after so long: only then it says that it waits for a pod's word.
_LISTENED_S: Final = 5.0
# Characters of a program's last words in an event, which has room for 1,024.
_LAST_WORDS: Final = 700


@dataclass(frozen=True)
class RescaleInput:
    """All that `advance` looks at. `pods` are the job's own; `elastic` allows another size, `stoppable` that all is
    taken from it; `launcher` tells that all of its pods have one, and an exporter; `mode` is the best way of rescaling
    that the user allows; exporters have been asked for `listened_s`."""

    job: Job
    spec: TFJobSpec
    sizes: Sizes
    state: State
    target: Target | None
    now: datetime
    pods: tuple[Pod, ...] = ()
    reports: Mapping[str, Report] = field(default_factory=dict)
    listened_s: float = inf
    elastic: bool = True
    stoppable: bool = True
    launcher: bool = True
    accelerators: bool = False
    mode: Mode = "overlap"
    timeouts: Timeouts = field(default_factory=Timeouts)

    @cached_property
    def by_role(self) -> dict[Role, Pod]:
        """The pods by replica, with the types in the spec's spelling."""
        spelling = {name.lower(): name for name in self.spec.tf_replica_specs}
        return {
            (spelling[pod.replica_type], pod.index): pod
            for pod in self.pods
            if pod.index is not None and pod.replica_type in spelling
        }

    @property
    def chief(self) -> Role:
        """The replica that leads the training."""
        return chief_of(self.spec)

    @property
    def declared(self) -> dict[str, int]:
        """The spec's replicas."""
        return {name: replica.count for name, replica in self.spec.tf_replica_specs.items()}

    def report(self, role: Role) -> Report | None:
        """What a replica's exporter said last."""
        return self.reports.get(general_name(self.job.name, *role))

    @property
    def elapsed_s(self) -> float:
        """Seconds since the phase began."""
        since = moment_of(self.state.since)
        return (self.now - since).total_seconds() if since is not None else 0.0

    @property
    def unheard_s(self) -> float:
        """For how long a pod that has said nothing in this phase could have been heard: an operator that has just come
        has asked nobody yet."""
        return min(self.elapsed_s, self.listened_s)


@dataclass(frozen=True, slots=True)
class Transition:
    """What to do now: which pods shall exist, the commands that pods lack, pods to delete, and the state to store.

    `hold`: create nothing. `again_s`: look again after so long, should nothing happen before.
    """

    state: State
    pods: Pods
    commands: Mapping[Role, str] = field(default_factory=dict)
    delete: tuple[Pod, ...] = ()
    hold: bool = False
    events: tuple[Event, ...] = ()
    again_s: float | None = None
    tallies: tuple[Count, ...] = ()


def chief_of(spec: TFJobSpec) -> Role:
    """The replica that leads the training: the chief or master, else the first worker."""
    return next(((name, 0) for name in ("Chief", "Master") if name in spec.tf_replica_specs), ("Worker", 0))


def advance(s: RescaleInput) -> Transition:
    """One step of the rescale, or none where there is nothing to do."""
    match s.state.phase:
        case "Waiting":
            return _waiting(s)
        case "Stable":
            return _stable(s)
        case "Preparing":
            return _preparing(s)
        case "Checkpointing":
            return _checkpointing(s)
        case "RollingBack":
            return _rolling_back(s)
        case "Switching":
            return _switching(s)
        case "Recreating":
            return _recreating(s)


# Phases


def _waiting(s: RescaleInput) -> Transition:
    state, target = s.state, s.target
    if target is None or not target.replicas:
        reason = target.reason if target is not None else "not looked at yet"
        said = () if reason == state.reason or target is None else (Event("Normal", "Waiting", reason),)
        return Transition(replace(state, reason=reason), {}, hold=True, events=said)
    begun = replace(
        state,
        phase="Stable",
        generation=target.generation,
        replicas=target.replicas,
        nodes=target.nodes,
        cpu=target.cpu,
        since=format_time(s.now),
        reason=target.reason,
        next=None,
        indexes={},
    )
    event = Event("Normal", "Admitted", f"Starts with {words(target.replicas)}: {target.reason}")
    return Transition(begun, {}, hold=True, events=(event,))


def _stable(s: RescaleInput) -> Transition:
    state, target = s.state, s.target
    stay = Transition(state, _pods(state), _run_commands(s))
    if state.stop is not None:
        late = s.unheard_s > s.timeouts.hook_s or (not s.launcher and _all_run(s))
        size, report = words(state.replicas), s.report(s.chief)
        goes_on = stopping.resumed(state.stop, report, state.generation, size, late=late)
        if goes_on is not None:
            again = replace(state, stop=None)
            return replace(stay, state=again, events=goes_on.events, tallies=goes_on.tallies, again_s=0.0)
    if target is None:
        return stay
    tried = state.refused.generation if state.refused is not None else -1
    newer = target.generation > max(state.generation, tried)
    moving = moves(state, target, s.by_role) if newer and (s.elastic or s.stoppable) else ()
    same = target.replicas == state.replicas
    if same and not moving:
        # The nodes of a move that was refused are not those of the pods.
        return stay if state.refused is not None and target.generation == tried else _adopt(s, stay, target)
    if not same and not s.elastic and target.replicas == s.declared:
        return _as_declared(s, stay, target)
    may = s.elastic or (s.stoppable and (same or not target.replicas))
    if not may or target.generation <= max(state.generation, tried):
        return stay
    indexes = coming_indexes(state, target.replicas, moving)
    mode, why = _mode(s, moving, numbered=indexes is not None) if target.replicas else ("recreate", "")
    change = _change(state.replicas, target.replicas, moving)
    if mode is None:
        pending = f"{change}: {why}"
        said = (Event("Normal", "RescalePending", pending),) if s.listened_s >= _LISTENED_S else ()
        return replace(stay, again_s=1.0, events=said)
    coming = Next(
        generation=target.generation,
        slot=state.slot if mode == "recreate" else 1 - state.slot,
        mode=mode,
        replicas=target.replicas,
        before=state.replicas,
        nodes=target.nodes,
        cpu=target.cpu,
        reason=target.reason,
        # Where all pods are made anew, they are numbered anew.
        indexes=indexes or {} if mode != "recreate" else {},
    )
    begun = replace(
        state, phase="Recreating" if mode == "recreate" else "Preparing", since=format_time(s.now), next=coming
    )
    if not target.replicas:
        stop = stopping.asked(_saving(s), target.generation, words(state.replicas), target.cause, target.reason)
        return replace(stay, state=replace(begun, stop=stop.stop), events=stop.events, tallies=stop.tallies)
    message = f"{change} ({mode}): {target.reason}"
    if why:
        message = f"{message}; {why}"
    return replace(stay, state=begun, events=(Event("Normal", "Rescaling", message),))


def _as_declared(s: RescaleInput, stay: Transition, target: Target) -> Transition:
    """A job that is only placed is scaled by an edit of its spec as upstream does it: pods come and go, and those that
    stay are told nothing."""
    indexes = simplest({name: resized(s.state.pods(name), count) for name, count in target.replicas.items()})
    size = replace(s.state, replicas=target.replicas, nodes=target.nodes, reason=target.reason, indexes=indexes)
    message = f"From {words(s.state.replicas)} to {words(target.replicas)} as the spec says: {target.reason}"
    return replace(stay, state=size, again_s=0.0, events=(Event("Normal", "Scaled", message),))


def _preparing(s: RescaleInput) -> Transition:
    coming = _coming(s)
    pods = s.by_role
    running = set(_roles(s.state))
    added = [role for role in _roles(coming) if role not in running]
    # The host names of added pods exist when they run: a program that looked for them before would be told that they do
    # not, and name services remember that for half a minute.
    ready_to_begin = all(role in pods and pods[role].phase == "Running" for role in added)
    told = [role for role in _roles(coming) if role not in running or _runs(s, role)] if ready_to_begin else added
    step = Transition(s.state, _both(s.state, coming), _commands(s, told, "prepare", coming), again_s=1.0)
    if problem := _withdrawn(s) or _cannot_prepare(s, added):
        return _roll_back(s, step, problem)
    missing = [role for role in _roles(coming) if not _prepared(s, role)]
    if missing and s.unheard_s > s.timeouts.prepare_s:
        names = ", ".join(_name(role) for role in missing[:5])
        return _roll_back(s, step, f"not ready after {s.timeouts.prepare_s:.0f} s: {names}")
    if missing:
        return step
    return replace(step, state=_enter(s, "Checkpointing"))


def _checkpointing(s: RescaleInput) -> Transition:
    coming = _coming(s)
    # Where whole programs wait, only the chief has something to do; of spares, servers start with it.
    told = _roles(coming) if coming.mode == "spare" else [s.chief]
    commands = _commands(s, told, "switch", coming)
    step = Transition(s.state, _both(s.state, coming), commands, again_s=1.0)
    chief, report = s.by_role.get(s.chief), s.report(s.chief)
    if report is not None and report.generation == coming.generation:
        return replace(step, state=_committed(s))
    if chief is None or chief.terminating or chief.phase != "Running":
        return _roll_back(s, step, f"{_name(s.chief)} ended before it had saved")
    if report is not None and report.switch is not None and report.switch.generation == coming.generation:
        if report.switch.state == "refused":
            return _roll_back(s, step, f"no checkpoint: {report.switch.why}")
        if report.switch.state == "committed":
            return replace(step, state=_committed(s))
    # The launcher gives up first; this is for a launcher that cannot be heard.
    if s.unheard_s > s.timeouts.checkpoint_s + s.timeouts.cancel_s:
        return _roll_back(s, step, f"no checkpoint after {s.elapsed_s:.0f} s, and no word from {_name(s.chief)}")
    return step


def _rolling_back(s: RescaleInput) -> Transition:
    """The chief first: only when it has given up can the others, for until then it may still commit."""
    coming = _coming(s)
    commands = _commands(s, [s.chief], "run", None)
    # What was added stays until it is certain which way it goes.
    step = Transition(s.state, _both(s.state, coming), commands, again_s=1.0)
    chief, report = s.by_role.get(s.chief), s.report(s.chief)
    gone = chief is None or chief.phase in ("Succeeded", "Failed")
    if report is not None and report.generation == coming.generation and not gone:
        return replace(step, state=_committed(s))
    cancelled = (
        report is not None
        and report.generation == s.state.generation
        and report.prepared is None
        and (report.switch is None or report.switch.state != "saving")
    )
    if gone or cancelled:
        refused = Refused(coming.generation, s.state.reason, format_time(s.now))
        back = replace(s.state, phase="Stable", since=format_time(s.now), next=None, refused=refused)
        return replace(step, state=back)
    if s.unheard_s > s.timeouts.cancel_s and chief is not None and not chief.terminating:
        # Nobody can tell what it does: made anew, it goes on from the newest checkpoint.
        return replace(step, delete=(chief,))
    return step


def _switching(s: RescaleInput) -> Transition:
    coming, state = _coming(s), s.state
    step = Transition(state, _pods(state), _run_commands(s), again_s=1.0)
    chief, report = s.by_role.get(s.chief), s.report(s.chief)
    heard = report is not None and report.generation == state.generation and report.first_step_at is not None
    silent = _silent(s, report) and chief is not None and chief.phase == "Running"
    limit_s = s.timeouts.recreate_s if coming.mode == "recreate" else s.timeouts.switch_s
    late = s.unheard_s > limit_s
    # What it waits for in vain on a node that the operator chose, it gets elsewhere; but only a Stable job is placed.
    refused = "" if heard else _refused(s, [role for role, pod in s.by_role.items() if pod.pinned])
    if not ((heard and _followed(s)) or silent or late or refused):
        return step
    downtime_s = report.downtime_s if heard and report is not None else None
    if downtime_s is None and coming.mode == "recreate" and not (late or refused):
        downtime_s = s.elapsed_s
    lost = report.lost_steps if heard and report is not None else None
    now = format_time(s.now)
    done = Rescaled(state.generation, now, coming.before, coming.replicas, coming.mode, downtime_s, lost, coming.reason)
    settled = replace(
        state,
        phase="Stable",
        since=now,
        reason=coming.reason,
        next=None,
        rescales=state.rescales + 1,
        last_downtime_s=downtime_s,
        history=state.remember(done),
    )
    change = f"{_change(coming.before, coming.replicas)} ({coming.mode})"
    if refused and not late:
        event = Event("Warning", "Rescaled", f"{change}, but {refused}")
    elif late and not heard:
        event = Event("Warning", "Rescaled", f"{change}, but no step was seen for {limit_s:.0f} s: {coming.reason}")
    else:
        pause = "" if downtime_s is None else f" in {downtime_s:.2f} s"
        steps = "" if lost is None else f", {lost} steps lost"
        event = Event("Normal", "Rescaled", f"{change}{pause}{steps}: {coming.reason}")
    return replace(step, state=settled, events=(event,))


def _silent(s: RescaleInput, report: Report | None) -> bool:
    """Whether nobody will say when the program that was started last makes its first step: without a launcher, and
    after `recreate` of a program that has never reported one, once all of its pods run."""
    if not s.launcher:
        return True
    if _coming(s).mode != "recreate" or s.state.step is not None or (report is not None and report.hook):
        return False
    return _all_run(s)


def _all_run(s: RescaleInput) -> bool:
    return all(role in s.by_role and s.by_role[role].phase == "Running" for role in _roles(s.state))


def _recreating(s: RescaleInput) -> Transition:
    """The chief goes first, while its parameter servers are there to be saved. Before, all pods are marked: those that
    end because the chief is gone have not failed."""
    coming, pods = _coming(s), s.by_role
    chief = pods.get(s.chief)
    step = Transition(s.state, _both(s.state, coming), hold=True, again_s=5.0)
    stop = s.state.stop if not coming.replicas else None
    if stop is not None and not stop.ended:
        verdict = stopping.judge(_saving(s), stop)
        commands = _commands(s, [s.chief], "save", None) if not verdict.stop.ended else {}
        state = replace(s.state, stop=verdict.stop)
        return replace(
            step, state=state, commands=commands, events=verdict.events, tallies=verdict.tallies, again_s=1.0
        )
    unmarked = [
        role
        for role, pod in pods.items()
        if not (pod.stopped_by_us or pod.terminating or pod.phase in ("Succeeded", "Failed"))
    ]
    if unmarked:
        return replace(step, commands=dict.fromkeys(unmarked[:TOLD_AT_ONCE], STOP_COMMAND), again_s=TOLD_S)
    doomed = [chief] if chief is not None else list(pods.values())
    if doomed:
        return replace(step, delete=tuple(pod for pod in doomed if not pod.terminating))
    if coming.replicas:
        return replace(step, state=replace(_committed(s), since=s.state.since))
    waiting = replace(
        s.state, phase="Waiting", replicas={}, nodes={}, cpu={}, since=format_time(s.now), next=None, slot=0, indexes={}
    )
    if stop is None:
        return replace(step, state=waiting)
    over = stopping.stopped(stop, s.now)
    return replace(step, state=replace(waiting, reason=stop.reason), events=over.events, tallies=over.tallies)


def _saving(s: RescaleInput) -> stopping.Saving:
    return stopping.Saving(
        chief=s.by_role.get(s.chief),
        report=s.report(s.chief),
        able=s.launcher,
        generation=s.state.generation,
        limit_s=s.timeouts.stop_s,
        listened_s=s.listened_s,
        now=s.now,
    )


# Transitions


def _enter(s: RescaleInput, phase: Phase) -> State:
    return replace(s.state, phase=phase, since=format_time(s.now))


def _roll_back(s: RescaleInput, step: Transition, why: str) -> Transition:
    coming = _coming(s)
    why = _readable(why)
    instead = words(coming.replicas) if coming.replicas != s.state.replicas else "other nodes"
    message = f"Stays at {words(s.state.replicas)} instead of {instead}: {why}"
    state = replace(_enter(s, "RollingBack"), reason=why)
    return replace(step, state=state, events=(Event("Warning", "RescaleRolledBack", message),))


def _committed(s: RescaleInput) -> State:
    coming = _coming(s)
    return replace(
        _enter(s, "Switching"),
        generation=coming.generation,
        slot=coming.slot,
        replicas=coming.replicas,
        nodes=coming.nodes,
        cpu=coming.cpu,
        indexes=coming.indexes,
    )


def _adopt(s: RescaleInput, stay: Transition, target: Target) -> Transition:
    """Other nodes or CPU for the size that the job has: no rescale, so they hold at once."""
    state = s.state
    cpu = target.cpu if s.elastic else state.cpu
    if (state.nodes, state.cpu) == (target.nodes, cpu):
        return stay
    adopted = replace(stay, state=replace(state, nodes=target.nodes, cpu=cpu, reason=target.reason))
    if state.cpu == cpu:
        return adopted
    message = f"{_cpu_words(cpu) or 'as requested'}: {target.reason}"
    return replace(adopted, events=(Event("Normal", "CPUAdjusted", message),))


def _withdrawn(s: RescaleInput) -> str:
    """Why the size that the job is on its way to is not wanted any more."""
    coming, target = _coming(s), s.target
    moves_only = coming.replicas == s.state.replicas
    if not (s.elastic or (s.stoppable and moves_only)):
        return "the job's annotations do not allow rescaling any more"
    if target is None or target.replicas != coming.replicas:
        wanted = words(target.replicas) if target is not None else "no size"
        return f"{wanted} is wanted now"
    if moves_only and target.generation > coming.generation:
        return "other nodes are wanted now"
    return ""


def _cannot_prepare(s: RescaleInput, added: list[Role]) -> str:
    coming, pods = _coming(s), s.by_role
    for role in added:
        pod = pods.get(role)
        if pod is not None and pod.phase in ("Failed", "Succeeded"):
            return f"the new {_name(role)} ended"
    if refused := _refused(s, added):
        return f"the new {refused}"
    for role in _roles(coming):
        report = s.report(role)
        prepared = report.prepared if report is not None else None
        if prepared is not None and prepared.generation == coming.generation and prepared.state == "failed":
            return f"{_name(role)} could not be prepared: {prepared.why}"
    return ""


def _refused(s: RescaleInput, roles: Iterable[Role]) -> str:
    """The first of these replicas that kube-scheduler has found no node for so long that it will not, and its words."""
    for role in roles:
        pod = s.by_role.get(role)
        since = moment_of(pod.unschedulable_at) if pod is not None and not pod.node and not pod.terminating else None
        if pod is None or since is None:
            continue
        if min(s.elapsed_s, (s.now - since).total_seconds()) >= s.timeouts.unschedulable_s:
            return f"{_name(role)} finds no node: {pod.unschedulable}"
    return ""


def _prepared(s: RescaleInput, role: Role) -> bool:
    report, generation = s.report(role), _coming(s).generation
    if report is None or role not in s.by_role:
        return False
    prepared = report.prepared
    return prepared is not None and prepared.generation == generation and prepared.state == "ready"


def _runs(s: RescaleInput, role: Role) -> bool:
    """Whether a replica says that its program runs. A pod that is made anew must have begun: if `prepare` is the first
    that its launcher hears, it prepares the coming generation and runs none."""
    report = s.report(role)
    return report is not None and report.generation is not None


def _followed(s: RescaleInput) -> bool:
    """Whether all pods that can be heard know that the new generation runs. One that does not would take the command
    that comes next for the first it hears of, and stop the program that trains for the coming one's sake."""
    reports = (s.report(role) for role in _roles(s.state) if role in s.by_role)
    return all(report is None or report.generation in (None, s.state.generation) for report in reports)


def _mode(s: RescaleInput, moving: Sequence[Move] = (), *, numbered: bool = True) -> tuple[Mode | None, str]:
    """The best way of rescaling that is allowed and possible, and why it is no better one where that is no choice of
    the user's; None: not known yet, and what is waited for. `moving` replicas get pods beside theirs if those can be
    `numbered`."""
    chief, report = s.by_role.get(s.chief), s.report(s.chief)
    if any(each.role == s.chief for each in moving):
        # It decides the switch, alone: nobody could hand that over to another pod.
        return "recreate", f"{_name(s.chief)} leads the training, and moves"
    if not numbered:
        return "recreate", "there are too many replicas to prepare others beside them"
    if s.mode == "recreate" or not s.launcher or chief is None or chief.phase != "Running":
        return "recreate", ""
    if report is None or report.generation != s.state.generation or report.first_step_at is None:
        if _without_hook(s, chief, report):
            return "recreate", "the program does not use ElasticCheckpoint"
        limit_s = s.timeouts.hook_s
        if min(s.unheard_s, _running_s(s, chief)) > limit_s:
            return "recreate", f"{_name(s.chief)} has not reported a step for {limit_s:.0f} s"
        return (
            None,
            f"waits until {_name(s.chief)} reports a step, at most {limit_s:.0f} s; then its pods are recreated",
        )
    if not report.modes and report.at - report.first_step_at < _MODES_S:
        return None, f"waits until the launcher of {_name(s.chief)} says what it can do"
    reports = [found for role in _roles(s.state) if (found := s.report(role)) is not None]
    offered = set.intersection(*(set(each.modes) for each in reports))
    if s.mode == "overlap" and "overlap" in offered and not s.accelerators and all(map(_room_for_two, reports)):
        return "overlap", ""
    return ("spare", "") if "spare" in offered else ("recreate", "")


def _without_hook(s: RescaleInput, chief: Pod, report: Report | None) -> bool:
    """Whether the chief's program has had time to construct ElasticCheckpoint, and has not. One that reported steps
    before does so again when it is made anew, however long its imports take."""
    if report is None or report.hook is not False or s.state.step is not None:
        return False
    return _running_s(s, chief) >= _HOOK_S


def _running_s(s: RescaleInput, chief: Pod) -> float:
    """For how long the chief's program runs: since its container was started, the last time."""
    began = moment_of(chief.running_since)
    return s.elapsed_s if began is None else (s.now - began).total_seconds()


def _room_for_two(report: Report) -> bool:
    used, limit = report.memory.used_bytes, report.memory.limit_bytes
    return used is None or limit is None or limit - used >= _SECOND_PROGRAM * used


# Commands


def _run_commands(s: RescaleInput) -> dict[Role, str]:
    """Every pod runs the state's generation. One that was never told anything runs generation 0 by itself."""
    state, pods = s.state, s.by_role
    roles = [role for role in _roles(state) if state.generation or (role in pods and pods[role].command)]
    return _commands(s, roles, "run", None)


def _commands(s: RescaleInput, roles: Iterable[Role], action: Action, coming: Next | None) -> dict[Role, str]:
    """The commands that differ from what the pods were told, and those that do not seem to reach their pods; no more
    than TOLD_AT_ONCE.

    The kubelet passes an annotation on within a second; but one that changes while it is still passing on the change
    before (on a busy node) stays where it is until it looks again by itself, up to a minute and a half later. Any
    change of the pod makes it look: the text gets a space at its end, which launchers do not mind, or loses it.
    """
    found: dict[Role, str] = {}
    if not s.launcher:
        return found
    pods = s.by_role
    order: Order | None = None
    space = " " * (int(log2(max(1.0, 2 * s.elapsed_s / _NUDGE_S))) % 2)
    for role in roles:
        pod = pods.get(role)
        if pod is None or pod.terminating or pod.stopped_by_us:
            continue
        order = order or Order.of(s, action, coming)
        wanted = order.kept(role)
        if pod.command.rstrip() != wanted:
            found[role] = order.text(role)
        elif pod.command != wanted + space and _deaf(s, role, order):
            found[role] = order.text(role) + space
        if len(found) == TOLD_AT_ONCE:
            break
    return found


class Order:
    """One command to many pods, which differs in the last part of TF_CONFIG only."""

    def __init__(self, command: Command, configs: TFConfigs) -> None:
        self.generation = command.generation
        self.action = command.action
        self._configs = configs
        begin, self._end = command.to_json().split('"tf_config":""')
        self._begin = f'{begin}"tf_config":'
        self._heads: dict[str, str] = {}
        self._hashes: dict[str, blake2b] = {}

    @classmethod
    def of(cls, s: RescaleInput, action: Action, coming: Next | None) -> "Order":
        """The command to run the state's size, or to go to the coming one."""
        size = coming or s.state
        mode: Mode = coming.mode if coming else "overlap"
        request = s.state.stop.request if action == "save" and s.state.stop is not None else None
        command = Command(size.generation, action, "", mode, s.timeouts.checkpoint_s, request)
        return cls(command, s.sizes.tf_configs(size.replicas, size.slot, size.indexes))

    def text(self, role: Role) -> str:
        """A pod's command."""
        return "".join(self._parts(role))

    def kept(self, role: Role) -> str:
        """What is kept of it, once the pod has it."""
        begin, rest = self._parts(role)
        return abridged(rest, begin, self._hashes)

    def _parts(self, role: Role) -> tuple[str, str]:
        """What it begins with as others do, and the rest."""
        head, tail = self._configs.parts(*role)
        if head not in self._heads:
            self._heads[head] = self._begin + orjson.dumps(head).decode().removesuffix('"')
        return self._heads[head], orjson.dumps(tail).decode().removeprefix('"') + self._end


def _deaf(s: RescaleInput, role: Role, command: Order) -> bool:
    """Whether a replica's exporter tells that its launcher has not heard a command."""
    report = s.report(role)
    if report is None or report.generation is None:
        return False
    if command.action == "run":
        return report.generation != command.generation or report.prepared is not None
    if command.action == "save":
        stop = s.state.stop
        return stop is not None and (report.saved is None or report.saved.request != stop.request)
    if command.action == "switch" and role != s.chief:  # who does not decide does not answer
        return False
    answer = report.prepared if command.action == "prepare" else report.switch
    return command.generation not in (report.generation, answer and answer.generation)


# Figures


def with_numbers(before: State, state: State, report: Report | None, total_steps: int | None, now: datetime) -> State:
    """The state with the chief's newest figures, if it is time for them or it has another phase than `before`.

    `total_steps`: what the user said; else what the program reports. A size's speed is that of a Stable job: beside the
    programs of a coming size, which take CPU to start, the running one is slower.
    """
    if report is None or report.step is None:
        return state
    refreshed = moment_of(state.numbers_at)
    due = refreshed is None or (now - refreshed).total_seconds() >= NUMBERS_S
    if tells_numbers(state, report) or not (due or before.phase != state.phase):
        return state
    total = total_steps or report.total_steps
    speed = report.steps_per_s
    of_size = report.speed_of(state.generation) if before.phase == "Stable" else None
    speeds, speed_cpu = dict(state.speeds), dict(state.speed_cpu)
    if of_size:
        size = f"{state.replicas.get('PS', 0)}/{state.replicas.get('Worker', 0)}"
        speeds[size] = round(of_size, 3)
        speed_cpu.pop(size, None)
        if lent := before.cpu.get("Worker"):
            speed_cpu[size] = sum(lent) // len(lent)
    return replace(
        state,
        step=report.step,
        total_steps=total,
        steps_per_s=speed,
        eta=eta(state, report, total, now),
        speeds=speeds,
        speed_cpu=speed_cpu,
        numbers_at=format_time(now),
    )


def tells_numbers(state: State, report: Report | None) -> bool:
    """Whether the state has the chief's newest figures."""
    if report is None or report.step is None:
        return True
    return (state.step, state.steps_per_s) == (report.step, report.steps_per_s)


# Words and sizes


def _coming(s: RescaleInput) -> Next:
    assert s.state.next is not None, f"{s.state.phase} without a size to go to"
    return s.state.next


def _roles(size: State | Next) -> list[Role]:
    return [(name, index) for name in size.replicas for index in size.pods(name)]


def _pods(size: State | Next) -> Pods:
    return {name: size.pods(name) for name in size.replicas}


def _both(a: State, b: Next) -> Pods:
    """The pods of both sizes."""

    def pods(name: str) -> Sequence[int]:
        if name in a.indexes or name in b.indexes:
            return sorted({*a.pods(name), *b.pods(name)})
        return range(max(a.replicas.get(name, 0), b.replicas.get(name, 0)))

    return {name: pods(name) for name in {**a.replicas, **b.replicas}}


def _change(before: Counts, after: Counts, moving: Sequence[Move] = ()) -> str:
    """A change of size or nodes, in words."""
    if before == after:
        return f"Moves {described(moving)}" if moving else "Moved to other nodes"
    also = f", and moves {described(moving)}" if moving else ""
    return f"From {words(before)} to {words(after)}{also}"


def _name(role: Role) -> str:
    return f"{role[0].lower()}-{role[1]}"


def _readable(text: str) -> str:
    """Somebody's words on one line. Where they are long, their end: what a program says last is what it ended with."""
    line = " | ".join(filter(None, (" ".join(each.split()) for each in text.splitlines())))
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= _LAST_WORDS else f"... {line[-_LAST_WORDS:]}"


def _cpu_words(cpu: Cpu) -> str:
    """`Worker 300m + 500m, PS 100m`."""

    def values(found: tuple[int, ...]) -> Iterator[str]:
        if len(set(found)) == 1:
            yield f"{found[0]}m"
        else:
            yield from (f"{each}m" for each in found)

    return ", ".join(f"{name} {' + '.join(values(found))}" for name, found in cpu.items() if found)
