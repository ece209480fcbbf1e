"""Growth of jobs within their Kueue quota: which Workloads to create, delete and change, and how large jobs may be.
Pure.

Kueue admits a job's declared replicas. Each replica beyond them needs a *growth Workload* of its own, of the lowest
priority, so that Kueue can take back single replicas. A job may have as many replicas as are declared, less those whose
quota was returned, plus its admitted growth Workloads.

A growth Workload that the job shall lose is first *given up*: the job's bound falls, and the Workload is deleted only
when neither pods, state nor target of the job need it any more. So pods never exceed what is admitted. Everything that
matters is in the objects; the memory here (how long growth is unused, when to ask again) may be lost at any time.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, Literal

from elastic_tfjob.api.words import REPLICA_TYPES, count_in_words, counts_in_words
from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.model.job import Key
from elastic_tfjob.controller.model.kueue import Queue, Workload
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.model.target import Counts, Target
from elastic_tfjob.controller.planning.kueue_quota import FreeQuota, KueueObjects
from elastic_tfjob.controller.planning.request import JobRequest, reserved_size
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.snapshot import Job, JobSpec, Snapshot

__all__ = [
    "Create",
    "Delete",
    "GrowthMemory",
    "GrowthRules",
    "Phase",
    "QueuedJob",
    "SetReady",
    "SetReclaimed",
    "Step",
    "held_size",
    "wishes",
]

_TYPES: Final = {name.lower(): name for name in REPLICA_TYPES}
"""Replica types by pod set."""
_FIRST_DELAY_S: Final = 60.0
_LONGEST_DELAY_S: Final = 1800.0
"""Seconds without a new growth Workload after one was evicted, refused or not used: the first time, and at most."""
_SETTLE_S: Final = 10.0
"""Seconds that Kueue gets to admit a growth Workload before the operator withdraws it."""

# -- What jobs would like ----------------------------------------------------------------------------------------------


def wishes(snapshot: Snapshot, profile: Profile, requests: Mapping[str, JobRequest]) -> dict[str, Counts]:
    """The sizes that the profile would give these jobs, by their names in the Snapshot, if quota were free: a plan for
    the same cluster in which only their own bounds limit them. Another rule than the profile's would ask for quota that
    the profile then does not use. Raises what the profile raises."""
    freed = {
        key: replace(job, spec=_freed(job, requests[key])) for key, job in snapshot.jobs.items() if key in requests
    }
    freed = {key: job for key, job in freed.items() if job.spec != snapshot.jobs[key].spec}
    if not freed:
        return {}
    asked = Snapshot(
        snapshot.now,
        snapshot.nodes,
        {**snapshot.jobs, **freed},
        snapshot.seed,
        snapshot.pools,
        history=snapshot.history,
        cluster_rules=replace(snapshot.cluster_rules, orders=None),
    )
    changes = schedule(asked, profile).changes
    return {key: changes[key].replicas if key in changes else job.counts for key, job in freed.items()}


def _freed(job: Job, request: JobRequest) -> JobSpec:
    """The job's spec, with the bounds that it would have if quota were free."""
    groups = []
    for group in job.spec.groups:
        most, asked = request.most_wanted(group.type), request.elasticity.asked(group.type)
        if asked is None or asked > most:
            groups.append(replace(group, maximum=max(group.maximum, most)))
        else:  # a person's request is the only size that the job may have
            asked = max(asked, group.maximum) if asked > group.maximum else group.maximum
            groups.append(replace(group, minimum=asked, maximum=asked) if asked > group.maximum else group)
    return replace(job.spec, groups=tuple(groups), resizable=True)


# -- What a job has ----------------------------------------------------------------------------------------------------


