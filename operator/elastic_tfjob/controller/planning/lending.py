"""Computes loans in each round: the pools' nodes for the core, and the writes that loans need under any plan. Pure.

Level-based: everything that is known about a loan is stored on its node. Users or other controllers may have changed
the label, taint or annotation, or have cordoned or deleted the node. Only the present state counts. An inconsistent
state becomes a recall, which returns the node once the jobs have left.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from elastic_tfjob.controller.model.affinity import NAME_FIELD
from elastic_tfjob.controller.model.cluster import ForeignPod, KubeNode, PendingPod, Stage, without_loaned
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.settings import PoolSettings
from elastic_tfjob.scheduling.plan import Loan
from elastic_tfjob.scheduling.profile import Step
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import NOTHING, Constraints, Resources, Taint
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import LoanState, Pool

__all__ = [
    "MAX_PODS",
    "MAX_SHAPES",
    "MAX_TERMS",
    "NO_LENDING",
    "Bin",
    "Lending",
    "LendingInput",
    "LentNode",
    "LoanWrite",
    "NeededNodes",
    "asked_by_plan",
    "concerned",
    "lending",
    "needed",
    "stage_of",
]

# -- How many lent nodes a pool's pending pods need back ---------------------------------------------------------------
# First fit, the largest pods first. kube-scheduler decides where the pods really run; this only computes whether a
# returned node would help them. A pod that fits on a node that the pool has, or on one that is being returned, recalls
# no further node; nor does a pod that fits on no node of the pool.

MAX_PODS: Final = 2_000
"""Maximum number of pending pods that are considered per pool."""
MAX_SHAPES: Final = 64
"""Maximum number of different requests and constraints of pending pods that are considered per pool: each is checked
against each node."""
MAX_TERMS: Final = 64
"""Maximum number of a pod's selector labels, affinity values and tolerations; a pod with more is not considered."""


@dataclass(slots=True)
class Bin:
    """A node with its free capacity, labels and taints, as kube-scheduler would see them for the pool's own pods."""

    name: str
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    free: Resources


@dataclass(frozen=True, slots=True)
class NeededNodes:
    """The nodes that a pool's pending pods need. `kept`: nodes of the pool on which pending pods fit; `recalled`: lent
    nodes that pending pods need; `named`: those of them that cannot be replaced by any other lent node. `room`,
    `recall` and `unplaceable` count pods that fit on the pool's nodes, that need a recalled node, and that fit nowhere
    or were not considered. `left`: the pods that fit nowhere."""

    kept: frozenset[str]
    recalled: tuple[str, ...]
    named: frozenset[str]
    room: int
    recall: int
    unplaceable: int
    left: tuple[PendingPod, ...]


def needed(pods: Iterable[PendingPod], open_: Sequence[Bin], lent: Sequence[Bin]) -> NeededNodes:
    """Assigns `pods` first to `open_`, the nodes that the pool has or gets back, then to `lent` nodes, in this order.
    Reduces the bins' free capacity."""
    shapes: dict[tuple[Resources, Constraints], list[PendingPod]] = {}
    looked_at, beyond = 0, 0
    for pod in pods:
        shape = pod.requests, pod.constraints
        if (
            looked_at >= MAX_PODS
            or _terms(pod.constraints) > MAX_TERMS
            or (shape not in shapes and len(shapes) >= MAX_SHAPES)
        ):
            beyond += 1
            continue
        looked_at += 1
        shapes.setdefault(shape, []).append(pod)
    kept: set[str] = set()
    recalled: dict[str, None] = {}
    named: set[str] = set()
    left: list[PendingPod] = []
    count = Counter[str]()
    for (request, constraints), wanting in sorted(shapes.items(), key=lambda item: _size(item[0][0]), reverse=True):
        n = len(wanting)
        for bin_ in open_:
            if n and (took := _fill(bin_, request, constraints, n)):
                kept.add(bin_.name)
                count["room"] += took
                n -= took
        fits = [bin_ for bin_ in lent if n and _holds(bin_, request, constraints)]
        # Nodes that are recalled already come first.
        for bin_ in sorted(fits, key=lambda each: each.name not in recalled):
            if n and (took := _fill(bin_, request, constraints, n)):
                recalled.setdefault(bin_.name)
                if len(fits) < len(lent):
                    named.add(bin_.name)
                count["recall"] += took
                n -= took
        left += wanting[len(wanting) - n :]
    return NeededNodes(
        frozenset(kept),
        tuple(recalled),
        frozenset(named),
        count["room"],
        count["recall"],
        len(left) + beyond,
        tuple(left),
    )


def _terms(found: Constraints) -> int:
    affinity = sum(1 + len(requirement.values) for term in found.affinity for requirement in term)
    return len(found.selector) + affinity + len(found.tolerations)


