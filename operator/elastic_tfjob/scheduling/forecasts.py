"""Forecasts: when each job is expected to finish under a plan, and whether that meets its deadline.

This is the one source of expected finish times: the operator shows them (state's `eta`), the simulator compares them
with the outcome, and profiles decide by them. They are computed on demand.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import inf, isfinite
from typing import Final

from elastic_tfjob.scheduling.resources import NOTHING, Resources, total_of
from elastic_tfjob.scheduling.room import admitting
from elastic_tfjob.scheduling.shared_cpu import slowest_usable, time_in_turn
from elastic_tfjob.scheduling.snapshot import (
    PS,
    WORKER,
    Counts,
    Cpu,
    Job,
    JobSpec,
    Node,
    Placement,
    Snapshot,
    counts_of,
)
from elastic_tfjob.speed.history import Past
from elastic_tfjob.speed.model import FinishTime, predict
from elastic_tfjob.speed.prediction import Prediction, Rate, Source

__all__ = [
    "UNKNOWN",
    "Attainable",
    "Forecast",
    "Forecasts",
    "attainable",
    "duration_left",
    "expected",
    "expected_rate",
    "forecast",
    "prediction_of",
    "work_left",
]

DURATION_ERROR = 0.4
"""Relative error (one standard deviation) of the duration that a user expects."""

Changed = Callable[[str], "tuple[Placement, Cpu] | None"]
"""By job, the nodes and CPU of its target; None: it does not change."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of one job, in seconds on the Snapshot's clock. `finish`, and `start_s` of a waiting job; None:
    unknown. `source`: where its speed is known from."""

    finish: FinishTime | None = None
    deadline_s: float | None = None
    start_s: float | None = None
    source: Source | None = None

    @property
    def slack_s(self) -> float | None:
        """Seconds from the expected finish to the deadline; negative for a late job. None: no deadline, or no known
        finish."""
        if self.deadline_s is None or self.finish is None:
            return None
        return self.deadline_s - self.finish.expected_s

    @property
    def meets(self) -> bool | None:
        """Whether the expected finish is by the deadline; None as for `slack_s`."""
        slack = self.slack_s
        return None if slack is None else slack >= 0

    @property
    def at_risk(self) -> bool:
        """Whether the job is expected to meet its deadline, although the forecast's interval ends after the
        deadline."""
        return bool(self.meets) and self.finish is not None and self.finish.latest_s > (self.deadline_s or inf)


UNKNOWN = Forecast()


def prediction_of(job: Job, past: Past | None = None, nodes: Mapping[str, Node] | None = None) -> Prediction:
    """The prediction of the job's speed at any size. `past`: what finished jobs of the same model taught; `nodes`: the
    nodes, for the speed of their accelerators."""
    spec = job.spec
    usable = slowest_usable(spec.groups, job.placement, job.cpu, shared=job.cpu_shared)
    estimate = None
    if spec.duration_s and spec.total_steps:
        estimate = (spec.declared, spec.total_steps / spec.duration_s)
    trains = job.steps_per_s if job.placement else 0.0
    pace = accelerator_speed(job.placement, nodes or {})
    use = time_in_turn(job)
    return Prediction(job.counts, trains, use, usable, job.speed, past, estimate, pace, limited=job.cpu_limited)


def accelerator_speed(placement: Placement, nodes: Mapping[str, Node]) -> float:
    """The speed of the slowest node, since replicas wait for each other."""
    return min(
        (nodes[name].accelerator_speed for names in placement.values() for name in names if name in nodes), default=1.0
    )


def work_left(job: Job, now: float, past: Past | None = None) -> tuple[float, float] | None:
    """Steps left, and their relative error: from the known total, else from finished jobs of the same model. None:
    unknown."""
    done = job.steps_at(now)
    if job.spec.total_steps is not None:
        return max(0.0, job.spec.total_steps - done), 0.0
    whole = past.steps if past is not None else None
    if whole is None:
        return None
    left = max(0.0, whole.value - done)
    # The steps done are known exactly, so the whole error of the total is in the steps left.
    return left, (whole.relative_error * whole.value / left if left else 0.0)


def expected(now: float, left: tuple[float, float], rate: Rate) -> FinishTime:
    """The finish of this work (steps left and their relative error) from `now` on."""
    return predict(now, left[0], rate.steps_per_s, (rate.relative_error**2 + left[1] ** 2) ** 0.5)


def expected_rate(
    job: Job,
    *,
    placement: Placement | None = None,
    cpu: Cpu | None = None,
    counts: Counts | None = None,
    past: Past | None = None,
    nodes: Mapping[str, Node] | None = None,
) -> Rate | None:
    """The speed of a job as it is; or with this `placement` and `cpu`; or at the size `counts`. None: unknown."""
    then_on = job.placement if placement is None else placement
    size = counts or counts_of(then_on)
    usable = None
    if cpu is not None or placement is not None:
        held = job.cpu if cpu is None else cpu
        usable = slowest_usable(job.spec.groups, then_on, held, shared=job.cpu_shared)
    pace = accelerator_speed(then_on, nodes or {}) if placement is not None else None
    return prediction_of(job, past, nodes).at(size, usable, pace)


def forecast(
    job: Job,
    now: float,
    *,
    placement: Placement | None = None,
    cpu: Cpu | None = None,
    counts: Counts | None = None,
    past: Past | None = None,
    nodes: Mapping[str, Node] | None = None,
    begins_s: float | None = None,
) -> Forecast:
    """The forecast of a job as it is; or with this `placement` and `cpu`; or at the size `counts` from `begins_s` on.
    The pause of a start or rescale under way is in `job.observed_s`."""
    spec = job.spec
    begins = max(now, job.observed_s if job.placement else now, begins_s if begins_s is not None else now)
    start_s = None if job.placement else begins
    rate = expected_rate(job, placement=placement, cpu=cpu, counts=counts, past=past, nodes=nodes)
    left = work_left(job, now, past)
    if rate is not None and rate.steps_per_s > 0 and left is not None:
        return Forecast(expected(begins, left, rate), spec.deadline_s, start_s, rate.source)
    lasts = duration_left(job, now, past)
    finish = None if lasts is None else predict(begins, lasts[0], 1.0, lasts[1])
    return Forecast(finish, spec.deadline_s, start_s, None if lasts is None else lasts[2])


def duration_left(job: Job, now: float, past: Past | None) -> tuple[float, float, Source] | None:
    """Seconds left by the expected duration, else by that of finished jobs; for jobs of unknown speed or work."""
    ran = job.executed_s + (max(0.0, now - job.since_s) if job.placement else 0.0)
    if job.spec.duration_s is not None:
        return max(0.0, job.spec.duration_s - ran), DURATION_ERROR, "estimated"
    took = past.duration_s if past is not None else None
    return None if took is None else (max(0.0, took.value - ran), took.relative_error, "history")


class Forecasts(Mapping[str, Forecast]):
    """The forecasts of all jobs of a Snapshot under a plan, computed on demand.

    `changed` has the targets of the plan; `order` the waiting jobs in order. The start of a waiting job follows from
    totals: in order, each job starts as soon as free resources, with those of jobs that end, hold its minimum (list
    scheduling without backfill, Graham, 1969). So the forecast start is too late if later jobs may start first, and too
    early if the free resources are scattered over nodes. A waiting job that orders nodes starts when these usually
    come; `orders` has the orders by job.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        changed: Changed,
        order: Callable[[], Iterable[str]],
        orders: Mapping[str, Counts],
    ) -> None:
        self._snapshot = snapshot
        self._changed = changed
        self._order = order
        self._orders = orders
        self._known: dict[str, Forecast] = {}
        self._waiting: dict[str, Forecast] | None = None

    def __getitem__(self, key: str) -> Forecast:
        known = self._known.get(key)
        if known is None:
            job = self._snapshot.jobs[key]
            given = self._changed(key)
            holds = job.placement if given is None else given[0]
            known = self._known[key] = self._of_holder(job, given) if holds else self._of_waiting(key)
        return known

    def of_holder(self, key: str) -> Forecast | None:
        """The forecast of a job that runs under the plan; None: it waits, or is not in the Snapshot. Never computes the
        starts of the queue."""
        job = self._snapshot.jobs.get(key)
        if job is None:
            return None
        given = self._changed(key)
        return self[key] if (job.placement if given is None else given[0]) else None

    def __iter__(self) -> Iterator[str]:
        return iter(self._snapshot.jobs)

    def __len__(self) -> int:
        return len(self._snapshot.jobs)

    def _past(self, job: Job) -> Past | None:
        return self._snapshot.past(job.spec)

    def _of_holder(self, job: Job, given: tuple[Placement, Cpu] | None) -> Forecast:
        now, nodes = self._snapshot.now, self._snapshot.nodes
        if given is None:
            return forecast(job, now, past=self._past(job), nodes=nodes)
        return forecast(job, now, placement=given[0], cpu=given[1], past=self._past(job), nodes=nodes)

    def _of_waiting(self, key: str) -> Forecast:
        if self._waiting is None:
            self._waiting = dict(self._starts())
        return self._waiting.get(key, UNKNOWN)

    def _starts(self) -> Iterator[tuple[str, Forecast]]:
        """The forecasts of all waiting jobs."""
        snapshot = self._snapshot
        own = [node for node in snapshot.nodes.values() if node.loan in ("own", "loaned")]
        free, capacity = NOTHING, NOTHING
        for node in own:
            free, capacity = free.plus(node.free), capacity.plus(node.free)
        ends: list[tuple[float, str, Resources]] = []
        stopped = []
        for key, job in snapshot.jobs.items():
            given = self._changed(key)
            placement, cpu = (job.placement, job.cpu) if given is None else given
            if not placement:
                if job.placement:
                    stopped.append(key)
                continue
            demand = job.spec.demand(counts_of(placement))
            if cpu:
                demand = demand.plus(Resources(job.spec.extra_cpu(cpu)))
            free = free.minus(demand)
            finish = self[key].finish
            if finish is not None and finish.expected_s < inf:
                ends.append((finish.expected_s, key, demand))
        heapify(ends)
        at = snapshot.now
        for key in (*self._order(), *stopped):
            job = snapshot.jobs[key]
            if (given := self._changed(key)) is not None and given[0]:
                continue
            rules = snapshot.cluster_rules.orders
            if rules is not None and (counts := self._orders.get(key)):
                comes_s = rules.since_s.get(key, snapshot.now) + rules.lead_s
                yield key, forecast(job, snapshot.now, counts=counts, past=self._past(job), begins_s=comes_s)
                continue
            least = job.spec.demand(job.spec.minimum)
            if not least.within(capacity):
                yield key, Forecast(deadline_s=job.spec.deadline_s)
                continue
            while not least.within(free) and ends:
                at, _, left = heappop(ends)
                at, free = max(at, snapshot.now), free.plus(left)
            if not least.within(free):
                yield key, Forecast(deadline_s=job.spec.deadline_s)
                continue
            declared = job.spec.declared
            counts = declared if job.spec.demand(declared).within(free) else job.spec.minimum
            expected = forecast(job, snapshot.now, counts=counts, past=self._past(job), begins_s=at)
            demand = job.spec.demand(counts)
            free = free.minus(demand)
            if expected.finish is not None and expected.finish.expected_s < inf:
                heappush(ends, (expected.finish.expected_s, key, demand))
            yield key, Forecast(expected.finish, expected.deadline_s, at, expected.source)