Phase = Literal["grows", "keeps", "returns", "over"]


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job with a Kueue queue. `most`: its largest size if quota were free. `wished`: the size that the profile would
    give it then; empty: unknown. `held`: the most replicas per type that its pods, state and target stand for;
    `running`: pods that run. `settled`: no write and no resize is under way, so `held` grows only by a new target.
    `phase`: the job `grows` if the profile decides for it now, and `keeps` what it has if it does not for a while. It
    `returns` growth if the profile never resizes it or it is suspended, and is `over` if it has finished or is being
    deleted."""

    key: Key
    uid: str
    queue: str
    phase: Phase
    most: Counts = field(default_factory=dict)
    wished: Counts = field(default_factory=dict)
    held: Counts = field(default_factory=dict)
    running: Counts = field(default_factory=dict)
    settled: bool = True


def held_size(
    request: JobRequest, target: Target | None, state: StoredState | None, pods: Iterable[Pod], *, suspended: bool
) -> tuple[Counts, Counts, bool]:
    """`held`, `running` and `settled` of a QueuedJob, from a job's objects. A suspended job holds what its pods do."""
    spelling = {name.lower(): name for name in request.declared}
    there = [pod for pod in pods if not pod.ended and pod.replica_type in spelling]
    held = Counter(spelling[pod.replica_type] for pod in there)
    running = Counter(spelling[pod.replica_type] for pod in there if pod.phase == "Running" and not pod.terminating)
    if suspended:
        return held, running, True
    size, changing = reserved_size(request, target, state, started=bool(there))
    sizes = [held, size]
    if state is not None:
        sizes += [state.replicas, state.next.replicas if state.next is not None else {}]
    return {name: max(each.get(name, 0) for each in sizes) for name in request.declared}, running, not changing