def _size(request: Resources) -> tuple[int, int, int]:
    return request.accelerators, request.cpu_millicores, request.memory_bytes


def _holds(bin_: Bin, request: Resources, constraints: Constraints) -> bool:
    return request.within(bin_.free) and constraints.admit(bin_.labels, bin_.taints)


def _fill(bin_: Bin, request: Resources, constraints: Constraints, most: int) -> int:
    """How many of at most `most` such pods fit on the node. Reduces its free capacity by theirs."""
    if not _holds(bin_, request, constraints):
        return 0
    fits = min((have // each for have, each in zip(bin_.free, request, strict=True) if each > 0), default=most)
    took = min(most, fits)
    bin_.free = bin_.free.minus(request.times(took))
    return took


_NO_SETTINGS: Final = PoolSettings(namespaces=("default",))


@dataclass(frozen=True, slots=True)
class LendingInput:
    """The input of one round. `nodes`: the nodes that are part of lending (`concerned`). `trained`: what pods of TFJobs
    hold, by node. `guests`: the pods of TFJobs that the operator placed, by node; `staying`: nodes with such a pod that
    no plan can stop, since its job is no longer loanable. Both are empty without a plan. `promised`: nodes that
    loanable jobs of the profile hold, or will hold. `wants`: the minimum number of nodes of each pool. `refused`: nodes
    that could not be written a short while ago. Without `may_lend` no further node is offered. `hard_s`: seconds after
    the grace period for which the operator waits for pods that are still on the node."""

    nodes: Mapping[str, KubeNode]
    pools: Mapping[str, PoolSettings]
    foreign: tuple[ForeignPod, ...] = ()
    pending: tuple[PendingPod, ...] = ()
    trained: Mapping[str, Resources] = field(default_factory=dict)
    guests: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    staying: frozenset[str] = frozenset()
    promised: frozenset[str] = frozenset()
    wants: Mapping[str, int] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    may_lend: bool = True
    hard_s: float = 180.0

    def holds_jobs(self, name: str) -> bool:
        """Whether pods of a TFJob are on a node, or will be."""
        return name in self.trained or name in self.promised


@dataclass(frozen=True, slots=True)
class LentNode:
    """A node's `pool`, the state of its loan for the core, and the relative speed of its accelerators."""

    pool: str
    loan: LoanState
    accelerator_speed: float = 1.0


@dataclass(frozen=True, slots=True)
class LoanWrite:
    """A change of a loan: its new stage, and whether the node should have the taint. `seen`: the node as it was at the
    decision. `late`: the node is returned although pods of jobs are still on it."""

    seen: KubeNode
    stage: Stage
    tainted: bool
    pool: str
    why: str
    late: bool = False

    @property
    def renews(self) -> bool:
        """Whether the stage begins with this write."""
        return self.seen.loan is None or self.seen.loan.stage != self.stage


@dataclass(frozen=True, slots=True)
class Lending:
    """The loans of one round. `nodes` and `pools` are for the Snapshot. `overdue`: nodes on which jobs are stopped.
    `evicted`: pods to delete, since no stop of their job ends them. `counts` (nodes by pool and state) and `pending`
    (pods by pool and fit) are for metrics. `unplaced`: the pools' pending pods that no recall would help."""

    nodes: Mapping[str, LentNode] = field(default_factory=dict)
    pools: Mapping[str, Pool] = field(default_factory=dict)
    overdue: frozenset[str] = frozenset()
    writes: tuple[LoanWrite, ...] = ()
    evicted: tuple[Pod, ...] = ()
    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    pending: Mapping[tuple[str, str], int] = field(default_factory=dict)
    unplaced: tuple[PendingPod, ...] = ()


NO_LENDING: Final = Lending()


def concerned(node: KubeNode, pools: Collection[str]) -> bool:
    """Whether a node is part of lending: its pool lends nodes, or it has not been returned yet."""
    return node.pool in pools or (node.loan is not None and (node.tainted or node.loan.stage != "returned"))


def lending(cluster: LendingInput, now_s: float) -> Lending:
    """The state of each node, the demand of each pool, and the writes. See docs/loans.md for the rules."""
    writes: dict[str, LoanWrite] = {}
    overdue: set[str] = set()
    evicted: list[Pod] = []
    for node in cluster.nodes.values():
        if (write := _mended(node, cluster, now_s)) is not None:
            writes[node.name] = write
        if stage_of(node) == "recalled" and _age_s(node, now_s) >= _settings(node, cluster).grace_s:
            overdue.add(node.name)
        if _is_late(node, cluster, now_s):
            evicted += (pod for pod in cluster.guests.get(node.name, ()) if not pod.terminating)
    nodes: dict[str, LentNode] = {}
    pools: dict[str, Pool] = {}
    counts: Counter[tuple[str, str]] = Counter()
    pending: dict[tuple[str, str], int] = {}
    theirs = {name for settings in cluster.pools.values() for name in settings.namespaces}
    waiting = tuple(pod for pod in cluster.pending if pod.namespace in theirs)
    for pool in sorted(cluster.pools):
        mine, wants, found = _pool(pool, cluster, waiting, writes, now_s)
        waiting = (*found.left, *(pod for pod in waiting if pod.namespace not in cluster.pools[pool].namespaces))
        nodes |= mine
        pools[pool] = wants
        pending |= {(pool, "room"): found.room, (pool, "recall"): found.recall, (pool, "nowhere"): found.unplaceable}
    for node in cluster.nodes.values():
        stage, pool = stage_of(node), node.loan.pool if node.loan is not None else node.pool
        if node.name not in nodes and stage != "recalled" and (stage == "loaned" or node.pool in cluster.pools):
            nodes[node.name] = LentNode(pool, "busy", _settings(node, cluster).accelerator_speed)
        if stage in ("recalled", "loaned"):
            counts[pool, stage] += 1
        elif node.name in nodes:
            counts[pool, "offered" if nodes[node.name].loan == "offered" else "own"] += 1
    for pool in cluster.pools:
        for state in ("own", "offered", "loaned", "recalled"):
            counts.setdefault((pool, state), 0)
    return Lending(
        nodes, pools, frozenset(overdue), tuple(writes.values()), tuple(evicted), dict(counts), pending, waiting
    )


def asked_by_plan(loans: Iterable[Loan], found: Lending, cluster: LendingInput) -> tuple[LoanWrite, ...]:
    """The writes for a plan's loans. A node without jobs is returned at once."""
    mended = {write.seen.name for write in found.writes}
    writes = []
    for loan in loans:
        node, standing = cluster.nodes.get(loan.node), found.nodes.get(loan.node)
        if node is None or standing is None or loan.node in mended:
            continue
        why = str(loan.reason)
        if loan.action == "borrow":
            writes.append(LoanWrite(node, "loaned", True, standing.pool, why))
        elif cluster.holds_jobs(loan.node):
            writes.append(LoanWrite(node, "recalled", True, standing.pool, why))
        else:
            writes.append(LoanWrite(node, "returned", False, standing.pool, why))
    return tuple(writes)


def stage_of(node: KubeNode) -> Stage | None:
    """The stage of a node's loan, from its annotation; None: it has no loan."""
    return node.loan.stage if node.loan is not None else None


def _stuck(node: KubeNode, cluster: LendingInput, now_s: float) -> bool:
    """Whether jobs are still on a node that its pool already has back: they did not leave in time, and may never do."""
    return not node.tainted and cluster.holds_jobs(node.name) and _is_late(node, cluster, now_s)


def _is_late(node: KubeNode, cluster: LendingInput, now_s: float) -> bool:
    """Whether the time for jobs to leave a recalled node is over."""
    return stage_of(node) == "recalled" and _age_s(node, now_s) >= _settings(node, cluster).grace_s + cluster.hard_s


def _age_s(node: KubeNode, now_s: float) -> float:
    return node.loan.age_s(now_s) if node.loan is not None else 0.0


def _settings(node: KubeNode, cluster: LendingInput) -> PoolSettings:
    return cluster.pools.get(node.loan.pool if node.loan is not None else node.pool, _NO_SETTINGS)


def _mended(node: KubeNode, cluster: LendingInput, now_s: float) -> LoanWrite | None:
    """The write that a node needs under any plan: a recall that no plan requests, or a recall's end. None: no write."""
    stage = stage_of(node)
    pool = node.loan.pool if node.loan is not None else node.pool
    if stage == "recalled":
        assert node.loan is not None
        if not cluster.holds_jobs(node.name):
            return LoanWrite(node, "returned", False, pool, node.loan.why)
        if node.tainted and _is_late(node, cluster, now_s):
            return LoanWrite(node, "recalled", False, pool, node.loan.why, late=True)
        return None
    why = _trouble(node, stage, cluster)
    return LoanWrite(node, "recalled", node.tainted, pool, why) if why else None


def _trouble(node: KubeNode, stage: Stage | None, cluster: LendingInput) -> str:
    """Why a node must be returned or cleared of jobs although no plan recalls it; empty: no reason."""
    if stage == "loaned":
        assert node.loan is not None
        if not node.tainted:
            return "the taint was removed"
        if node.pool != node.loan.pool:
            return f"its label is now {node.pool or 'empty'}" if len(node.pool) < 64 else "its label has changed"
        if node.loan.pool not in cluster.pools:
            return f"pool {node.loan.pool} no longer lends"
        if node.name in cluster.staying:
            return "a job on it is no longer loanable"
        return f"it is being drained ({node.draining})" if node.draining else "it is cordoned" if node.cordoned else ""
    if node.tainted:
        return "it has the taint of a loan but was not lent"
    if stage in (None, "returned") and node.pool in cluster.pools and node.name in cluster.promised:
        # Also for a node that was deleted while it was lent, and recreated under the same name.
        return "a job is assigned to it, but it is not lent"
    return ""


def _pool(
    pool: str, cluster: LendingInput, waiting: Iterable[PendingPod], writes: Mapping[str, LoanWrite], now_s: float
) -> tuple[dict[str, LentNode], Pool, NeededNodes]:
    """One pool's nodes, its demand, and the nodes that its pending pods need."""
    settings = cluster.pools[pool]
    served: dict[str, list[int]] = {}
    occupied: set[str] = set()
    serving: set[str] = set()
    for pod in cluster.foreign:
        if pod.node in cluster.nodes:
            sums = served.setdefault(pod.node, [0] * len(NOTHING))
            for i, part in enumerate(pod.requests):
                sums[i] += part
            if not pod.stays:
                occupied.add(pod.node)
                if pod.namespace in settings.namespaces:
                    serving.add(pod.node)
    own: list[KubeNode] = []
    coming: list[KubeNode] = []
    late: list[KubeNode] = []
    lent: list[KubeNode] = []
    for node in cluster.nodes.values():
        if node.pool != pool or not node.usable:
            continue
        if stage_of(node) == "recalled" or node.name in writes:
            (late if _stuck(node, cluster, now_s) else coming).append(node)
        elif stage_of(node) == "loaned":
            lent.append(node)
        else:
            own.append(node)
    lent.sort(key=lambda node: (cluster.holds_jobs(node.name), node.name))

    def bin_of(node: KubeNode, taken: Resources = NOTHING) -> Bin:
        room = node.allocatable.minus(Resources(*served.get(node.name, NOTHING))).minus(taken).positive()
        return Bin(node.name, {**node.labels, NAME_FIELD: node.name}, tuple(without_loaned(node.taints)), room)

    found = needed(
        (pod for pod in waiting if pod.waits and pod.namespace in settings.namespaces),
        [
            *(bin_of(node, cluster.trained.get(node.name, NOTHING)) for node in (*own, *late)),
            *(bin_of(node) for node in coming),
        ],
        [bin_of(node) for node in lent],
    )
    idle = [
        node for node in own if not (node.name in occupied or node.name in found.kept or cluster.holds_jobs(node.name))
    ]
    idle_soon = len(idle) + sum(node.name not in found.kept and node.name not in occupied for node in coming)
    asked = {*found.recalled, *(node.name for node in lent if node.name in serving)}
    soon = len(own) + len(coming) + len(asked)
    short = max(0, settings.headroom - idle_soon, cluster.wants.get(pool, 0) - soon)
    wanted = min(len(lent), len(asked) + short)
    offered = [
        node
        for node in idle
        if node.name not in cluster.refused and (node.loan is None or _age_s(node, now_s) >= settings.hold_s)
    ]
    spare = min(len(offered), idle_soon - settings.headroom, len(own) + len(coming) - cluster.wants.get(pool, 0))
    spare = max(0, spare) if cluster.may_lend and not wanted else 0
    named, speed = found.named | (serving & asked), settings.accelerator_speed
    ready = {node.name for node in offered} if spare else set[str]()
    standing: dict[str, LentNode] = {
        node.name: LentNode(pool, "offered" if node.name in ready else "busy", speed) for node in own
    }
    standing |= {node.name: LentNode(pool, "reclaiming" if node.name in named else "loaned", speed) for node in lent}
    return standing, Pool(wanted, spare), found


# -- Stop the jobs that are still on a recalled node after its grace period, under any profile -------------------------


@dataclass(frozen=True, slots=True)
class ReclaimTimeout:
    """A scheduling step that runs the profile's own step `lend`, then stops the jobs on `nodes`. A stop requests a
    checkpoint first; after its own time limit (rescale.stop_timeout_s) the job's pods are deleted without one.
    `leaving`: keys of jobs with pods on these nodes, including jobs that only prepare to move away."""

    lend: Step | None
    nodes: frozenset[str]
    leaving: frozenset[str] = frozenset()

    def __call__(self, round_: Round) -> None:
        if self.lend is not None:
            self.lend(round_)
        for job in (*round_.running_in_order(), *round_.rescaling()):
            held = round_.placement(job)
            leaves = bool(held) and job.phase == "rescaling" and job.key in self.leaving
            if leaves or any(not self.nodes.isdisjoint(names) for names in held.values()):
                round_.stop(job, Reason("node-returns"), "reclaim")