# -- Attainable: the least size with which a job meets a deadline from now on ------------------------------------------

EACH_UP_TO: Final = 8
"""Up to this number every count of a replica type is tried; larger counts in steps of about a quarter."""
STRIDE: Final = 1.25
MOST_WORKERS: Final = 512
"""Maximum number of workers that is suggested beyond the job's bounds."""


@dataclass(frozen=True, slots=True)
class Attainable:
    """`least`: the smallest size, within the job's bounds and the whole cluster, that meets the deadline; None: no size
    does. Then `fastest` is the size that ends first, `late_s` how many seconds too late, and `would_do` the least size
    beyond the bounds or the cluster that meets it; None: not even with MOST_WORKERS workers. `source`: where the speed
    at the named size is known from."""

    least: Counts | None = None
    fastest: Counts | None = None
    late_s: float = inf
    would_do: Counts | None = None
    source: Source | None = None


def attainable(job: Job, by_s: float, snapshot: Snapshot) -> Attainable | None:
    """The sizes with which the job would meet the deadline `by_s` (on the Snapshot's clock), if it had them from now
    on. None: too little is known."""
    now, past = snapshot.now, snapshot.past(job.spec)
    left = work_left(job, now, past)
    if left is None or not isfinite(left[0]):
        return None
    known = prediction_of(job, past, snapshot.nodes)
    begins = max(now, job.observed_s) if job.placement else now
    total = capacity(snapshot.nodes, job.spec)
    fastest: tuple[float, Counts, Source] | None = None
    too_large: tuple[Counts, Source] | None = None
    for counts in sizes(job.spec):
        rate = _rate(known, counts)
        if rate is None:
            continue
        ends = begins + left[0] / rate[0]
        fits = job.spec.demand(counts).within(total)
        if fits and ends <= by_s:
            return Attainable(counts, counts, 0.0, counts, rate[1])
        if fits and (fastest is None or ends < fastest[0]):
            fastest = ends, counts, rate[1]
        if not fits and ends <= by_s and too_large is None:
            too_large = counts, rate[1]
    if fastest is None and too_large is None:
        return None
    beyond = too_large or _beyond(job.spec, known, left[0], by_s - begins)
    return Attainable(
        fastest=None if fastest is None else fastest[1],
        late_s=inf if fastest is None else fastest[0] - by_s,
        would_do=None if beyond is None else beyond[0],
        source=beyond[1] if beyond is not None else None,
    )


