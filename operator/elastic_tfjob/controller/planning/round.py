"""What a round of the scheduling loop computes: what is known of each job, and what the profile decides. Pure.

All of it grows with jobs or replicas, so the loop runs it in a thread.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from elastic_tfjob.controller.model.affinity import NAME_FIELD
from elastic_tfjob.controller.model.cluster import ForeignPod, KubeNode, without_loaned
from elastic_tfjob.controller.model.injection import DEFAULT_RESOURCES, ContainerResources
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning.core_job import Pair, RejectedNodes, active, judge, verdict_due_s
from elastic_tfjob.controller.planning.job_view import JobView, scheduled_job
from elastic_tfjob.controller.planning.lending import NOTHING_LENT, Lending, LendingInput, ReclaimTimeout, lending
from elastic_tfjob.controller.planning.targets import decide
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.snapshot import Snapshot
from elastic_tfjob.speed.history import History

__all__ = ["ReservationFailures", "assemble"]

# -- All jobs and nodes as one Snapshot --------------------------------------------------------------------------------


def assemble(
    scheduled: Iterable[JobView],
    nodes: Mapping[str, KubeNode],
    foreign: Iterable[ForeignPod],
    now_s: float,
    previous: core.Snapshot | None = None,
    *,
    history: History = core.NOTHING_LEARNED,
    lending: Lending = NOTHING_LENT,
) -> core.Snapshot:
    """The Snapshot; evolved from the previous one where no node changed.

    Of a node at least that is left which the jobs' own pods request there: they run, and the kubelet admits no more
    than the node has. What others ask for beyond it they never get, like a pod whose author has chosen its node, or one
    that was told to grow.
    """
    used = {name: [0] * len(NOTHING) for name in nodes}
    stands = {name: [0] * len(NOTHING) for name in nodes}
    jobs: dict[str, core.Job] = {}
    for each in scheduled:
        if each.job is not None:
            jobs[each.job.key] = each.job
        for name, taken in each.others.items():
            _add(used, name, taken)
        for name, taken in each.stands.items():
            _add(stands, name, taken)
    for pod in foreign:
        _add(used, pod.node, pod.requests)
    free: dict[str, core.Node] = {}
    for name, node in nodes.items():
        capacity = node.allocatable
        left = capacity.minus(Resources(*used[name]))
        left = Resources(*map(min, capacity, map(max, left, stands[name]))).positive()
        labels = {**node.labels, NAME_FIELD: name}
        if (standing := lending.nodes.get(name)) is None:
            free[name] = core.Node(name, capacity, left, labels=labels, taints=node.taints)
        else:  # the operator's own taint keeps away the pool's pods, not loanable jobs
            taints = tuple(without_loaned(node.taints))
            free[name] = core.Node(
                name, capacity, left, standing.pool, labels, taints, standing.accelerator_speed, standing.loan
            )
    if previous is None:
        return core.Snapshot(now_s, free, jobs, pools=lending.pools, history=history)
    return previous.evolve(
        now_s,
        changed=[job for key, job in jobs.items() if previous.jobs.get(key) != job],
        removed=[key for key in previous.jobs if key not in jobs],
        nodes=None if free == previous.nodes else free,
        pools=lending.pools,
        history=history,
    )


def _add(used: dict[str, list[int]], node: str, amount: Resources) -> None:
    if (sums := used.get(node)) is not None:
        for i, part in enumerate(amount):
            sums[i] += part


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """What the caches hold of one job: all that a ScheduledJob is made from."""

    job: TFJob | None
    pods: tuple[Pod, ...]
    reports: Mapping[str, Report]
    before: JobView | None
    unfit: Mapping[Pair, RejectedNodes]


@dataclass(frozen=True, slots=True)
class Described:
    """A job's ScheduledJob, what is known of nodes that it cannot have, and in how many seconds there may be more to
    know; and why it is left out, if it is."""

    found: JobView
    unfit: Mapping[Pair, RejectedNodes]
    again_s: float | None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """What was decided, from what; and for which jobs words for it failed. `lent`: how the nodes of pools stand."""

    snapshot: Snapshot
    targets: Mapping[str, Target]
    failed: Mapping[str, Exception]
    plan: Plan
    lent: Lending = NOTHING_LENT


def describe_all(
    seen: Mapping[Key, ObservedJob],
    nodes: Mapping[str, KubeNode],
    now: datetime,
    everything: bool,
    priorities: Mapping[str, int],
    *,
    cordoned: Collection[str],
    failed: Mapping[str, int] | None = None,
    barred: Collection[str] = (),
    configured: ContainerResources = DEFAULT_RESOURCES,
) -> dict[Key, Described]:
    """Each job's ScheduledJob. One that cannot be described is not decided for, and all that its pods take counts.
    `failed`: promises that did, by namespace; `barred`: uids of jobs whose pods cannot be made. `configured`: what a
    container that is injected asks for."""
    now_s = now.timestamp()
    described: dict[Key, Described] = {}
    for key, each in seen.items():
        try:
            unfit = judge(each.unfit, each.pods, now_s)
            found = scheduled_job(
                each.job,
                each.pods,
                nodes=nodes,
                now=now,
                all_jobs=everything,
                reports=each.reports,
                priorities=priorities,
                before=each.before,
                unfit=active(unfit, now_s),
                cordoned=cordoned,
                failed=(failed or {}).get(key[0], 0),
                barred=each.job is not None and each.job.uid in barred,
                configured=configured,
            )
            described[key] = Described(found, unfit, verdict_due_s(each.pods, now_s))
        except Exception as error:
            described[key] = Described(
                replace(scheduled_job(None, each.pods, nodes=nodes, now=now), source=each.job), {}, None, error
            )
    return described


def plan_round(
    candidates: Mapping[str, JobView],
    nodes: Mapping[str, KubeNode],
    foreign: Iterable[ForeignPod],
    profile: Profile,
    *,
    now_s: float,
    previous: Snapshot | None,
    history: History,
    cluster: LendingInput | None = None,
) -> PlannedRound:
    """What the profile decides for these jobs, by their keys in the Snapshot, and for which that failed. `cluster`:
    what is known of loans, where there may be any."""
    lent = NOTHING_LENT if cluster is None else lending(cluster, now_s)
    snapshot = assemble(candidates.values(), nodes, foreign, now_s, previous, history=history, lending=lent)
    if lent.overdue:
        leaving = {name for name, found in candidates.items() if _leaving(found, lent.overdue)}
        profile = replace(profile, lend=ReclaimTimeout(profile.lend, lent.overdue, frozenset(leaving)))
    plan = schedule(snapshot, profile)
    failed: dict[str, Exception] = {}
    decided = {name: found for name, found in candidates.items() if found.job is not None}
    return PlannedRound(snapshot, decide(plan, decided, failed.__setitem__), failed, plan, lent)


def _leaving(found: JobView, nodes: Collection[str]) -> bool:
    """Whether a job has pods on these nodes that nothing has told to end yet: one that is past its preparation leaves
    at once, and a stop would come after that."""
    goes = found.state is not None and found.state.phase not in ("Stable", "Preparing")
    return not goes and any(node in nodes for node in (*found.taken, *found.others))


# -- For how long promised room is kept for pods that do not come, and whose next promise is worth less ----------------
# Room that is kept costs who is promised it nothing: a job whose pods can never start (scheduling gates, a quota that
# admits none) would keep it from all others, and the same job under another name could do so again, for ever. So who
# says why his pods do not come is not waited for, and promises that failed count against their namespace for a while.

# So long a failed promise counts, in seconds.
_REMEMBERED_S: Final = 600.0
# More of them change nothing.
_MOST: Final = 8


@dataclass(frozen=True, slots=True)
class _Reservation:
    """What is asked of a look: whether it is a promise that failed, or one that nobody has moved into yet."""

    uid: str
    failed: bool
    open: bool


class ReservationFailures:
    """How many promises to each namespace's jobs failed lately. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._at: dict[str, deque[float]] = {}
        self._told: Mapping[str, int] = {}

    def clear(self) -> None:
        """Forget them."""
        self._at.clear()

    def counts(self, now_s: float) -> Mapping[str, int]:
        """By namespace; those without any are left out."""
        for namespace, times in list(self._at.items()):
            while times and now_s - times[0] >= _REMEMBERED_S:
                times.popleft()
            if not times:
                del self._at[namespace]
        return {namespace: len(times) for namespace, times in self._at.items()}

    def changed(self, keys: Iterable[Key], now_s: float) -> set[Key]:
        """Those of the jobs in whose namespace there are more or fewer than at the last such question."""
        before, self._told = self._told, self.counts(now_s)
        others = {name for name in {*before, *self._told} if before.get(name) != self._told.get(name)}
        return {key for key in keys if key[0] in others} if others else set()

    def follow(self, key: Key, before: JobView | None, found: JobView | None, now_s: float) -> None:
        """A look at a job; None: there is no such job (any more)."""
        was, is_ = _hope(before), _hope(found)
        same = was is not None and is_ is not None and was.uid == is_.uid
        failed = is_ is not None and is_.failed and not (same and was is not None and was.failed)
        # A job that goes before any of its pods has a node kept the room in vain, too.
        left = was is not None and was.open and not (same and _goes_on(found)) and not _came(found)
        if failed or left:
            self._at.setdefault(key[0], deque(maxlen=_MOST)).append(now_s)


def _hope(found: JobView | None) -> _Reservation | None:
    if found is None or found.source is None:
        return None
    awaits = found.awaited_since_s is not None
    promised = found.job is not None and awaits and not found.bound and any(found.awaited.values())
    return _Reservation(found.source.uid, found.job is None and awaits, promised)


def _goes_on(found: JobView | None) -> bool:
    """Whether a job is still there and decided for, or is aside as its promise failed."""
    return found is not None and (found.job is not None or found.awaited_since_s is not None)


def _came(found: JobView | None) -> bool:
    """Whether pods had a node after all: they have it yet, or the job has succeeded meanwhile."""
    if found is None:
        return False
    return bool(found.others) or (found.source is not None and found.source.status().is_true("Succeeded"))
