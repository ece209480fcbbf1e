"""Computes a round of the scheduling loop: the description of each job, and the profile's plan. Pure.

The cost grows with jobs and replicas, so the loop runs it in a thread.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
from elastic_tfjob.controller.planning.job_view import JobView, view_of
from elastic_tfjob.controller.planning.lending import NO_LENDING, Lending, LendingInput, ReclaimTimeout, lending
from elastic_tfjob.controller.planning.targets import decide
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.profile_errors import blamed_on
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.snapshot import NO_RULES, ClusterRules, Snapshot
from elastic_tfjob.speed.history import History

__all__ = ["ReservationFailures", "assemble"]

# -- All jobs and nodes as one Snapshot --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeMarks:
    """Names of nodes: those that an autoscaler removes once they are empty, and those that jobs leave to it. `prices`
    are per hour, where they are known."""

    autoscaled: frozenset[str] = frozenset()
    given_up: frozenset[str] = frozenset()
    prices: Mapping[str, float] = field(default_factory=dict)


NO_MARKS: Final = NodeMarks()


def assemble(
    views: Iterable[JobView],
    nodes: Mapping[str, KubeNode],
    foreign: Iterable[ForeignPod],
    now_s: float,
    previous: core.Snapshot | None = None,
    *,
    history: History = core.NOTHING_LEARNED,
    lending: Lending = NO_LENDING,
    cluster_rules: ClusterRules = NO_RULES,
    marks: NodeMarks = NO_MARKS,
    leaving: Mapping[str, float] = core.NONE_LEAVING,
) -> core.Snapshot:
    """All jobs and nodes as a Snapshot, with only the differences applied to the `previous` one. `nodes` take replicas;
    those in `leaving` do not, and are gone at that Unix time.

    A node always has capacity for what the jobs' own pods request there: these pods run, and the kubelet admits no more
    than the node has. Requests of other pods beyond that are ignored, since such pods never get what they request:
    examples are a pod whose author set its nodeName, and a pod that was resized.
    """
    used = {name: [0] * len(NOTHING) for name in nodes}
    floor = {name: [0] * len(NOTHING) for name in nodes}
    jobs: dict[str, core.Job] = {}
    for each in views:
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
            free[name] = core.Node(
                name,
                capacity,
                left,
                labels=labels,
                taints=node.taints,
                spot=node.spot,
                avoid=node.avoid,
                autoscaled=name in marks.autoscaled,
                given_up=name in marks.given_up,
                price=marks.prices.get(name, 0.0),
            )
        else:  # the operator's own taint keeps away the pool's pods, not loanable jobs
            taints = tuple(without_loaned(node.taints))
            free[name] = core.Node(
                name,
                capacity,
                left,
                standing.pool,
                labels,
                taints,
                standing.accelerator_speed,
                standing.loan,
                node.spot,
                node.avoid,
            )
    if previous is None:
        return core.Snapshot(
            now_s, free, jobs, pools=lending.pools, history=history, cluster_rules=cluster_rules, leaving=leaving
        )
    return previous.evolve(
        now_s,
        changed=[job for key, job in jobs.items() if previous.jobs.get(key) != job],
        removed=[key for key in previous.jobs if key not in jobs],
        nodes=None if free == previous.nodes else free,
        pools=lending.pools,
        history=history,
        cluster_rules=cluster_rules,
        leaving=leaving,
    )


def _add(used: dict[str, list[int]], node: str, amount: Resources) -> None:
    if (sums := used.get(node)) is not None:
        for i, part in enumerate(amount):
            sums[i] += part


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """What the caches contain about one job: the input of its description. `admitted`: as in JobRequest."""

    job: TFJob | None
    pods: tuple[Pod, ...]
    reports: Mapping[str, Report]
    before: JobView | None
    rejected_nodes: Mapping[Pair, RejectedNodes]
    admitted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Described:
    """A job's description (`found`), the nodes that it cannot use, and the seconds until another node may be rejected
    (`again_s`; None: no pod waits). `error`: why nothing can be decided for the job."""

    found: JobView
    rejected_nodes: Mapping[Pair, RejectedNodes]
    again_s: float | None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """A plan and the targets that follow from it. `failed` has the error of each job whose target could not be derived.
    `lent`: the loans of this round."""

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
    cordoned: Mapping[str, str],
    leaving: Mapping[str, float] = core.NONE_LEAVING,
    failed: Mapping[str, int] | None = None,
    barred: Collection[str] = (),
    configured: ContainerResources = DEFAULT_RESOURCES,
) -> dict[Key, Described]:
    """Each job's description. For a job that cannot be described nothing is decided, and all that its pods use counts
    as used. `everything`: the profile also decides for jobs without annotations. `failed`: the number of failed
    reservations by namespace; `barred`: uids of jobs whose pods cannot be created; `configured`: the resources of
    injected containers."""
    now_s = now.timestamp()
    described: dict[Key, Described] = {}
    for key, each in seen.items():
        try:
            rejected_nodes = judge(each.rejected_nodes, each.pods, now_s)
            found = view_of(
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
                leaving=leaving,
                failed=(failed or {}).get(key[0], 0),
                barred=each.job is not None and each.job.uid in barred,
                configured=configured,
                admitted=each.admitted,
            )
            described[key] = Described(found, rejected_nodes, verdict_due_s(each.pods, now_s))
        except Exception as error:
            described[key] = Described(
                replace(view_of(None, each.pods, nodes=nodes, now=now), source=each.job), {}, None, error
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
    cluster_rules: ClusterRules = NO_RULES,
    marks: NodeMarks = NO_MARKS,
    leaving: Mapping[str, float] = core.NONE_LEAVING,
) -> PlannedRound:
    """The profile's plan and targets for these jobs, given by their names in the Snapshot. `cluster`: the input of
    lending; None: no node is part of it. `cluster_rules`: what jobs may do here. `marks`: what an autoscaler does with
    nodes. `leaving`: as for `assemble`. Raises ProfileError."""
    lent = NO_LENDING if cluster is None else lending(cluster, now_s)
    with blamed_on(profile.name):  # the profile's order sorts changed jobs here
        snapshot = assemble(
            candidates.values(),
            nodes,
            foreign,
            now_s,
            previous,
            history=history,
            lending=lent,
            cluster_rules=cluster_rules,
            marks=marks,
            leaving=leaving,
        )
    if lent.overdue:
        stopping = frozenset(name for name, found in candidates.items() if _leaving(found, lent.overdue))
        profile = replace(profile, lend=ReclaimTimeout(profile.lend, lent.overdue, stopping))
    with blamed_on(profile.name):
        plan = schedule(snapshot, profile)
    failed: dict[str, Exception] = {}
    decided = {name: found for name, found in candidates.items() if found.job is not None}
    return PlannedRound(snapshot, decide(plan, decided, failed.__setitem__), failed, plan, lent)


def _leaving(found: JobView, nodes: Collection[str]) -> bool:
    """Whether a job must still leave these nodes: it has pods there, and its resize, if any, is not past the phase
    `Preparing`. In a later phase the job leaves at once, sooner than by a stop."""
    goes = found.state is not None and found.state.phase not in ("Stable", "Preparing")
    return not goes and any(node in nodes for node in (*found.used, *found.other_usage))


# -- Reservations that failed ------------------------------------------------------------------------------------------
# Reserved capacity costs a job nothing. A job whose pods can never start (because of scheduling gates, or a quota that
# admits none) would withhold it from all other jobs, and its user could repeat that with a new job name. So capacity is
# reserved only briefly for pods that are known to be unable to start, and failed reservations count against their
# namespace for a while.

# Seconds for which a failed reservation counts.
_REMEMBERED_S: Final = 600.0
# Maximum number of failed reservations that count per namespace.
_MOST: Final = 8


@dataclass(frozen=True, slots=True)
class _Reservation:
    """A job's reservation. `failed`: no pod was bound in time. `open`: no pod is bound yet."""

    uid: str
    failed: bool
    open: bool


