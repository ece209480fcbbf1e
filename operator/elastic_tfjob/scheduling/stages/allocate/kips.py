"""Dynamic resource adjustment: what is idle goes to jobs that use all they have, and comes back when others need it.

After Jeong and Yu (KIPS KTCCS 11(7), 2022), whose text is not public, and its nearest relative DRAGON (CLOSER'19).
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import isfinite, sqrt

from elastic_tfjob.api.profiles import KipsParameters
from elastic_tfjob.scheduling.misfits import misfits_view
from elastic_tfjob.scheduling.plan import Target
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.room import lacking
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import EVALUATOR, PS, WORKER, Counts, Cpu, Job, JobSpec, Snapshot, counts_of
from elastic_tfjob.scheduling.stages.allocate.grants import Claim, Grants
from elastic_tfjob.scheduling.stages.allocate.refusal import lacks
from elastic_tfjob.scheduling.stages.allocate.settle import downward, movable
from elastic_tfjob.scheduling.words import change, words
from elastic_tfjob.speed.optimus import OnlineSpeed
from elastic_tfjob.speed.utilisation import speedup

Use = Mapping[str, float]
"""How busy replica types are: the part of their CPU that they use."""
Givers = tuple[list[tuple[tuple[float, ...], str]], Resources]
ALIKE = 0.9
"""Speeds tell of sizes if they were measured with the same CPU, give or take a tenth."""
IDLE, SURPLUS, NEEDED = range(3)
"""Whom replicas are taken from first: who leaves them idle; has more than declared; has more than its minimum."""


@dataclass(frozen=True, slots=True)
class DynamicAdjustment:
    """In this order, each with what the steps before it left:

    1. CPU beyond requests counts as free: it was only lent.
    2. Waiting jobs start in order, at their declared size if it fits, else at the largest below; if not even the
       minimum fits, on room that is taken from others.
    3. Replicas get back the CPU they had, less what they leave idle; then those that use all they have get more.
    4. Jobs whose replicas use all they have get workers or PSs, one at a time where one gains most.
    5. What starts gets idle CPU of its nodes. What is still idle goes back to where it was.
    """

    parameters: KipsParameters
    drifts: bool = True

    def allocate(self, round_: Round) -> None:
        _Adjustment(round_, self.parameters).run()


class _Adjustment:
    def __init__(self, round_: Round, parameters: KipsParameters) -> None:
        self.round = round_
        self.p = parameters
        self.now = round_.now
        self.grants = Grants(round_)
        seen = round_.snapshot.view(("pressed", parameters), pressed_view(parameters))
        self.pressed, self.silent = seen.uses, seen.silent
        self.givers: dict[bool, Givers] = {}
        """Whom replicas can be taken from, without and with those below their declared size."""
        self.in_vain: list[tuple[JobSpec, bool]] = []
        """Waiting jobs that even all that could be taken left without room, and whether needed replicas counted."""
        self.waits = ""
        """The first waiting job that could not start now, but could on an empty cluster."""

    def run(self) -> None:
        round_ = self.round
        lent = [job for job in map(round_.job, round_.snapshot.view("misfits", misfits_view).keys) if job.cpu]
        lent = [job for job in lent if job.phase == "running" and round_.placement(job)]
        for job in lent:
            if round_.cpu(job):
                round_.assign(job, round_.placement(job), "CPU as requested")
        self._relieve()
        for key, counts in round_.unmet.items():
            self._enforce(round_.job(key), counts)
        self._go_back()
        self._start_waiting()
        self._keep_for_leaving()
        self.grants.pour(claim for job in lent for claim in self._had(job, trim=True))
        claims = {job.key: list(self._wants_more(job)) for job in self._adjustable()}
        self.grants.pour((claim for each in claims.values() for claim in each), self.p.min_idle)
        short = [key for key, each in claims.items() if any(self._held(c) < c.want for c in each) or not each]
        if not self.waits:
            self._grow([round_.job(key) for key in short])
        resized = self._resized()
        for job in resized:  # what the next size needs is CPU to start with, in every replica alike
            self.grants.withdraw(job)
        self.grants.pour(self._starting(resized), self.p.min_idle)
        self.grants.pour(claim for job in lent for claim in self._had(job, trim=False))
        for job in {job.key: job for job in (*lent, *self.grants.jobs.values())}.values():
            cpu = self.grants.cpu(job)
            round_.grant(job, cpu, self._cpu_reason(job, cpu))

    # ---- waiting jobs

    def _start_waiting(self) -> None:
        round_ = self.round
        queue = round_.waiting()
        for entry in queue:
            job = round_.job(entry[4])
            if self._start(job):
                continue
            round_.refuse(job, lacks(job, round_))
            if not self.waits and self._ever_fits(job.spec):
                self.waits = job.key
            queue.drop()

    def _start(self, job: Job) -> bool:
        round_, declared = self.round, job.spec.declared
        for counts in downward(job, declared):
            why = "as declared" if counts == declared else f"no room for the declared {words(declared)}"
            if round_.start(job, counts, why):
                self._may_give(job)
                return True
        least = job.spec.minimum
        waited = self.now - max(job.spec.arrival_s, job.since_s)
        impatient = waited >= self.p.patience_s
        if self._in_vain(job.spec, below_declared=impatient):
            return False
        if self._take(
            job,
            least,
            f"makes room for {job.key}, which waits for {waited:.0f} s",
            lambda: round_.start(job, least, "on room that others give back"),
            below_declared=impatient,
        ):
            return True
        self.in_vain.append((job.spec, impatient))
        return False

    def _in_vain(self, spec: JobSpec, *, below_declared: bool) -> bool:
        """Whether taking has failed for a job that needs no more and may take no less. What could be free, with all
        givers at their least, only shrinks while waiting jobs start: it would fail again."""
        return any(
            spec.priority <= failed.priority and below_declared <= needed and needs_all_of(spec, failed)
            for failed, needed in self.in_vain
        )

    def _enforce(self, job: Job, counts: Counts) -> None:
        """Make room for a size that a running job must have."""
        why = job.spec.asked or "its bounds ask for another size"
        self._take(
            job,
            lacking(job.placement, counts) or counts,
            f"makes room for {job.key}: {why}",
            lambda: self.round.repair(job, counts, f"{change(job.counts, counts)}: {why}"),
            below_declared=True,
        )

    def _ever_fits(self, spec: JobSpec) -> bool:
        room = self.round.room
        allowed = room.allowed(spec)
        total = NOTHING
        for i in range(len(room.nodes)) if allowed is None else sorted(allowed):
            total = total.plus(room.usable[i])
        return spec.demand(spec.minimum).within(total)

    # ---- taking

    def _take(self, job: Job, demand: Counts, why: str, attempt: Callable[[], bool], *, below_declared: bool) -> bool:
        """Take replicas from others, one at a time, until `attempt` succeeds; all or nothing.

        What was taken on nodes that turn out not to matter is given back.
        """
        round_ = self.round
        givers = self.givers.get(below_declared)
        if givers is None:
            givers = self.givers[below_declared] = self._givers(below_declared)
        heap, reachable = givers
        if not heap or not job.spec.demand(demand).within(reachable):
            return False
        mark, before = round_.room.mark(), dict[str, Target | None]()
        passed_over: list[tuple[tuple[float, ...], str]] = []
        while heap:
            rank, key = heappop(heap)
            donor = round_.job(key)
            if donor is job or donor.spec.priority > job.spec.priority:
                passed_over.append((rank, key))
                continue
            fewer = one_fewer(counts_of(round_.placement(donor)), self._floor(donor, below_declared))
            if fewer is None:
                continue
            before.setdefault(key, round_.changes.get(key))
            done = f"{change(donor.counts, fewer)}: " if donor.placement else ""
            round_.resize(donor, fewer, f"{done}{self._idle_words(donor)}{why}")
            if attempt():
                self._give_back(before, round_.placement(job).values())
                for entry in (*passed_over, *((self._rank(round_.job(k)), k) for k in before)):
                    heappush(heap, entry)
                self._may_give(job)
                return True
            heappush(heap, (self._rank(donor), key))
        round_.undo(mark, before)
        self.givers.clear()
        return False

    def _givers(self, below_declared: bool) -> Givers:
        """Who can give, and an upper bound of what could be free. Jobs that start in this round can give: better than
        to be shrunk in the next."""
        round_ = self.round
        starting = (job for key in round_.changes if not (job := round_.job(key)).placement)
        heap, reachable = list[tuple[tuple[float, ...], str]](), round_.room.free_total
        for donor in (*(round_.job(entry[4]) for entry in round_.running_in_order()), *starting):
            if self._gives(donor, below_declared):
                held, floor = counts_of(round_.placement(donor)), self._floor(donor, below_declared)
                reachable = reachable.plus(donor.spec.demand(held)).minus(donor.spec.demand(floor))
                heap.append((self._rank(donor), donor.key))
        heapify(heap)
        return heap, reachable

    def _may_give(self, job: Job) -> None:
        """A job that has just started is one more that can give."""
        for below_declared, (heap, _) in self.givers.items():
            if self._gives(job, below_declared):
                heappush(heap, (self._rank(job), job.key))

    def _gives(self, donor: Job, below_declared: bool) -> bool:
        held = self.round.placement(donor)
        if not donor.spec.elastic or not held:
            return False
        floor = self._floor(donor, below_declared)
        if all(len(names) <= floor.get(t, 0) for t, names in held.items()):
            return False
        grew = any(len(names) > len(donor.placement.get(t, ())) for t, names in held.items())
        return not donor.placement or (not grew and movable(donor, self.round) and self._worth(donor, 0.0))

    def _floor(self, donor: Job, below_declared: bool) -> Counts:
        return donor.spec.minimum if below_declared or self._idles(donor) else donor.spec.declared

    def _rank(self, donor: Job) -> tuple[float, ...]:
        """Smallest gives first: idle, then beyond declared; whose last worker is far from its PS; who has most."""
        held = self.round.placement(donor)
        workers, declared = held.get(WORKER, ()), donor.spec.declared.get(WORKER, 0)
        kind = IDLE if self._idles(donor) else SURPLUS if len(workers) > declared else NEEDED
        beside_ps = bool(workers) and workers[-1] in held.get(PS, ())
        least = max(1, donor.spec.minimum.get(WORKER, 0))
        return (kind, beside_ps, -len(workers) / least, -donor.spec.arrival_s, -donor.spec.sequence)

    def _give_back(self, before: Mapping[str, Target | None], used: Iterable[tuple[str, ...]]) -> None:
        matter = {name for names in used for name in names}
        for key, target in before.items():
            donor = self.round.job(key)
            had = target.nodes if target is not None else donor.placement
            has = self.round.placement(donor)
            if matter.isdisjoint(name for t, names in had.items() for name in names[len(has.get(t, ())) :]):
                self.round.assign(donor, had, target.reason if target is not None else "keeps what it has")

    def _relieve(self) -> None:
        """Where nodes hold more than they have (a shrink that another job counted on was refused), shrink there."""
        room, round_ = self.round.room, self.round
        over = {node.name: i for i, node in enumerate(room.nodes) if room.cpu[i] < 0 or room.memory[i] < 0}
        if not over:
            return
        for job in round_.rescaling():  # it may be about to leave
            for names in job.placement.values():
                for name in names:
                    over.pop(name, None)
        for name, i in over.items():
            for entry in round_.running_in_order():
                job = round_.job(entry[4])
                while room.cpu[i] < 0 or room.memory[i] < 0:
                    held = round_.placement(job)
                    fewer = one_fewer(counts_of(held), job.spec.minimum) if job.spec.elastic else None
                    if fewer is None or held.get(WORKER, ("",))[-1] != name or not movable(job, round_):
                        break
                    round_.resize(job, fewer, f"{change(job.counts, fewer)}: {name} has less than its pods hold")

    def _keep_for_leaving(self) -> None:
        """Replicas that leave hold what they request until those that come run as the new size: it is lent to nobody
        before. Where none come nobody needs the room: who stays gets more CPU only when that size runs."""
        round_, room = self.round, self.round.room
        for job in self._resized():
            now = round_.placement(job)
            if all(len(names) <= len(job.placement.get(type_, ())) for type_, names in now.items()):
                continue
            for type_, names in job.placement.items():
                for name in names[len(now.get(type_, ())) :]:
                    i = room.index.get(name)
                    if i is not None:
                        room.take_cpu(i, min(room.cpu[i], _request(job.spec, type_)))

    # ---- CPU in place

    def _adjustable(self) -> Iterator[Job]:
        """Jobs bound by the CPU of their replicas that this round has not touched."""
        for key in self.pressed:
            job = self.round.job(key)
            if job.phase == "running" and job.spec.rescalable and self.round.placement(job) == job.placement:
                yield job

    def _held(self, claim: Claim) -> int:
        return self.grants.held(claim.job, claim.type, claim.index)

    def _had(self, job: Job, *, trim: bool) -> Iterator[Claim]:
        """The CPU it held, where its replicas stay; with `trim` less what they leave idle."""
        placement = self.round.placement(job)
        for type_, each in job.cpu.items():
            group, use = job.spec.group(type_), job.cpu_use.get(type_)
            now, before = placement.get(type_, ()), job.placement.get(type_, ())
            if group is None:
                continue
            for k, held in enumerate(each[: len(now)]):
                if now[k] == before[k]:
                    want = held
                    if trim and use is not None and use < self.p.idle:
                        used = millicores(held * use / ((self.p.idle + self.p.busy) / 2))
                        want = max(group.request.cpu, used)
                    yield Claim(job, type_, k, min(want, held))

    def _wants_more(self, job: Job) -> Iterator[Claim]:
        """Types at their limit may use several times what they hold. Where none is, types take turns: then a step is
        shortest where each has CPU by the root of its work, and the busiest may use several times its request."""
        if job.spec.fixed_cpu:
            return
        limits = [type_ for type_, use in job.cpu_use.items() if use >= self.p.busy]
        for type_ in limits:
            for k in range(len(job.placement.get(type_, ()))):
                yield Claim(job, type_, k, millicores(self.grants.held(job, type_, k) * self.p.cpu_growth))
        if limits or sum(job.cpu_use.values()) < self.p.busy:
            return
        replicas = {type_: n for type_, n in job.counts.items() if n and type_ in job.cpu_use}
        work = {type_: job.cpu_use[type_] * _held_cpu(job, type_) / n for type_, n in replicas.items()}
        most = max(work.values(), default=0.0) or 1.0  # replicas without CPU of their own have no work, and want none
        for type_, n in replicas.items():
            part = work[type_] / most
            want = millicores(_request(job.spec, type_) * self.p.cpu_growth * (sqrt(part) if part > 0 else 0.0))
            for k in range(n):
                yield Claim(job, type_, k, want)

    def _resized(self) -> list[Job]:
        round_ = self.round
        return [job for key in round_.changes if counts_of(round_.placement(job := round_.job(key))) != job.counts]

    def _starting(self, resized: Iterable[Job]) -> Iterator[Claim]:
        """Replicas of jobs that start, change their size or have yet to make a step: importing and tracing use all the
        CPU there is."""
        round_ = self.round
        silent = [round_.job(key) for key in self.silent]
        for job in {job.key: job for job in (*resized, *silent)}.values():
            if not job.spec.rescalable or job.spec.fixed_cpu or job.phase == "rescaling":
                continue
            for type_, names in round_.placement(job).items():
                want = millicores(_request(job.spec, type_) * self.p.cpu_growth)
                for k in range(len(names)):
                    yield Claim(job, type_, k, want)

    def _cpu_reason(self, job: Job, cpu: Cpu) -> str:
        parts = []
        for type_, names in self.round.placement(job).items():
            asked = (_request(job.spec, type_),) * len(names)
            before, after = sum(job.cpu.get(type_, asked)), sum(cpu.get(type_, asked))
            if before != after:
                use = job.cpu_use.get(type_)
                known = "" if use is None else f" ({100 * use:.0f} % used)"
                parts.append(f"{type_} {before}m -> {after}m{known}")
        return f"CPU in place: {', '.join(parts)}"

    # ---- replicas

    def _grow(self, jobs: Iterable[Job]) -> None:
        """One worker or PS at a time to the job that gains most for what it takes, as long as there is room."""
        round_ = self.round
        idle: dict[str, int] = {}
        units: list[tuple[float, str, str, Counts, float]] = []
        speeds: dict[str, Growth] = {}
        for job in jobs:
            if not (job.spec.elastic and movable(job, round_)):
                continue
            speed = speeds[job.key] = self._growth(job)
            self._enqueue(units, job, job.counts, 1.0, speed)
        heapify(units)
        grown: dict[str, tuple[Counts, float]] = {}
        full: set[Hashable] = set()
        while units:
            _, key, type_, counts, factor = heappop(units)
            job, speed = round_.job(key), speeds[key]
            group = job.spec.group(type_)
            kind = (group, job.spec.constraints, job.spec.constraints_by_type)
            if kind in full:
                continue
            if key not in idle:
                idle[key] = round_.room.free_cpu_for(job.spec)
            reason = f"{change(job.counts, counts)}: {self._use_words(job, counts)}, {idle[key]}m idle, predicted {factor - 1:+.0%}"  # noqa: E501
            if not round_.resize(job, counts, reason):
                full.add(kind)
                continue
            grown[key] = counts, factor
            units = [unit for unit in units if unit[1] != key]  # its other types start from another size now
            self._enqueue(units, job, counts, factor, speed)
            heapify(units)
        for key, (_, factor) in grown.items():
            job = round_.job(key)
            if factor < 1 + self.p.min_gain or not self._worth(job, 1 - 1 / factor):
                round_.assign(job, job.placement, "keeps what it has")

    def _enqueue(
        self, units: list[tuple[float, str, str, Counts, float]], job: Job, held: Counts, factor: float, speed: "Growth"
    ) -> None:
        for type_ in (WORKER, PS):
            group, n = job.spec.group(type_), held.get(type_, 0)
            if group is None or not n or n >= group.maximum:
                continue
            counts = {**held, type_: n + 1}
            then = speed.factor(counts)
            gain = then / factor - 1
            if gain * n < self.p.min_efficiency or not self._worth(job, 1.0):
                continue
            share = group.request.dominant_share(self.round.room.total)
            units.append((-gain / share if share else -gain, job.key, type_, counts, then))

    def _growth(self, job: Job) -> "Growth":
        """What is known about the job's speed at other sizes, after the CPU that this round grants it."""
        more = {}
        for type_, names in job.placement.items():
            before = _held_cpu(job, type_)
            after = sum(self.grants.held(job, type_, k) for k in range(len(names)))
            if before:
                more[type_] = after / before
        use = self.pressed[job.key]
        faster = speedup(use, more)
        use = {type_: min(1.0, u / more.get(type_, 1.0) * faster) for type_, u in use.items()}
        workers = max(1, len(job.placement.get(WORKER, ())))
        cpu = sum(self.grants.held(job, WORKER, k) for k in range(workers)) / workers
        return Growth(job, use, job.steps_per_s * faster, cpu, self.p.min_gain)

    def _go_back(self) -> None:
        """A larger size that turned out slower than a smaller one is left again, if its workers hold the CPU that those
        had."""
        round_ = self.round
        for key in list(self.pressed):
            job = round_.job(key)
            if not (job.spec.elastic and isinstance(job.speed, OnlineSpeed) and movable(job, round_)):
                continue
            if round_.placement(job) != job.placement:
                continue
            size = (len(job.placement.get(PS, ())), len(job.placement.get(WORKER, ())))
            held, cpu = _held_cpu(job, WORKER), job.speed.cpu
            rate, (ps, workers) = max(
                (
                    (rate, seen)
                    for seen, rate in job.speed.measured.items()
                    if seen[0] <= size[0] and seen[1] <= size[1] and cpu.get(seen, 0.0) * seen[1] <= held / ALIKE
                ),
                default=(0.0, size),
            )
            counts = {t: ps if t == PS else workers if t == WORKER else n for t, n in job.counts.items()}
            if rate < job.steps_per_s * (1 + self.p.min_gain) or counts == job.counts:
                continue
            if job.spec.within_bounds(counts) == counts and self._worth(job, 1 - job.steps_per_s / rate):
                seen_there = f"{rate:.3g} steps/s there, {job.steps_per_s:.3g} here"
                round_.resize(job, counts, f"{change(job.counts, counts)}: was faster with fewer, {seen_there}")

    # ---- judging

    def _worth(self, job: Job, saved: float) -> bool:
        """Whether a rescale costs less than it saves of the time left; with 0 saved: than the time left itself.

        The cost is the pause, and that of starting the new program beside the running one, which takes its CPU time at
        the pace of the slowest replica: half of what is trained meanwhile, and of the other half what the new size
        would have saved. One that has yet to make a step trains nothing meanwhile: its start was in vain. A job of
        unknown length is expected to run as long again as it has run.
        """
        slowest = min((min(job.cpu.get(t, ()), default=0) or _request(job.spec, t) for t in job.placement), default=0)
        starting = 1000 * self.p.prepare_cpu_s / slowest if slowest else 0.0
        lost = (1 + saved) / 2 if job.steps_per_s > 0 else 1.0
        cost = self.p.rescale_pause_s + starting * lost
        ran = job.executed_s + max(0.0, self.now - job.since_s)
        left: float | None = None
        if job.spec.total_steps is not None:
            left = job.remaining_s(self.now)
        elif job.spec.duration_s is not None:
            left = max(0.0, job.spec.duration_s - ran)
        return (ran if left is None else left) * (saved or 1.0) > cost

    def _idles(self, job: Job) -> bool:
        """Whether it leaves its workers' CPU idle as it trains: before the first step they wait for their chief."""
        return job.steps_per_s > 0 and job.cpu_use.get(WORKER, 1.0) < self.p.idle

    def _idle_words(self, job: Job) -> str:
        return f"workers use {job.cpu_use[WORKER]:.0%} of their CPU, " if self._idles(job) else ""

    def _use_words(self, job: Job, counts: Counts) -> str:
        return " and ".join(
            f"{'workers use' if type_ == WORKER else f'{type_} use'} {job.cpu_use[type_]:.0%} of their CPU"
            for type_ in (WORKER, PS)
            if type_ in job.cpu_use and counts.get(type_, 0) > len(job.placement.get(type_, ()))
        )


