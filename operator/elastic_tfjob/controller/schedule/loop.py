"""The scheduling loop: Snapshot, Plan, and for each job whose target changes one patch of its annotation.

No job can stop the others: one that fails gets an event that says why, is left out, and is tried again later;
where the core itself fails, plan_search.py finds those that make it fail. What grows with jobs is done in a thread.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from elastic_tfjob.api.tfjob import CONTROLLER_NAME, OPERATOR_NAME_LABEL
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.configuration import LearnedHistory
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.kube.reports import Reports
from elastic_tfjob.controller.kube.startup import on_volume
from elastic_tfjob.controller.kube.supervise import excerpt, unending
from elastic_tfjob.controller.model.cluster import ACTIVE_AND_BOUND, ForeignPod, KubeNode
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.settings import FIXED, Configuration
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning.core_job import Pair, RejectedNodes
from elastic_tfjob.controller.planning.job_view import JobView, set_aside
from elastic_tfjob.controller.planning.quarantine import Quarantine, SearchBudget, bisect_failing_jobs
from elastic_tfjob.controller.planning.round import (
    Described,
    ObservedJob,
    PlannedRound,
    ReservationFailures,
    describe_all,
    plan_round,
)
from elastic_tfjob.controller.planning.targets import decide_fixed, released, suspended
from elastic_tfjob.controller.schedule.experience_log import ExperienceLog
from elastic_tfjob.controller.schedule.job_events import JobEvents
from elastic_tfjob.controller.schedule.loans import Loans
from elastic_tfjob.controller.schedule.writers import TargetWriter
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import LIVE_INTERVAL_S, Profile, Reads
from elastic_tfjob.scheduling.profiles import build
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import Snapshot

__all__ = ["Jobs", "ProfileReload", "Scheduler", "Searched", "pause", "plan_with_search"]

# -- When the next scheduling round begins -----------------------------------------------------------------------------


async def pause(wake: asyncio.Event, begun: float, interval_s: float, spacing_s: float, *, on_change: bool) -> None:
    """Until something changes, at least `spacing_s` and at most an interval after the last round began (monotonic
    seconds)."""
    interval_s = max(interval_s, spacing_s)
    if on_change:
        # Not wait_for, which in Python 3.11 swallows a cancellation that comes together with what it waits for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await wake.wait()
        await asyncio.sleep(max(0.0, begun + spacing_s - time.monotonic()))
    else:
        await asyncio.sleep(interval_s - time.time() % interval_s)
    wake.clear()


# -- The profile that decides now --------------------------------------------------------------------------------------
# That of the configuration, whose steps read a file anew where it has changed.

LOOK_S: Final = 5.0
"""Files are looked at so often."""
WAIT_S: Final = 1.0
"""So long a round waits for them, when they are looked at for the first time."""

Stamps = tuple[tuple[int, int, int] | None, ...]


class ProfileReload:
    """`follow` before a round, then `of` in it."""

    def __init__(self) -> None:
        self._made: tuple[Configuration, Profile] | None = None
        self._stamps: Stamps | None = None
        self._looking: tuple[Profile, asyncio.Future[Stamps]] | None = None
        self._looked_at = float("-inf")

    def of(self, configuration: Configuration) -> Profile:
        """The profile of this configuration. It reads no file: what is in them it has from `follow`."""
        if self._made is None or self._made[0] is not configuration:
            self._made, self._stamps = (configuration, _made(configuration)), None
            for step in self._made[1].steps:
                if isinstance(step, Reads):
                    step.later()
        return self._made[1]

    async def follow(self, configuration: Configuration) -> bool:
        """Look at the files that the profile reads; whether one of them is another than before, so that what was kept
        of earlier rounds is of no use. A volume that hangs holds up nothing: what was read last holds."""
        files = configuration.parameters.files
        if not files:
            return False
        profile, before = self.of(configuration), self._stamps
        if self._looking is None:
            if before is not None and time.monotonic() - self._looked_at < LOOK_S:
                return False
            self._looked_at = time.monotonic()
            self._looking = profile, on_volume(partial(_read, profile, files, before))
            await asyncio.wait([self._looking[1]], timeout=WAIT_S)
        read, future = self._looking
        if not future.done():
            return False
        self._looking = None
        if (error := future.exception()) is not None:
            log.warning("files of the profile not read", files=files, error=excerpt(error))
            return False
        if read is not profile or future.result() == before:
            return False
        self._stamps = future.result()
        log.info("read the files of the profile", profile=configuration.profile, files=files)
        return before is not None


def _made(configuration: Configuration) -> Profile:
    # A move is a rescale, and one of the chief makes all pods anew: a change of size is not to cost that.
    return replace(build(configuration.profile, configuration.parameters), repack=False)


def _read(profile: Profile, files: tuple[str, ...], before: Stamps | None) -> Stamps:
    """Have the steps read what is another than before; what tells it from others."""
    stamps = tuple(map(_stamp, files))
    if stamps != before:
        for step in profile.steps:
            if isinstance(step, Reads):
                step.read()
    return stamps


def _stamp(file: str) -> tuple[int, int, int] | None:
    """What tells a file's content from another; None for one that is not there."""
    try:
        stat = Path(file).stat()
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