def sizes(spec: JobSpec) -> list[Counts]:
    """Sizes within the bounds, smallest first; a selection where there are many."""
    if not spec.elastic:
        return [spec.declared]
    workers, servers = spec.group(WORKER), spec.group(PS)
    if workers is None:
        return [spec.minimum]
    choices: list[Counts] = []
    for w in _between(workers.minimum, workers.maximum):
        if servers is None:
            choices.append({**spec.minimum, WORKER: w})
        else:
            choices += [{**spec.minimum, WORKER: w, PS: p} for p in _between(servers.minimum, servers.maximum)]
    return sorted(choices, key=lambda counts: (sum(counts.values()), counts.get(PS, 0)))


def capacity(nodes: Mapping[str, Node], spec: JobSpec) -> Resources:
    """The resources of all nodes where some replica of the job may run; for a loanable job including nodes that another
    pool offers."""
    there = [replace(node, loan="loaned") if node.loan == "offered" else node for node in nodes.values()]
    kinds = {spec.constraints_of(group.type) for group in spec.groups}
    allowed = frozenset[int]().union(*(admitting(there, kind, spec.loanable) for kind in kinds))
    return total_of(there[i].capacity for i in allowed)


def _beyond(spec: JobSpec, known: Prediction, steps_left: float, left_s: float) -> tuple[Counts, Source] | None:
    workers = spec.group(WORKER)
    if workers is None or left_s <= 0:
        return None
    most = {group.type: group.maximum for group in spec.groups}
    for w in _between(workers.maximum + 1, MOST_WORKERS):
        rate = _rate(known, {**most, WORKER: w})
        if rate is not None and steps_left / rate[0] <= left_s:
            return {**most, WORKER: w}, rate[1]
    return None


def _rate(known: Prediction, counts: Counts) -> tuple[float, Source] | None:
    if counts.get(WORKER) == 0:
        return None
    rate = known.at(counts)
    if rate is None or not isfinite(rate.steps_per_s) or rate.steps_per_s <= 0:
        return None
    return rate.steps_per_s, rate.source


def _between(least: int, most: int) -> Iterator[int]:
    """The counts to try: each of the first counts, then counts with growing gaps, and the last count."""
    n = least
    while n < most:
        yield n
        n = n + 1 if n < least + EACH_UP_TO else max(n + 1, int(n * STRIDE))
    if least <= most:
        yield most