@dataclass(frozen=True, slots=True)
class Growth:
    """A job's speed at other sizes relative to the present one: as measured, else as fitted, else from its CPU use.

    `steps_per_s` and `cpu` (millicores of a worker, in the mean) are of the present size.
    """

    job: Job
    use: Use
    steps_per_s: float
    cpu: float
    min_gain: float

    def factor(self, counts: Counts) -> float:
        size = (counts.get(PS, 0), counts.get(WORKER, 0))
        held = self.job.counts
        speed = self.job.speed
        if isinstance(speed, OnlineSpeed):
            seen = speed.measured.get(size)
            if seen is not None:
                ratio, cpu = seen / self.steps_per_s, speed.cpu.get(size, self.cpu)
                # With less CPU than it would have now, a poor speed says nothing about that size; nor a good one with
                # more.
                if cpu <= self.cpu / ALIKE if ratio >= 1 + self.min_gain else cpu >= self.cpu * ALIKE:
                    return ratio
            if speed.fit is not None and speed.fit.confident:
                here = speed.fit.predict(held.get(PS, 0), held.get(WORKER, 0))
                if here > 0:
                    return speed.fit.predict(*size) / here
        elif speed is not None:
            here, there = speed.steps_per_s(held) or 0.0, speed.steps_per_s(counts)
            if here > 0 and there is not None:
                return there / here
        return speedup(self.use, {t: n / held[t] for t, n in counts.items() if held.get(t)})