# One plan for all jobs; where the core fails, for all but the jobs that make it fail, which are searched for.

Jobs = Mapping[str, tuple[Key, JobView]]
"""All jobs by their names in the core."""

# What a search for the jobs that make the core fail may take. Most of its attempts are rounds of few jobs.
_SEARCH: Final = SearchBudget(tries=2000, seconds=6.0)


class Searched(NamedTuple):
    """A plan, with the error of each job that it leaves out, and those that there was no time to try."""

    planned: PlannedRound
    failed: dict[Key, Exception]
    untried: set[Key]


async def plan_with_search(
    plan: Callable[[Mapping[str, JobView], Snapshot | None], PlannedRound],
    jobs: Jobs,
    tried: Collection[Key],
    *,
    changed: Collection[Key],
    doubtful: Collection[Key],
    first: Container[Key],
    previous: Snapshot | None,
) -> Searched:
    """What `plan` makes of the jobs that are `tried`, from the `previous` round's Snapshot; the others only hold what
    they have. Where it fails, the search looks last at those that it bore in the last round, which have not `changed`.
    Jobs in doubt are not even asked for with the others before they are tried by themselves. Of the jobs of one
    namespace those in `first` come first. Computes in a thread."""
    aside: dict[str, JobView] = {}

    def of(chosen: set[Key], evolved: Snapshot | None) -> PlannedRound:
        considered: dict[str, JobView] = {}
        for name, (key, found) in jobs.items():
            if key not in chosen and name not in aside:
                aside[name] = set_aside(found)
            considered[name] = found if key in chosen else aside[name]
        return plan(considered, evolved)

    async def attempt(keys: Collection[Key]) -> PlannedRound:
        """From the last round where most jobs are asked for. Where that fails, the next is from scratch."""
        nonlocal previous
        if 2 * len(keys) <= len(tried):
            return await asyncio.to_thread(of, set(keys), None)
        evolved, previous = previous, None
        planned = await asyncio.to_thread(of, set(keys), evolved)
        previous = planned.snapshot
        return planned

    if not doubtful:
        try:
            return Searched(await attempt(tried), {}, set())
        except Exception:
            log.exception("bug: the core failed")
            metrics.SCHEDULING_FAILURES.inc()
    known = [key for key in tried if key not in changed and key not in doubtful]
    new = [key for key in tried if key in changed and key not in doubtful]
    groups = [_by_namespace(keys, first=first) for keys in (known, new, doubtful)]
    isolated = await bisect_failing_jobs(groups, attempt, _SEARCH)
    if isolated.offenders or isolated.untried:
        log.warning("jobs make the core fail", offenders=len(isolated.offenders), untried=len(isolated.untried))
        if doubtful:  # else it is counted already
            metrics.SCHEDULING_FAILURES.inc()
    return Searched(isolated.result, dict(isolated.offenders), set(isolated.untried))


def _by_namespace(keys: Iterable[Key], *, first: Container[Key]) -> dict[str, list[Key]]:
    """The same order each time, with these first."""
    found: dict[str, list[Key]] = {}
    for key in sorted(keys, key=lambda key: (key not in first, key)):
        found.setdefault(key[0], []).append(key)
    return found


log = structlog.get_logger(__name__)

_SPACING_S: Final = 1.0
# A round waits so long for its writes. One that a slow webhook holds up goes on beside the rounds that follow.
_WRITES_S: Final = 1.0