# -- What to do --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GrowthRules:
    """`grow`: jobs may have growth Workloads, `pending` unadmitted ones each. Growth is returned after `hold_s` without
    use. `reclaim_after_s`: a job that is smaller than admitted returns the quota after this time; 0: never."""

    grow: bool = True
    pending: int = 2
    hold_s: float = 120.0
    reclaim_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Create:
    """Create a growth Workload for one replica of a type."""

    job: QueuedJob
    base: Workload
    type: str
    name: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a growth Workload."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class SetReady:
    """Set the condition `PodsReady` of a growth Workload, whose replica runs."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class SetReclaimed:
    """Set `status.reclaimablePods` of a base Workload: replicas by pod set whose quota is returned."""

    workload: Workload
    counts: Mapping[str, int]


Action = Create | Delete | SetReady | SetReclaimed


@dataclass(slots=True)
class Step:
    """What to do. `waits`: by job, why it gets no more than is admitted. `changed`: jobs whose bound has changed by
    this step. `next_s`: seconds until there may be more to do without a change; None: no such time is known."""

    actions: list[Action] = field(default_factory=list)
    events: list[tuple[Key, Event]] = field(default_factory=list)
    waits: dict[Key, Reason] = field(default_factory=dict)
    changed: set[Key] = field(default_factory=set)
    next_s: float | None = None

    def event(self, key: Key, event: Event) -> None:
        self.events.append((key, event))

    def again(self, after_s: float) -> None:
        self.next_s = after_s if self.next_s is None else min(self.next_s, after_s)


@dataclass(slots=True)
class _Delay:
    until_s: float
    delay_s: float


@dataclass(slots=True)
class _Low:
    """A job has had at most these replicas since a time."""

    counts: dict[str, int]
    since_s: float


@dataclass(frozen=True, slots=True)
class _Case:
    """A job with what belongs to it. `own`: its growth Workloads, the oldest first, so that the same one stands for the
    same replica in each step. `floor`: replicas that the base Workload admits. `queue` is None if it is unknown or
    stopped. `others`: Workloads other than growth of jobs wait in the queue."""

    job: QueuedJob
    base: Workload
    own: tuple[Workload, ...]
    names: frozenset[str]
    floor: Counts
    queue: Queue | None
    others: bool

    @property
    def admitted(self) -> bool:
        return self.base.admitted and not self.base.evicted

    def type(self, each: Workload) -> str:
        """The replica type of a growth Workload; empty if it is not of one replica of the job."""
        return next((_TYPES.get(pod_set, "") for pod_set, n in each.counts.items() if n == 1), "")


class GrowthMemory:
    """Decides about growth Workloads, step by step. Times are Unix times."""

    def __init__(self) -> None:
        self._given_up: set[str] = set()
        self._unused: dict[str, float] = {}
        self._delays: dict[Key, _Delay] = {}
        self._low: dict[Key, _Low] = {}
        # By the base Workload's uid and pod set: replicas whose quota is about to be returned.
        self._returning: dict[str, Mapping[str, int]] = {}
        # Versions at which reservations were first seen: a queue of an older version does not count them yet.
        self._reserved: dict[str, int] = {}
        self._begun = False

    def admitted(self, uid: str, workloads: Iterable[Workload]) -> Counts:
        """The most replicas per type that the job with this uid may have; empty: Kueue has not admitted it (any
        more)."""
        found = tuple(workloads)
        base = _base(found, uid)
        if base is None or not base.admitted or base.evicted:
            return {}
        usable = [each for each in found if _is_ours(each, base) and self._usable(each, base)]
        more = Counter(pod_set for each in usable for pod_set, n in each.counts.items() if n == 1)
        return {name: n + more[name.lower()] for name, n in self._floor(base).items()}

    def _floor(self, base: Workload) -> Counts:
        """The replicas per type that the base Workload admits."""
        returning = self._returning.get(base.uid, {})
        return {
            _TYPES[pod_set]: max(0, n - max(of.get(pod_set, 0) for of in (base.reclaimed, returning)))
            for pod_set, n in base.counts.items()
            if pod_set in _TYPES
        }

    def _usable(self, each: Workload, base: Workload) -> bool:
        return each.admitted and each.uid not in self._given_up and not _lost(each, base)

    def _usable_by_type(self, case: _Case) -> Counter[str]:
        return Counter(case.type(each) for each in case.own if self._usable(each, case.base))

    def delay(self, key: Key, now_s: float) -> float:
        """Notes that growth failed: it was evicted, refused or not used. Returns the seconds until the job asks
        again."""
        known, delay_s = self._delays.get(key), _FIRST_DELAY_S
        if known is not None:
            if now_s < known.until_s:  # several Workloads at once are one failure
                return known.until_s - now_s
            delay_s = min(2 * known.delay_s, _LONGEST_DELAY_S)
        self._delays[key] = _Delay(now_s + delay_s, delay_s)
        return delay_s

    def follow(self, jobs: Iterable[QueuedJob], objects: KueueObjects, rules: GrowthRules, now_s: float) -> Step:
        """One step for all jobs."""
        step, free = Step(), FreeQuota(objects)
        found = [(job, tuple(objects.of_job(job.key))) for job in jobs]
        growth = [each for _, workloads in found for each in workloads if each.growth]
        waiting = Counter(objects.cluster_queue(each) for each in growth if not each.reserved)
        self._forget(found, now_s)
        cases = []
        for job, workloads in found:
            if (base := _base(workloads, job.uid)) is None:
                continue  # growth without its owner is deleted by Kubernetes
            queue = objects.queue(job.key, job.queue)
            own = sorted(
                (each for each in workloads if _is_ours(each, base)), key=lambda w: (w.created, len(w.name), w.name)
            )
            cases.append(
                _Case(
                    job,
                    base,
                    tuple(own),
                    frozenset(each.name for each in workloads),
                    self._floor(base),
                    queue,
                    queue is not None and queue.pending > waiting[queue.name],
                )
            )
        for case in cases:
            self._note_reservations(case, objects, free, step)
            self._give_up(case, rules, now_s, step)
            self._delete(case, step)
            if case.job.phase == "grows" and case.admitted:
                self._make_ready(case, step)
                self._return_quota(case, rules, now_s, step)
            elif case.base.reclaimed and not case.base.reserved:
                step.actions.append(SetReclaimed(case.base, {}))
        if rules.grow:
            growing = [case for case in cases if case.job.phase == "grows" and case.admitted]
            # Jobs with the least growth first, so that none takes all free quota.
            for case in sorted(growing, key=lambda case: (len(case.own), case.job.key)):
                self._grow(case, free, rules, now_s, step)
        self._begun = True
        return step

    def _forget(self, found: Iterable[tuple[QueuedJob, tuple[Workload, ...]]], now_s: float) -> None:
        """Drops what is remembered of jobs and Workloads that no longer exist."""
        keys = {job.key for job, _ in found}
        uids = {each.uid for _, workloads in found for each in workloads}
        self._given_up &= uids
        self._unused = {uid: since for uid, since in self._unused.items() if uid in uids}
        self._reserved = {uid: version for uid, version in self._reserved.items() if uid in uids}
        self._returning = {uid: counts for uid, counts in self._returning.items() if uid in uids}
        self._low = {key: low for key, low in self._low.items() if key in keys}
        self._delays = {
            key: each for key, each in self._delays.items() if key in keys and now_s < each.until_s + each.delay_s
        }

    def _note_reservations(self, case: _Case, objects: KueueObjects, free: FreeQuota, step: Step) -> None:
        for each in case.own:
            if not each.reserved:
                usage = case.base.usage.get(case.type(each).lower())
                if case.queue is not None and usage is not None and each.uid not in self._given_up:
                    free.take(case.queue, usage)
                continue
            if each.uid not in self._reserved:
                self._reserved[each.uid] = each.version if self._begun else 0
                if self._begun and each.admitted:
                    what = count_in_words(1, case.type(each))
                    step.event(
                        case.job.key,
                        Event("Normal", "GrowthAdmitted", f"Kueue admitted {what} more (queue {each.queue})"),
                    )
            queue = objects.queues.get(each.cluster_queue)
            if queue is not None and queue.version < self._reserved[each.uid]:
                for reserved in each.usage.values():
                    free.take(queue, reserved)

    # Growth is given up: the bound falls at once, and the Workload is deleted when it is no longer needed.

    def _give_up(self, case: _Case, rules: GrowthRules, now_s: float, step: Step) -> None:
        keeps = rules.grow and case.job.phase in ("grows", "keeps") and case.admitted
        seen: Counter[str] = Counter()
        for each in case.own:
            if each.uid in self._given_up:
                continue
            name = case.type(each)
            if self._usable(each, case.base):
                seen[name] += 1
            if not keeps or self._is_over(
                each, case, rules, now_s, step, needed_from=case.floor.get(name, 0) + seen[name]
            ):
                self._given_up.add(each.uid)
                step.changed.add(case.job.key)

    def _is_over(
        self, each: Workload, case: _Case, rules: GrowthRules, now_s: float, step: Step, *, needed_from: int
    ) -> bool:
        """Whether a growth Workload is to be given up. A job of `needed_from` replicas uses it."""
        key, name = case.job.key, case.type(each)
        what = count_in_words(1, name)
        if _lost(each, case.base):
            again_s = self.delay(key, now_s)
            how = f"evicted its quota: {each.why}" if each.evicted else "gave it a flavor that the job does not have"
            step.event(
                key, Event("Normal", "GrowthEvicted", f"Gives up {what}, as Kueue {how}. Asks again in {again_s:.0f} s")
            )
            return True
        if not each.admitted:
            if (left_s := _SETTLE_S - _age_s(each, now_s)) > 0:
                step.again(left_s)
                return False
            self.delay(key, now_s)
            return True
        if case.job.held.get(name, 0) >= needed_from or case.job.phase != "grows":
            self._unused.pop(each.uid, None)
            return False
        # Others in the queue come first, but the job gets a moment to use what was admitted.
        limit_s = min(rules.hold_s, _SETTLE_S) if case.others else rules.hold_s
        if (left_s := self._unused.setdefault(each.uid, now_s) + limit_s - now_s) > 0:
            step.again(left_s)
            return False
        again_s = self.delay(key, now_s)
        message = f"Returns the quota of {what}, which was not used for {limit_s:.0f} s. Asks again in {again_s:.0f} s"
        step.event(key, Event("Normal", "GrowthReturned", message))
        return True

    def _delete(self, case: _Case, step: Step) -> None:
        """Deletes growth that was given up, as far as the job has shrunk."""
        usable, job = self._usable_by_type(case), case.job
        for each in case.own:
            if each.uid not in self._given_up:
                continue
            name = case.type(each)
            shrunk = job.settled and job.held.get(name, 0) <= case.floor.get(name, 0) + usable[name]
            if job.phase == "over" or shrunk or not each.reserved:
                step.actions.append(Delete(each))

    def _make_ready(self, case: _Case, step: Step) -> None:
        """Tells Kueue that the replica of a growth Workload runs. Its `waitForPodsReady` would evict it otherwise, and
        may admit no other Workload until then."""
        seen: Counter[str] = Counter()
        for each in case.own:
            if self._usable(each, case.base):
                name = case.type(each)
                seen[name] += 1
                if not each.ready and case.job.running.get(name, 0) >= case.floor.get(name, 0) + seen[name]:
                    step.actions.append(SetReady(each))

    # Quota of declared replicas is returned.

    def _return_quota(self, case: _Case, rules: GrowthRules, now_s: float, step: Step) -> None:
        job, base, floor = case.job, case.base, case.floor
        held = {name: job.held.get(name, 0) for name in floor}
        if (returning := self._returning.get(base.uid)) is not None:
            if all(base.reclaimed.get(pod_set, 0) >= n for pod_set, n in returning.items()):
                del self._returning[base.uid]
            elif job.settled and all(held[name] <= n for name, n in floor.items()):
                step.actions.append(SetReclaimed(base, returning))
            return
        smaller = {name: n - held[name] for name, n in floor.items() if held[name] < n}
        if not (rules.reclaim_after_s and smaller and any(held.values())) or self._usable_by_type(case):
            self._low.pop(job.key, None)
            return
        low = self._low.get(job.key)
        if low is None or any(held[name] > low.counts[name] for name in floor):
            low = self._low[job.key] = _Low(held, now_s)
        if (left_s := low.since_s + rules.reclaim_after_s - now_s) > 0:
            step.again(left_s)
            return
        del self._low[job.key]
        returned = {name.lower(): base.counts.get(name.lower(), 0) - n for name, n in low.counts.items()}
        self._returning[base.uid] = {pod_set: n for pod_set, n in returned.items() if n > 0}
        step.changed.add(job.key)
        step.again(0.0)  # the quota is returned once the bound is lower
        less = counts_in_words({name: floor[name] - n for name, n in low.counts.items()})
        message = f"Returns the quota of {less}, not used for {rules.reclaim_after_s:.0f} s, until Kueue admits it anew"
        step.event(job.key, Event("Normal", "QuotaReturned", message))

    # Growth is asked for.

    def _grow(self, case: _Case, free: FreeQuota, rules: GrowthRules, now_s: float, step: Step) -> None:
        job, usable = case.job, self._usable_by_type(case)
        most = {name: min(job.wished.get(name, 0), job.most.get(name, 0)) for name in case.floor}
        more = {name: n for name in case.floor if (n := most[name] - case.floor[name] - usable[name]) > 0}
        if not more:
            return
        because = self._hindrance(case, now_s, step)
        asked = Counter(case.type(each) for each in case.own if not each.reserved)
        left = rules.pending - sum(asked.values())
        names = (name for n in count() if (name := f"{job.key[1]}-growth-{n}") not in case.names)
        for type_ in [name for name, n in more.items() for _ in range(n - asked[name])]:
            usage = case.base.usage.get(type_.lower())
            if because or left <= 0 or case.queue is None:
                break
            if usage is None or not free.fits(case.queue, usage):
                because = "no-quota"
                break
            free.take(case.queue, usage)
            left -= 1
            step.actions.append(Create(job, case.base, type_, next(names)))
        step.waits[job.key] = Reason("quota", {"more": more, "queue": job.queue, "because": because or "asked"})

    def _hindrance(self, case: _Case, now_s: float, step: Step) -> str:
        """Why the job may not ask for growth now; empty: it may."""
        delay = self._delays.get(case.job.key)
        if delay is not None and now_s < delay.until_s:
            step.again(delay.until_s - now_s)
            return "delay"
        job, held = case.job, case.job.held
        reasons = {
            # Until then Kueue may admit nothing else (`waitForPodsReady.blockAdmission`).
            "starts": any(job.running.get(name, 0) < min(n, held.get(name, 0)) for name, n in case.floor.items()),
            "no-queue": case.queue is None,
            "checks": case.queue is not None and case.queue.checks,
            "topology": case.base.topology,
            "others": case.others,
            "shrinks": any(each.uid in self._given_up for each in case.own),
        }
        return next((name for name, holds in reasons.items() if holds), "")


def _base(workloads: Iterable[Workload], uid: str) -> Workload | None:
    """The Workload that Kueue created for the job with this uid; None: there is none."""
    found = [each for each in workloads if not each.growth and each.owner == uid and not each.terminating]
    return max(found, key=lambda each: (each.admitted, each.version), default=None)


def _is_ours(each: Workload, base: Workload) -> bool:
    """Whether this is a growth Workload of the job whose base Workload is `base`."""
    return each.growth and each.owner == base.uid and not each.terminating


def _lost(each: Workload, base: Workload) -> bool:
    """Whether the job cannot use the quota of a growth Workload: it was evicted, or its quota is of another flavor, on
    whose nodes the job's pods may not run."""
    other = any(usage.flavors != (base.usage.get(name) or usage).flavors for name, usage in each.usage.items())
    return each.evicted or other


def _age_s(each: Workload, now_s: float) -> float:
    created = moment_of(each.created)
    return 0.0 if created is None else now_s - created.timestamp()