class Pressed:
    """A view of the running jobs that are bound by the CPU of their replicas, with how busy each type is.

    They are where types together use nearly all their CPU (types that work in turns share the time), or nearly all
    they requested: CPU that was lent on top may be more than the program can use.
    """

    def __init__(self, parameters: KipsParameters, jobs: Iterable[Job]) -> None:
        self.busy = parameters.busy
        self.uses: dict[str, Use] = {}
        self.silent: dict[str, None] = {}
        """Those that hold something but have yet to make a step."""
        for job in jobs:
            self.change(None, job, 0.0)

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is not None:
            self.uses.pop(before.spec.key, None)
            self.silent.pop(before.spec.key, None)
        if after is None or not after.placement:
            return
        if after.steps_per_s <= 0:
            total = after.spec.total_steps
            if total is None or after.steps < total:  # one whose steps are done only has to end
                self.silent[after.spec.key] = None
            return
        use = {t: u for t, u in after.cpu_use.items() if t != EVALUATOR and after.placement.get(t)}
        if sum(use.values()) < self.busy:
            for type_, u in use.items():
                requested = _request(after.spec, type_) * len(after.placement[type_])
                use[type_] = min(1.0, u * _held_cpu(after, type_) / requested) if requested else u
            if sum(use.values()) < self.busy:
                return
        self.uses[after.spec.key] = use