class Scheduler:
    """The loop: `touched` and `configured` wake it, `run` acts while this replica leads. `experience`: a directory.
    `barred`: uids of jobs whose pods cannot be made."""

    def __init__(
        self,
        api: ApiClient,
        jobs: Informer[TFJob],
        pods: Informer[Pod],
        *,
        reports: Reports,
        recorder: EventRecorder,
        configuration: Callable[[], Configuration],
        namespace: str = "",
        priorities: Callable[[], Mapping[str, int]] = dict,
        memory: LearnedHistory | None = None,
        wants: Callable[[], Mapping[str, int]] = dict,
        experience: str = "",
        barred: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._jobs = jobs
        self._pods = pods
        self._reports = reports
        self._configuration = configuration
        self._priorities = priorities
        self._memory = memory if memory is not None else LearnedHistory()
        self._nodes = Informer(api, "/api/v1/nodes", KubeNode.parse, lambda _: None, touched=self._cluster_touched)
        # An operator that keeps to one namespace sees the TFJobs of others as anybody's pods.
        self._by_uid = bool(namespace)
        selector = "" if namespace else f"{OPERATOR_NAME_LABEL}!={CONTROLLER_NAME}"
        self._foreign = Informer(
            api,
            "/api/v1/pods",
            ForeignPod.parse,
            lambda _: None,
            selector=selector,
            fields=ACTIVE_AND_BOUND,
            touched=self._cluster_touched,
        )
        self._wake = asyncio.Event()
        self._runs = False
        self._dirty: set[Key] = set()
        self._candidates: dict[Key, JobView] = {}
        self._managed: set[Key] = set()
        self._snapshot: Snapshot | None = None
        self._profile = ProfileReload()
        self._experience = ExperienceLog(experience)
        self._all_at = 0.0
        # What a ScheduledJob is made from beside its job: the nodes' capacities and the priority classes.
        self._around: tuple[Mapping[str, Resources], Mapping[str, int], frozenset[str]] = {}, {}, frozenset()
        # Jobs whose ScheduledJob will be another one without any change: what is promised, owed or refused for a time.
        self._passing: set[Key] = set()
        self._barred, self._failed = barred, ReservationFailures()
        self._left_out = Quarantine()
        # What the core bore in the last round; and what its search had no time to try: that is tried by itself first.
        self._borne, self._untried = set[Key](), set[Key]()
        self._unfit: dict[Key, Mapping[Pair, RejectedNodes]] = {}
        self._writer = TargetWriter(
            api,
            jobs,
            known=self._candidates.get,
            touched=self.touched,
            later=self._look_later,
            leave_out=self._leave_out,
        )
        # What jobs are told, and the plan of the present round that it goes by.
        self._notices = JobEvents(api, jobs, recorder)
        self.forecast: Final = self._notices.forecast
        self._loans = Loans(api, self._nodes, recorder, wants=wants, owned=self._owned, touched=lambda _: self.wake())
        self._made: Plan | None = None
        # Grows when all that is known is thrown away: a round that began before says nothing any more.
        self._epoch = 0

    @property
    def nodes(self) -> Informer[KubeNode]:
        """The nodes, which are read once a profile decides, or somebody else runs this informer."""
        return self._nodes

    @property
    def foreign(self) -> Informer[ForeignPod]:
        """The pods that take room on nodes and are no TFJob's; as for `nodes`."""
        return self._foreign

    def touched(self, key: Key) -> None:
        """A job, one of its pods or what it reports has changed."""
        if self._runs:  # else all are looked at when it does
            self._dirty.add(key)
            self._wake.set()

    def _look_later(self, key: Key) -> None:
        self._dirty.add(key)

    def _cluster_touched(self, _: Key) -> None:
        # A thousand plain jobs coming and going are nothing to a loop that has no job to decide for.
        if self._managed or self._configuration().pools:
            self._wake.set()

    def wake(self) -> None:
        """Something else has changed that a round goes by."""
        self._wake.set()

    def configured(self) -> None:
        """The configuration has changed."""
        self._begin_anew()
        self._failed.clear()
        self._wake.set()

    def _begin_anew(self) -> None:
        self._epoch += 1
        self._candidates.clear()
        self._managed.clear()
        self._snapshot = None
        self._untried.clear()
        self._dirty.update(self._jobs.keys)
        self._dirty.update(self._pods.keys)

    async def run(self, holds: Callable[[], bool]) -> None:
        """Decide for ever."""
        self._runs = True
        self._begin_anew()
        async with asyncio.TaskGroup() as group:
            watching = False
            while True:
                configuration = self._configuration()
                if configuration.profile != FIXED and not watching:
                    watching = True
                    group.create_task(unending(self._nodes.run), name="nodes")
                    group.create_task(unending(self._foreign.run), name="foreign-pods")
                    await self._nodes.synced.wait()
                    await self._foreign.synced.wait()
                if watching:
                    await self._loans.follow(configuration, group)
                begun = time.monotonic()
                if holds():
                    try:
                        await self._round(configuration, group)
                    except Exception:
                        metrics.SCHEDULING_FAILURES.inc()
                        log.exception("bug: the scheduling round failed; jobs keep what they have")
                        self._begin_anew()
                parameters = configuration.parameters
                interval_s = parameters.interval_s or LIVE_INTERVAL_S
                await pause(self._wake, begun, interval_s, _SPACING_S, on_change=parameters.on_change)

    async def _round(self, configuration: Configuration, group: asyncio.TaskGroup) -> None:
        with metrics.SCHEDULING_SECONDS.time():
            epoch = self._epoch
            targets = await self._decide(configuration)
            if epoch != self._epoch:
                return
            now = time.time()
            begun = [self._writer.begin(key, target, now, group) for key, target in targets.items()]
            begun += self._loans.write(group)
            plan, self._made = self._made, None
            await self._notices.look(plan, group)
            self._experience.note(plan, configuration.parameters.interval_s)
            if tasks := [task for task in begun if task is not None]:
                await asyncio.wait(tasks, timeout=_WRITES_S)

    async def _decide(self, configuration: Configuration) -> dict[Key, Target]:
        fixed, epoch = configuration.profile == FIXED, self._epoch
        if not fixed and await self._profile.follow(configuration):
            self._snapshot = None
        if epoch != self._epoch:
            return {}
        changed, self._dirty = self._dirty, set()
        changed |= self._left_out.due
        await self._describe(changed if fixed else self._looked_at(changed, configuration), configuration)
        if not fixed and (again := self._failed.changed(self._managed, time.monotonic())):
            await self._describe(again, configuration)
        if epoch != self._epoch:
            return {}
        targets: dict[Key, Target] = {}
        for key in changed:
            found = self._candidates.get(key)
            if found is None or key in self._left_out:
                continue
            try:
                if fixed:
                    target = decide_fixed(found)
                elif found.followed:
                    target = suspended(found)
                else:
                    target = released(found, configuration.profile)
            except Exception as error:
                self._leave_out(key, error)
                continue
            if target is not None:
                targets[key] = target
        if fixed or not (self._managed or self._loans.concerns(configuration)):
            self._loans.without_plan(configuration, self._foreign, self._pods, self._candidates.values())
            self._snapshot = None
            return targets
        return {**targets, **await self._plan(configuration, changed)}

    def _looked_at(self, changed: set[Key], configuration: Configuration) -> set[Key]:
        """The jobs to describe anew: those that changed; at every interval those that said how far they are, and those
        of which something holds for a time only; and all when nodes or priorities are others. Of ten thousand jobs
        that run there are few at a time. Between, progress is as predicted."""
        now = time.monotonic()
        usable = {node.name: node.allocatable for node in self._loans.usable()}
        around = usable, dict(self._priorities()), self._loans.cordoned()
        if around != self._around:
            self._around, self._all_at = around, now
            return changed | self._managed
        if now - self._all_at < (configuration.parameters.interval_s or LIVE_INTERVAL_S):
            return changed
        self._all_at = now
        return changed | (self._managed & (self._reports.renewed() | self._passing))

    async def _describe(self, keys: set[Key], configuration: Configuration) -> None:
        """Bring the candidates of these jobs up to date."""
        nodes = {node.name: node for node in self._loans.usable()}
        seen: dict[Key, ObservedJob] = {}
        for key in keys:
            job = self._jobs.one(key)
            pods = self._pods.of_job(key)
            if job is None and not pods:
                self._failed.follow(key, self._candidates.get(key), None, time.monotonic())
                for known in (self._candidates, self._unfit):
                    known.pop(key, None)
                self._managed.discard(key)
                self._passing.discard(key)
                self._notices.follow(key, None)
                self._writer.forget(key)
                self._left_out.forget(key)
                continue
            before, unfit = self._candidates.get(key), self._unfit.get(key, {})
            seen[key] = ObservedJob(job, pods, self._reports.of_job(key), before, unfit)
        epoch, now = self._epoch, datetime.now(UTC)
        described = await asyncio.to_thread(
            describe_all,
            seen,
            nodes,
            now,
            configuration.scope == "all",
            self._priorities(),
            cordoned=self._loans.cordoned(),
            failed=self._failed.counts(time.monotonic()),
            barred=self._barred(),
            configured=configuration.injected.resources,
        )
        if epoch != self._epoch:
            return
        needs = self._profile.of(configuration).needs
        for key, each in described.items():
            self._take_in(key, each)
            self._notices.by_needs(key, each.found, now.timestamp(), needs)
        phases = Counter(found.job.phase for found in self._decided() if found.job is not None)
        for phase in ("waiting", "running", "rescaling"):
            metrics.SCHEDULED_JOBS.labels(phase).set(phases[phase])

    def _take_in(self, key: Key, described: Described) -> None:
        found, before = described.found, self._candidates.get(key)
        self._candidates[key] = found
        if described.error is None:
            self._failed.follow(key, before, found, time.monotonic())
        self._notices.follow(key, found.source)
        if before is not None and (found.terms is not before.terms or found.target != before.target):
            self._left_out.forget(key)  # what was wrong with it may be mended
        if described.unfit:
            self._unfit[key] = described.unfit
        else:
            self._unfit.pop(key, None)
        if found.lesson is not None:
            self._memory.learn(key[0], *found.lesson)
        (self._managed.add if found.job is not None else self._managed.discard)(key)
        (self._passing.add if described.unfit or found.passing else self._passing.discard)(key)
        if described.error is not None:
            self._leave_out(key, described.error)
            return
        try:
            self._writer.note_refusal(key, found)
        except Exception as error:
            self._leave_out(key, error)
            return
        if described.again_s is not None:
            asyncio.get_running_loop().call_later(described.again_s, self.touched, key)
        self._notices.described(found)

    def _owned(self, pod: Pod) -> bool:
        return any(job.uid == pod.owner for job in self._jobs.of_job(pod.key))

    def _decided(self) -> Iterator[JobView]:
        return (self._candidates[key] for key in self._managed)

    def _leave_out(self, key: Key, error: BaseException) -> None:
        """Decide nothing for a job for a while; longer, if it is not the first time."""
        self._left_out.add(key)
        namespace, name = key
        log.warning("job left out of scheduling", namespace=namespace, job=name, error=excerpt(error))
        found = self._candidates.get(key)
        source = found.source if found is not None else None
        source = source if source is not None else self._jobs.one(key)
        if source is not None:
            self._notices.left_out(source, error)

    async def _plan(self, configuration: Configuration, changed: set[Key]) -> dict[Key, Target]:
        """What the profile decides. In doubt are jobs that were not tried yet, or changed in a namespace that made the
        core fail lately. One that the last round did not bear counts as changed."""
        profile = self._profile.of(configuration)
        own = {pod.uid for pod in self._pods} if self._by_uid else set()
        foreign = [pod for pod in self._foreign if pod.uid not in own]
        nodes = {node.name: node for node in sorted(self._loans.usable(), key=lambda node: node.name)}
        cluster = self._loans.cluster(configuration, foreign, self._pods, self._candidates.values())
        tried = {key for key in self._managed if key not in self._left_out}
        all_jobs = {f"{key[0]}/{key[1]}": (key, found) for key, found in self._candidates.items()}
        epoch = self._epoch

        def plan(considered: Mapping[str, JobView], evolved: Snapshot | None) -> PlannedRound:
            return plan_round(
                considered,
                nodes,
                foreign,
                profile,
                now_s=time.time(),
                previous=evolved,
                history=self._memory.history,
                cluster=cluster,
            )

        changed, suspected = changed | (tried - self._borne), self._left_out.suspected
        doubtful = tried & (self._untried | {key for key in changed if key[0] in suspected})
        searching = plan_with_search(
            plan, all_jobs, tried, changed=changed, doubtful=doubtful, first=self._untried, previous=self._snapshot
        )
        self._snapshot = None  # the search has it, and lets go of it where it is of no use
        planned, failed, untried = await searching
        if epoch != self._epoch:
            return {}
        for namespace, _ in failed:
            self._left_out.suspect(namespace)
        self._untried = untried
        if untried:
            self._wake.set()
        self._snapshot, self._made = planned.snapshot, planned.plan
        self._loans.decided(cluster, planned.lent, planned.plan.loans)
        for name, error in planned.failed.items():
            failed[all_jobs[name][0]] = error
        for key, error in failed.items():
            self._leave_out(key, error)
        self._borne = tried - set(failed) - untried
        self._left_out.worked(self._borne)
        return {all_jobs[name][0]: target for name, target in planned.targets.items()}