class ReservationFailures:
    """Counts the reservations of each namespace's jobs that failed lately. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._at: dict[str, deque[float]] = {}
        self._seen: Mapping[str, int] = {}

    def clear(self) -> None:
        """Forgets all failures."""
        self._at.clear()

    def counts(self, now_s: float) -> Mapping[str, int]:
        """The number of failures by namespace; namespaces without failures are omitted."""
        for namespace, times in list(self._at.items()):
            while times and now_s - times[0] >= _REMEMBERED_S:
                times.popleft()
            if not times:
                del self._at[namespace]
        return {namespace: len(times) for namespace, times in self._at.items()}

    def changed(self, keys: Iterable[Key], now_s: float) -> set[Key]:
        """Those of the jobs `keys` whose namespace has had a change of its count since the last call."""
        before, self._seen = self._seen, self.counts(now_s)
        others = {name for name in {*before, *self._seen} if before.get(name) != self._seen.get(name)}
        return {key for key in keys if key[0] in others} if others else set()

    def follow(self, key: Key, before: JobView | None, found: JobView | None, now_s: float) -> None:
        """Counts a failure if the job's reservation has failed since its previous description, `before`. None: the job
        does not exist."""
        was, is_ = _reservation(before), _reservation(found)
        same = was is not None and is_ is not None and was.uid == is_.uid
        failed = is_ is not None and is_.failed and not (same and was is not None and was.failed)
        # If a job is deleted before any of its pods is bound, its reservation has failed, too.
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
    """Whether the profile decides for a job, or does not only because the job's reservation failed."""
    return found is not None and (found.job is not None or found.pending_since_s is not None)


def _came(found: JobView | None) -> bool:
    """Whether the job's pods started after all: they exist, or the job has succeeded in the meantime."""
    if found is None:
        return False
    return bool(found.other_usage) or (found.source is not None and found.source.status().is_true("Succeeded"))