def pressed_view(parameters: KipsParameters) -> Callable[[Snapshot], Pressed]:
    return lambda snapshot: Pressed(parameters, snapshot.jobs.values())


def millicores(amount: float) -> int:
    """In whole ones; none where the amount is no number that CPU can be."""
    return int(amount) if isfinite(amount) else 0


def _request(spec: JobSpec, type_: str) -> int:
    group = spec.group(type_)
    return group.request.cpu if group is not None else 0


def _held_cpu(job: Job, type_: str) -> int:
    """Millicores that a type's replicas hold together while their use is measured."""
    return sum(job.cpu.get(type_, ())) or _request(job.spec, type_) * len(job.placement.get(type_, ()))


def needs_all_of(spec: JobSpec, other: JobSpec) -> bool:
    """Whether where `spec` fits at its minimum, `other` would, too."""
    if (spec.constraints, spec.constraints_by_type, spec.loanable) != (
        other.constraints,
        other.constraints_by_type,
        other.loanable,
    ):
        return False
    return all(
        (group := spec.group(least.type)) is not None
        and spec.minimum[group.type] >= other.minimum[group.type]
        and least.request.within(group.request)
        for least in other.groups
    )


def one_fewer(counts: Counts, floor: Counts) -> Counts | None:
    """One worker less, or where there is none to give one PS; None at the floor."""
    for type_ in (WORKER, PS):
        if counts.get(type_, 0) > floor.get(type_, 0):
            return {**counts, type_: counts[type_] - 1}
    return None
