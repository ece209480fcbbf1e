"""The output of a decision: a target per job with its reason, loans of nodes, and why the other jobs wait."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from propcache.api import cached_property

from elastic_tfjob.scheduling.forecasts import Forecasts, expected_rate
from elastic_tfjob.scheduling.reasons import Reason, Why, as_reason
from elastic_tfjob.scheduling.snapshot import Counts, Cpu, Memory, Placement, Snapshot, counts_of
from elastic_tfjob.speed.prediction import Rate

__all__ = ["CAUSES", "STOPS", "STORED_CAUSES", "Cause", "TeamShare", "cause_of"]

# Why a job's size, place or CPU changes, in one word: metrics have it as a label, pages group by it.

Cause = Literal[
    "start",
    "resume",
    "grow",
    "shrink",
    "reshape",
    "cpu",
    "migrate",
    "repair",
    "compact",
    "asked",
    "preempt",
    "reclaim",
    "deadline",
    "notice",
]
"""`start`, or `resume` after a stop. `grow`, `shrink`, or `reshape`: more replicas of one type and fewer of another.
`cpu`: a different CPU share in the same pods. `migrate`: other nodes. `repair`: replaced or fewer replicas, since nodes
are lost, cordoned or returned to their pool. `compact`: replicas leave a node to an autoscaler. `asked`: the size that
a person requests. For three causes all replicas are taken away: other jobs come first (`preempt`), a node is returned
to its pool (`reclaim`), or another job would miss its deadline (`deadline`, which may also be why a job grows or
shrinks). `notice`: a node is taken away before replicas could move, so the job saves, and all replicas restart
elsewhere, or wait."""

CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
STOPS: Final[tuple[Cause, ...]] = ("preempt", "reclaim", "deadline", "notice")
"""Why all replicas of a running job are taken away."""
STORED_CAUSES: Final[frozenset[Cause]] = frozenset({*STOPS, "repair", "compact", "asked"})
"""Causes that do not follow from the sizes and must be passed on."""


BEHIND: Final = Reason("behind")


@dataclass(frozen=True, slots=True)
class Assignment:
    """The target of a job: the node of every replica, in the order of the replicas' indices. No nodes: the job waits.

    `cpu`: the CPU of replicas where it differs from their requests. `cause`: why the job changes, in one word; None
    where it does not change.
    """

    nodes: Placement
    reason: Why
    cpu: Cpu = field(default_factory=dict)
    cause: Cause | None = None

    @property
    def why(self) -> Reason:
        """The reason, with its code and facts."""
        return as_reason(self.reason)

    @property
    def replicas(self) -> dict[str, int]:
        return counts_of(self.nodes)


@dataclass(frozen=True, slots=True)
class Loan:
    """Borrow a node of another pool, or give it back."""

    node: str
    action: Literal["borrow", "return"]
    reason: Reason


@dataclass(frozen=True, slots=True)
class TeamShare:
    """A team after a round. `share`: its dominant share of the cluster; `deserved`: what it deserves, at most what it
    asks for. `waiting`: its jobs without replicas. `below`: it could use more within what it deserves. `taken`: the
    replicas that the round took from it for other teams, by how."""

    share: float
    deserved: float
    waiting: int
    below: bool = False
    taken: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """`changes` has every job whose target differs from what it holds. `refusals`: why a job waits that the round
    looked at. `held_back`: why later jobs wait, which it did not look at. `kept`: why a job that a step wanted to stop
    or move keeps what it has. `sizes_without_room`: why a job does not get the size that a person requests. `queue`
    gives the jobs that waited when the round began, in order.

    `orders`: the replicas per type for which a job asks an autoscaler for nodes. `given_up`: the nodes that jobs leave
    to it. `lacks_room`: a job found no room for its declared size. `teams`: the teams that share the cluster; empty
    where none do.

    `memory` has the new memory of each job whose memory changed. It is stored with the job's change, if there is one:
    if that change cannot be carried out now, the memory does not change either.
    """

    snapshot: Snapshot = field(compare=False, repr=False)
    changes: Mapping[str, Assignment]
    loans: tuple[Loan, ...] = ()
    refusals: Mapping[str, Reason] = field(default_factory=dict)
    held_back: Reason = BEHIND
    queue: Callable[[], Iterable[str]] = field(default=tuple, compare=False, repr=False)
    kept: Mapping[str, Reason] = field(default_factory=dict)
    sizes_without_room: Mapping[str, Reason] = field(default_factory=dict)
    memory: Mapping[str, Memory] = field(default_factory=dict)
    orders: Mapping[str, Counts] = field(default_factory=dict)
    given_up: frozenset[str] = frozenset()
    lacks_room: bool = False
    teams: Mapping[str, TeamShare] = field(default_factory=dict)

    @cached_property
    def forecasts(self) -> Forecasts:
        """When each job of the Snapshot is expected to finish under this plan, and to start if it waits. Computed on
        demand."""
        return Forecasts(self.snapshot, self._given, self.queue, self.orders)

    def expected_rate(self, key: str) -> Rate | None:
        """The speed that a job is expected to have after its change; None where it does not change or is stopped, or
        where nothing is known."""
        target, job = self.changes.get(key), self.snapshot.jobs[key]
        if target is None or not target.nodes:
            return None
        past, nodes = self.snapshot.past(job.spec), self.snapshot.nodes
        return expected_rate(job, placement=target.nodes, cpu=target.cpu, past=past, nodes=nodes)

    def _given(self, key: str) -> tuple[Placement, Cpu] | None:
        target = self.changes.get(key)
        return None if target is None else (target.nodes, target.cpu)

    @property
    def targets(self) -> dict[str, Assignment]:
        """The target of every job that has replicas, or gets some."""
        unchanged = {
            key: Assignment(job.placement, Reason("keeps"), job.cpu)
            for key, job in self.snapshot.jobs.items()
            if job.placement and key not in self.changes
        }
        return {**unchanged, **{key: target for key, target in self.changes.items() if target.nodes}}

    @property
    def waiting(self) -> dict[str, Reason]:
        """Why each job without a target waits."""
        why: dict[str, Reason] = {}
        for key, job in self.snapshot.jobs.items():
            target = self.changes.get(key)
            if target is not None and not target.nodes:
                why[key] = self.refusals.get(key) or as_reason(target.reason)
            elif target is None and not job.placement:
                why[key] = self.refusals.get(key, self.held_back)
        return why


def cause_of(before: Mapping[str, int], after: Mapping[str, int], *, moved: bool, stopped: bool) -> Cause:
    """The cause of a change, derived from the replicas per type. `moved`: replicas are on other nodes. `stopped`: the
    job was stopped before."""
    if not any(after.values()):
        return "preempt"
    if not before or not any(before.values()):
        return "resume" if stopped else "start"
    if before != after:
        types = before.keys() | after.keys()
        more = any(after.get(name, 0) > before.get(name, 0) for name in types)
        fewer = any(after.get(name, 0) < before.get(name, 0) for name in types)
        if more or fewer:
            return "reshape" if more and fewer else "grow" if more else "shrink"
    return "migrate" if moved else "cpu"


def substitutes(before: Mapping[str, Sequence[str]], after: Placement) -> dict[tuple[str, int], int]:
    """Replicas of `after` whose node differs, each with the index of a replica that would be dropped and is on the node
    already: it takes over, so none has to start there. The first replica of a type is never replaced, since it may
    lead."""
    found: dict[tuple[str, int], int] = {}
    for type_, names in after.items():
        had = before.get(type_, ())
        dropped = list(range(len(names), len(had)))
        for k, name in enumerate(names[: len(had)]):
            if k and dropped and had[k] != name and (j := next((j for j in dropped if had[j] == name), -1)) >= 0:
                dropped.remove(j)
                found[type_, k] = j
    return found
