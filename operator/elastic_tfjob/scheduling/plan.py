"""What the core decided: a target per job with its reason, loans of nodes, and why the others wait."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from propcache.api import cached_property

from elastic_tfjob.scheduling.forecasts import Forecasts, expected_rate
from elastic_tfjob.scheduling.reasons import Reason, Why, as_reason
from elastic_tfjob.scheduling.snapshot import Cpu, Memory, Placement, Snapshot, counts_of
from elastic_tfjob.speed.prediction import Rate

__all__ = ["CAUSES", "STOPS", "TOLD", "Cause", "cause_of"]

# -- Why a job's size, place or CPU changes, in one word ---------------------------------------------------------------
# What metrics are labelled with, pages group by, and tests compare.

Cause = Literal[
    "start",
    "resume",
    "grow",
    "shrink",
    "reshape",
    "cpu",
    "migrate",
    "repair",
    "asked",
    "preempt",
    "reclaim",
    "deadline",
]
"""A job starts, or goes on after a stop; has more replicas, fewer, or more of one type and fewer of another; other CPU
in the same pods; replicas on other nodes; replicas anew or fewer, as their nodes are lost or cordoned, or go back to
their pool; the size that a person asks for. All is taken from it: others go before it (`preempt`), a node goes back to
its pool (`reclaim`), or another job would miss its deadline (`deadline`, which may also be why a job grows or
shrinks)."""

CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
STOPS: Final[tuple[Cause, ...]] = ("preempt", "reclaim", "deadline")
"""Why all is taken from a job that runs."""
TOLD: Final[frozenset[Cause]] = frozenset({*STOPS, "repair", "asked"})
"""What sizes do not tell: it has to be passed on."""


def cause_of(before: Mapping[str, int], after: Mapping[str, int], *, moved: bool, stopped: bool) -> Cause:
    """What replicas per type tell of a change, of which nobody says more. `moved`: replicas are on other nodes, too.
    `stopped`: the job was stopped before."""
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


BEHIND: Final = Reason("behind")


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a job shall hold: the node of every replica, in the order of the replicas' indices. No nodes: nothing.

    `cpu` is what replicas shall hold where that differs from their requests. `cause` is why it changes, in one word;
    None for what stays as it is.
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


@dataclass(frozen=True)
class Plan:
    """`changes` has every job whose target differs from what it holds. `refusals` says why a job that was looked at
    waits, `held_back` why those behind them were not looked at, `kept` why one that was to be stopped or moved keeps
    what it has. `queue` gives the jobs that waited when the round began, first to serve first.

    `memory` has all numbers that shall be remembered of a job, for each job of which they are others than before. They
    are stored with the job's change, where it has one: if that cannot be carried out now, they stay as they were.
    """

    snapshot: Snapshot = field(compare=False, repr=False)
    changes: Mapping[str, Assignment]
    loans: tuple[Loan, ...] = ()
    refusals: Mapping[str, Reason] = field(default_factory=dict)
    held_back: Reason = BEHIND
    queue: Callable[[], Iterable[str]] = field(default=tuple, compare=False, repr=False)
    kept: Mapping[str, Reason] = field(default_factory=dict)
    memory: Mapping[str, Memory] = field(default_factory=dict)

    @cached_property
    def forecasts(self) -> Forecasts:
        """When each job of the Snapshot is expected to finish under this plan, and to start if it waits. Lazy: what
        nobody asks for is not computed."""
        return Forecasts(self.snapshot, self._given, self.queue)

    def expected_rate(self, key: str) -> Rate | None:
        """The speed that a job is expected to have once its change is carried out; None where it has no change that
        leaves it something, or nothing is known."""
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
        """Of every job that holds or shall hold something."""
        unchanged = {
            key: Assignment(job.placement, Reason("keeps"), job.cpu)
            for key, job in self.snapshot.jobs.items()
            if job.placement and key not in self.changes
        }
        return {**unchanged, **{key: target for key, target in self.changes.items() if target.nodes}}

    @property
    def waiting(self) -> dict[str, Reason]:
        """Every job that shall hold nothing, and why."""
        why: dict[str, Reason] = {}
        for key, job in self.snapshot.jobs.items():
            target = self.changes.get(key)
            if target is not None and not target.nodes:
                why[key] = self.refusals.get(key) or as_reason(target.reason)
            elif target is None and not job.placement:
                why[key] = self.refusals.get(key, self.held_back)
        return why
