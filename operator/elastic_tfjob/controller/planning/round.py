"""What a round of the scheduling loop computes: the description of each job, and the profile's plan. Pure.

The cost grows with jobs and replicas, so the loop runs it in a thread.
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
from elastic_tfjob.controller.planning.lending import NO_LENDING, Lending, LendingInput, ReclaimTimeout, lending
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
    lending: Lending = NO_LENDING,
) -> core.Snapshot:
    """The Snapshot; evolved from the previous one where no node changed.

    A node always has room for what the jobs' own pods request there: they run, and the kubelet admits no more than the
    node has. Other pods never get what they request beyond that, such as a pod whose author has chosen its node, or a
    pod that was resized.
    """
    used = {name: [0] * len(NOTHING) for name in nodes}
    floor = {name: [0] * len(NOTHING) for name in nodes}
    jobs: dict[str, core.Job] = {}
    for each in scheduled:
        if each.job is not None:
            jobs[each.job.key] = each.job
        for name, amount in each.other_usage.items():
            _add(used, name, amount)
        for name, amount in each.floor.items():
            _add(floor, name, amount)
    for pod in foreign:
        _add(used, pod.node, pod.requests)
    free: dict[str, core.Node] = {}
    for name, node in nodes.items():
        capacity = node.allocatable
        left = capacity.minus(Resources(*used[name]))
        left = Resources(*map(min, capacity, map(max, left, floor[name]))).positive()
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
    """What the caches hold of one job: the input of its description."""

    job: TFJob | None
    pods: tuple[Pod, ...]
    reports: Mapping[str, Report]
    before: JobView | None
    rejected_nodes: Mapping[Pair, RejectedNodes]


@dataclass(frozen=True, slots=True)
class Described:
    """A job's description, the nodes that it cannot have, the seconds until more may be known of these, and the error
    for which nothing can be decided for the job."""

    found: JobView
    rejected_nodes: Mapping[Pair, RejectedNodes]
    again_s: float | None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """A plan and the targets that follow from it; `failed` has the jobs whose target could not be derived. `lent`: the
    state of the nodes of pools."""

    snapshot: Snapshot
    targets: Mapping[str, Target]
    failed: Mapping[str, Exception]
    plan: Plan
    lent: Lending = NO_LENDING


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
    """Each job's description. A job that cannot be described is not decided for, and all that its pods use counts.
    `failed`: reservations that failed, by namespace; `barred`: uids of jobs whose pods cannot be created; `configured`:
    the requests of injected containers."""
    now_s = now.timestamp()
    described: dict[Key, Described] = {}
    for key, each in seen.items():
        try:
            rejected_nodes = judge(each.rejected_nodes, each.pods, now_s)
            found = scheduled_job(
                each.job,
                each.pods,
                nodes=nodes,
                now=now,
                all_jobs=everything,
                reports=each.reports,
                priorities=priorities,
                before=each.before,
                rejected_nodes=active(rejected_nodes, now_s),
                cordoned=cordoned,
                failed=(failed or {}).get(key[0], 0),
                barred=each.job is not None and each.job.uid in barred,
                configured=configured,
            )
            described[key] = Described(found, rejected_nodes, verdict_due_s(each.pods, now_s))
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
    """What the profile decides for these jobs, by their names in the Snapshot. `cluster`: what is known of loans, where
    there may be any."""
    lent = NO_LENDING if cluster is None else lending(cluster, now_s)
    snapshot = assemble(candidates.values(), nodes, foreign, now_s, previous, history=history, lending=lent)
    if lent.overdue:
        leaving = {name for name, found in candidates.items() if _leaving(found, lent.overdue)}
        profile = replace(profile, lend=ReclaimTimeout(profile.lend, lent.overdue, frozenset(leaving)))
    plan = schedule(snapshot, profile)
    failed: dict[str, Exception] = {}
    decided = {name: found for name, found in candidates.items() if found.job is not None}
    return PlannedRound(snapshot, decide(plan, decided, failed.__setitem__), failed, plan, lent)


def _leaving(found: JobView, nodes: Collection[str]) -> bool:
    """Whether a job has pods on these nodes that are not ending yet: a job that is past its preparation leaves at once,
    before a stop could make it."""
    goes = found.state is not None and found.state.phase not in ("Stable", "Preparing")
    return not goes and any(node in nodes for node in (*found.used, *found.other_usage))


# -- Reservations that failed ------------------------------------------------------------------------------------------
# Reserved capacity costs its job nothing. A job whose pods can never start (scheduling gates, a quota that admits none)
# would keep it from all others, and the same job under another name could do so again, for ever. So a job whose pods
# are known not to come gets little time, and reservations that failed count against their namespace for a while.

# Seconds that a failed reservation counts.
_REMEMBERED_S: Final = 600.0
# More of them change nothing.
_MOST: Final = 8


@dataclass(frozen=True, slots=True)
class _Reservation:
    """`failed`: no pod came in time. `open`: no pod has come yet."""

    uid: str
    failed: bool
    open: bool


class ReservationFailures:
    """How many reservations of each namespace's jobs failed lately. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._at: dict[str, deque[float]] = {}
        self._seen: Mapping[str, int] = {}

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
        """The jobs of these in whose namespace the count has changed since the last call."""
        before, self._seen = self._seen, self.counts(now_s)
        others = {name for name in {*before, *self._seen} if before.get(name) != self._seen.get(name)}
        return {key for key in keys if key[0] in others} if others else set()

    def follow(self, key: Key, before: JobView | None, found: JobView | None, now_s: float) -> None:
        """Compare a job's description with its last one; None: the job does not exist."""
        was, is_ = _reservation(before), _reservation(found)
        same = was is not None and is_ is not None and was.uid == is_.uid
        failed = is_ is not None and is_.failed and not (same and was is not None and was.failed)
        # The reservation of a job that is deleted before any of its pods has a node has failed, too.
        left = was is not None and was.open and not (same and _stays(found)) and not _came(found)
        if failed or left:
            self._at.setdefault(key[0], deque(maxlen=_MOST)).append(now_s)


def _reservation(found: JobView | None) -> _Reservation | None:
    if found is None or found.source is None:
        return None
    pending = found.pending_since_s is not None
    open_ = found.job is not None and pending and not found.bound and any(found.pending.values())
    return _Reservation(found.source.uid, found.job is None and pending, open_)


def _stays(found: JobView | None) -> bool:
    """Whether a job is still decided for, or is not since its reservation failed."""
    return found is not None and (found.job is not None or found.pending_since_s is not None)


def _came(found: JobView | None) -> bool:
    """Whether pods came after all: they are still there, or the job has succeeded meanwhile."""
    if found is None:
        return False
    return bool(found.other_usage) or (found.source is not None and found.source.status().is_true("Succeeded"))
