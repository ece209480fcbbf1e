"""The scheduling loop: Snapshot, Plan, and for each job whose target changes one patch of its annotation.

No job can stop the others: what fails for one is told in an event of that job, which is left out and tried again later;
where the core itself fails, the jobs that make it fail are searched for. All that grows with jobs or replicas is
computed in a thread.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from elastic_tfjob.api.tfjob import CONTROLLER_NAME, OPERATOR_NAME_LABEL
from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Invalid, NotFound
from elastic_tfjob.controller.kube.events import Recorder
from elastic_tfjob.controller.kube.executor import jobs_path
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.kube.memory import Memory
from elastic_tfjob.controller.kube.polling import Reports
from elastic_tfjob.controller.kube.supervise import cancels, excerpt, unending
from elastic_tfjob.controller.objects.annotations import TARGET_ANNOTATION, Target, claim
from elastic_tfjob.controller.objects.cluster import ACTIVE_AND_BOUND, ForeignPod, Node
from elastic_tfjob.controller.objects.observed import Job, Key, Pod
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.settings import Configuration
from elastic_tfjob.controller.objects.status import parse_time
from elastic_tfjob.controller.objects.unfit import Pair, Unfit, active, judge, verdict_due_s
from elastic_tfjob.controller.schedule.isolate import without_offenders
from elastic_tfjob.controller.schedule.scheduled_job import ScheduledJob, scheduled_job, set_aside
from elastic_tfjob.controller.schedule.snapshot import assemble
from elastic_tfjob.controller.schedule.targets import decide, decide_fixed, released, suspended
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.profiles import build
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import Snapshot
from elastic_tfjob.speed.history import History

__all__ = ["FIXED", "Scheduler"]

log = structlog.get_logger(__name__)

FIXED: Final = "fixed"
_SPACING_S: Final = 1.0
_INTERVAL_S: Final = 15.0
# A target that is not stored after so long is left to a later round: the next one must not wait for a webhook that is
# slow in one namespace.
_WRITE_S: Final = 15.0
# Why a job waits may be worded with figures that change all the time.
_REASON_S: Final = 10.0
_REFUSED_S: Final = 60.0
_MAX_REFUSED_S: Final = 3600.0
# A round waits so long for its writes. One that a slow webhook holds up goes on beside the rounds that follow.
_WRITES_S: Final = 1.0
# A job that was left out is looked at again after so long, then after twice as long, and so on.
_ASIDE_S: Final = 30.0
_MAX_ASIDE_S: Final = 3600.0
# Characters of an error that are told.
_WORDS: Final = 500
# Attempts, one round of the core each, to find the jobs that make it fail.
_TRIES: Final = 100


@dataclass(slots=True)
class _Refusal:
    """A size that a job could not get. `until` is Unix time."""

    generation: int
    replicas: Mapping[str, int]
    delay_s: float
    until: float


@dataclass(slots=True)
class _Aside:
    """A job that was left out, until when (monotonic seconds). It is kept for a while after, for `delay_s` to grow."""

    delay_s: float
    until: float


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the caches hold of one job: all that a ScheduledJob is made from."""

    job: Job | None
    pods: tuple[Pod, ...]
    reports: Mapping[str, Report]
    before: ScheduledJob | None
    unfit: Mapping[Pair, Unfit]


@dataclass(frozen=True, slots=True)
class _Described:
    """A job's ScheduledJob, what is known of nodes that it cannot have, and in how many seconds there may be more to
    know; and why it is left out, if it is."""

    found: ScheduledJob
    unfit: Mapping[Pair, Unfit]
    again_s: float | None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Planned:
    snapshot: Snapshot
    targets: Mapping[str, Target]
    failed: Mapping[str, Exception]


class Scheduler:
    """The loop. `touched` and `configured` wake it; `run` acts while `holds()`, the leader's lease, says so."""

    def __init__(
        self,
        api: ApiClient,
        jobs: Informer[Job],
        pods: Informer[Pod],
        *,
        reports: Reports,
        recorder: Recorder,
        configuration: Callable[[], Configuration],
        namespace: str = "",
        priorities: Callable[[], Mapping[str, int]] = dict,
        memory: Memory | None = None,
    ) -> None:
        self._api = api
        self._jobs = jobs
        self._pods = pods
        self._reports = reports
        self._recorder = recorder
        self._configuration = configuration
        self._priorities = priorities
        self._memory = memory if memory is not None else Memory()
        self._nodes = Informer(api, "/api/v1/nodes", Node.parse, lambda _: None, touched=self._cluster_touched)
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
        self._candidates: dict[Key, ScheduledJob] = {}
        self._managed: set[Key] = set()
        self._snapshot: Snapshot | None = None
        self._profile: tuple[Configuration, Profile] | None = None
        self._all_at = 0.0
        # What a ScheduledJob is made from beside its job: the nodes' capacities and the priority classes.
        self._around: tuple[Mapping[str, Resources], Mapping[str, int], frozenset[str]] = {}, {}, frozenset()
        # Jobs whose ScheduledJob will be another one without any change: what is promised, owed or refused for a time.
        self._passing: set[Key] = set()
        self._refusals: dict[Key, _Refusal] = {}
        self._reasoned_at: dict[Key, float] = {}
        self._aside: dict[Key, _Aside] = {}
        self._unfit: dict[Key, Mapping[Pair, Unfit]] = {}
        # Jobs whose target is being written, and those of them for which a round has decided again meanwhile.
        self._writing: set[Key] = set()
        self._overtaken: set[Key] = set()
        # Grows when all that is known is thrown away: a round that began before says nothing any more.
        self._epoch = 0

    def touched(self, key: Key) -> None:
        """A job, one of its pods or what it reports has changed."""
        if self._runs:  # else all are looked at when it does
            self._dirty.add(key)
            self._wake.set()

    def _cluster_touched(self, _: Key) -> None:
        # A thousand plain jobs coming and going are nothing to a loop that has no job to decide for.
        if self._managed:
            self._wake.set()

    def configured(self) -> None:
        """The configuration has changed."""
        self._begin_anew()
        self._wake.set()

    def _begin_anew(self) -> None:
        self._epoch += 1
        self._candidates.clear()
        self._managed.clear()
        self._snapshot = None
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
                begun = time.monotonic()
                if holds():
                    try:
                        await self._round(configuration, group)
                    except Exception:
                        metrics.SCHEDULING_FAILURES.inc()
                        log.exception("bug: the scheduling round failed; jobs keep what they have")
                        self._begin_anew()
                await self._pause(configuration, begun)

    async def _pause(self, configuration: Configuration, begun: float) -> None:
        """Until something changes, at least a second and at most an interval after the last round began."""
        parameters = configuration.parameters
        interval_s = max(parameters.interval_s or _INTERVAL_S, _SPACING_S)
        if parameters.on_change:
            # Not wait_for, which in Python 3.11 swallows a cancellation that comes together with what it waits for.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._wake.wait()
            await asyncio.sleep(max(0.0, begun + _SPACING_S - time.monotonic()))
        else:
            await asyncio.sleep(interval_s - time.time() % interval_s)
        self._wake.clear()

    async def _round(self, configuration: Configuration, group: asyncio.TaskGroup) -> None:
        with metrics.SCHEDULING_SECONDS.time():
            epoch = self._epoch
            targets = await self._decide(configuration)
            if epoch != self._epoch:
                return
            now = time.time()
            begun = [self._begin_write(key, target, now, group) for key, target in targets.items()]
            if tasks := [task for task in begun if task is not None]:
                await asyncio.wait(tasks, timeout=_WRITES_S)

    def _begin_write(
        self, key: Key, target: Target, now: float, group: asyncio.TaskGroup
    ) -> "asyncio.Task[None] | None":
        """Write a target, beside later rounds if it takes long. None: the job's last write is still under way; when
        that has ended the job is looked at again."""
        if key in self._writing:
            self._overtaken.add(key)
            return None
        self._writing.add(key)
        task = group.create_task(self._write(key, target, now), name=f"target-{key[0]}-{key[1]}")
        # Not in the task itself, which may be cancelled before it begins.
        task.add_done_callback(lambda _: self._written(key))
        return task

    def _written(self, key: Key) -> None:
        self._writing.discard(key)
        if key in self._overtaken:
            self._overtaken.discard(key)
            self.touched(key)

    async def _decide(self, configuration: Configuration) -> dict[Key, Target]:
        fixed, now, epoch = configuration.profile == FIXED, time.monotonic(), self._epoch
        changed, self._dirty = self._dirty, set()
        changed |= {key for key, each in self._aside.items() if each.until <= now}
        await self._describe(changed if fixed else self._looked_at(changed, configuration), configuration)
        if epoch != self._epoch:
            return {}
        targets: dict[Key, Target] = {}
        for key in changed:
            found = self._candidates.get(key)
            if found is None or self._stands_aside(key):
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
        if fixed:
            return targets
        if not self._managed:
            self._snapshot = None
            return targets
        return {**targets, **await self._plan(configuration, changed)}

    def _looked_at(self, changed: set[Key], configuration: Configuration) -> set[Key]:
        """The jobs to describe anew: those that changed; at every interval those that said how far they are, and those
        of which something holds for a time only; and all when nodes or priorities are others. Of ten thousand jobs
        that run there are few at a time. Between, progress is as predicted."""
        now = time.monotonic()
        usable = {node.name: node.allocatable for node in self._nodes if node.usable}
        around = usable, dict(self._priorities()), self._cordoned()
        if around != self._around:
            self._around, self._all_at = around, now
            return changed | self._managed
        if now - self._all_at < (configuration.parameters.interval_s or _INTERVAL_S):
            return changed
        self._all_at = now
        return changed | (self._managed & (self._reports.renewed() | self._passing))

    def _cordoned(self) -> frozenset[str]:
        return frozenset(node.name for node in self._nodes if node.cordoned)

    async def _describe(self, keys: set[Key], configuration: Configuration) -> None:
        """Bring the candidates of these jobs up to date."""
        nodes = {node.name: node for node in self._nodes if node.usable}
        seen: dict[Key, _Seen] = {}
        for key in keys:
            job = next(iter(self._jobs.of_job(key)), None)
            pods = self._pods.of_job(key)
            if job is None and not pods:
                for known in (self._candidates, self._refusals, self._reasoned_at, self._aside, self._unfit):
                    known.pop(key, None)
                self._managed.discard(key)
                self._passing.discard(key)
                continue
            before, unfit = self._candidates.get(key), self._unfit.get(key, {})
            seen[key] = _Seen(job, pods, self._reports.of_job(key), before, unfit)
        epoch, now = self._epoch, datetime.now(UTC)
        described = await asyncio.to_thread(
            _describe_all,
            seen,
            nodes,
            now,
            configuration.scope == "all",
            self._priorities(),
            cordoned=self._cordoned(),
        )
        if epoch != self._epoch:
            return
        for key, each in described.items():
            self._take_in(key, each)
        phases = Counter(found.job.phase for found in self._decided() if found.job is not None)
        for phase in ("waiting", "running", "rescaling"):
            metrics.SCHEDULED_JOBS.labels(phase).set(phases[phase])

    def _take_in(self, key: Key, described: _Described) -> None:
        found, before = described.found, self._candidates.get(key)
        self._candidates[key] = found
        if before is not None and (found.terms is not before.terms or found.target != before.target):
            self._aside.pop(key, None)  # what was wrong with it may be mended
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
            self._note_refusal(key, found)
        except Exception as error:
            self._leave_out(key, error)
            return
        if described.again_s is not None:
            asyncio.get_running_loop().call_later(described.again_s, self.touched, key)
        if found.source is None or not found.followed:
            return
        for problem in found.terms.problems if found.terms is not None else ():
            self._recorder.record(found.source, Event("Warning", "KueueQuota", problem))
        if found.job is None and found.awaited_since_s is not None:
            nodes = ", ".join(sorted({node for node in found.awaited.values() if node})) or "any node"
            message = f"Its pods did not come to {nodes}: the room that was kept for them there is given to others"
            self._recorder.record(found.source, Event("Warning", "NotScheduled", message))

    def _decided(self) -> Iterator[ScheduledJob]:
        return (self._candidates[key] for key in self._managed)

    def _leave_out(self, key: Key, error: BaseException) -> None:
        """Decide nothing for a job for a while; longer, if it is not the first time."""
        now, known = time.monotonic(), self._aside.get(key)
        delay_s = _ASIDE_S if known is None else min(2 * known.delay_s, _MAX_ASIDE_S)
        self._aside[key] = _Aside(delay_s, now + delay_s)
        namespace, name = key
        log.warning("job left out of scheduling", namespace=namespace, job=name, error=excerpt(error))
        found = self._candidates.get(key)
        source = found.source if found is not None else None
        source = source if source is not None else next(iter(self._jobs.of_job(key)), None)
        if source is not None:
            message = f"Left out of scheduling: {str(error) or type(error).__name__}"[:_WORDS]
            self._recorder.record(source, Event("Warning", "NotScheduled", message))

    def _stands_aside(self, key: Key) -> bool:
        known = self._aside.get(key)
        return known is not None and time.monotonic() < known.until

    async def _plan(self, configuration: Configuration, changed: set[Key]) -> dict[Key, Target]:
        """What the profile decides. Where the core fails it is tried from scratch, and then without the jobs that make
        it fail: first it is seen whether it can do without those that are new to it."""
        profile = self._profile_of(configuration)
        foreign = list(self._foreign)
        if self._by_uid:
            own = {pod.uid for pod in self._pods}
            foreign = [pod for pod in foreign if pod.uid not in own]
        nodes = {node.name: node for node in sorted(self._nodes, key=lambda node: node.name) if node.usable}
        tried = {key for key in self._managed if not self._stands_aside(key)}
        all_jobs = {f"{key[0]}/{key[1]}": (key, found) for key, found in self._candidates.items()}
        epoch = self._epoch

        async def attempt(keys: Iterable[Key], previous: Snapshot | None = None) -> _Planned:
            chosen = set(keys)
            considered = {name: f if key in chosen else set_aside(f) for name, (key, f) in all_jobs.items()}
            history = self._memory.history
            return await asyncio.to_thread(
                _plan, considered, nodes, foreign, profile, previous=previous, history=history
            )

        self._snapshot, previous = None, self._snapshot
        failed: dict[Key, Exception] = {}
        try:
            planned = await attempt(tried, previous)
        except Exception:
            log.exception("bug: the core failed")
            metrics.SCHEDULING_FAILURES.inc()
            planned, failed = await without_offenders([tried - changed, tried & changed], attempt, tries=_TRIES)
        if epoch != self._epoch:
            return {}
        self._snapshot = planned.snapshot
        for name, error in planned.failed.items():
            failed[all_jobs[name][0]] = error
        for key, error in failed.items():
            self._leave_out(key, error)
        for key in tried - set(failed):
            known = self._aside.get(key)
            if known is not None and time.monotonic() > known.until + known.delay_s:
                del self._aside[key]
        return {all_jobs[name][0]: target for name, target in planned.targets.items()}

    def _profile_of(self, configuration: Configuration) -> Profile:
        if self._profile is None or self._profile[0] is not configuration:
            made = build(configuration.profile, configuration.parameters)
            # A replica that runs stays where it is: only added ones can be placed.
            self._profile = configuration, replace(made, repack=False)
        return self._profile[1]

    def _note_refusal(self, key: Key, found: ScheduledJob) -> None:
        target, state = found.target, found.state
        if target is None or state is None or state.refused is None or state.refused.generation != target.generation:
            return
        known = self._refusals.get(key)
        if known is not None and known.generation == target.generation:
            return
        again = known is not None and known.replicas == target.replicas
        delay_s = min(2 * known.delay_s, _MAX_REFUSED_S) if known is not None and again else _REFUSED_S
        until = parse_time(state.refused.at).timestamp() + delay_s
        self._refusals[key] = _Refusal(target.generation, target.replicas, delay_s, until)

    def _may_write(self, key: Key, target: Target, now: float) -> bool:
        known = self._refusals.get(key)
        if known is not None and known.replicas == target.replicas and now < known.until:
            self._dirty.add(key)  # a later round looks again
            return False
        before = self._candidates[key].target
        if before is not None and not before.replicas and not target.replicas:
            if now - self._reasoned_at.get(key, 0.0) < _REASON_S:
                self._dirty.add(key)
                return False
            self._reasoned_at[key] = now
        return True

    async def _write(self, key: Key, target: Target, now: float) -> None:
        """Store a target, unless it is too early for it. Whatever goes wrong touches no other job."""
        try:
            found = self._candidates.get(key)
            job = found.source if found is not None else None
            if job is None or not self._may_write(key, target, now):
                return
            body = {
                "metadata": {
                    "uid": job.uid,
                    "resourceVersion": str(job.version),
                    "annotations": {**claim(job.annotations, job.uid), TARGET_ANNOTATION: target.to_json()},
                }
            }
            await self._store(job, target, body)
        except (Exception, asyncio.CancelledError) as error:
            if cancels(error):
                raise
            self._leave_out(key, error)

    async def _store(self, job: Job, target: Target, body: dict[str, Any]) -> None:
        where = {"namespace": job.namespace, "job": job.name}
        try:
            async with asyncio.timeout(_WRITE_S):
                answer = await self._api.patch(f"{jobs_path(job.namespace)}/{job.name}", body)
            self._jobs.seen(answer)
        except Conflict:
            metrics.TARGETS.labels("conflict").inc()
            self.touched(job.key)  # it has changed since: the next round decides anew
        except NotFound:
            metrics.TARGETS.labels("gone").inc()
        except Invalid as error:
            # It would be in each plan, and others would wait for room that it never takes.
            metrics.TARGETS.labels("failed").inc()
            self._leave_out(job.key, error)
        except (ApiError, TimeoutError) as error:
            metrics.TARGETS.labels("failed").inc()
            log.warning("target not written", **where, error=excerpt(error))
            self._dirty.add(job.key)
        else:
            metrics.TARGETS.labels("ok").inc()
            log.info(
                "target",
                **where,
                generation=target.generation,
                replicas=dict(target.replicas),
                nodes=sorted({node for names in target.nodes.values() for node in names}),
                reason=target.reason,
            )


def _describe_all(
    seen: Mapping[Key, _Seen],
    nodes: Mapping[str, Node],
    now: datetime,
    everything: bool,
    priorities: Mapping[str, int],
    *,
    cordoned: Collection[str],
) -> dict[Key, _Described]:
    """Each job's ScheduledJob. One that cannot be described is not decided for, and all that its pods take counts."""
    now_s = now.timestamp()
    described: dict[Key, _Described] = {}
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
            )
            described[key] = _Described(found, unfit, verdict_due_s(each.pods, now_s))
        except Exception as error:
            described[key] = _Described(
                replace(scheduled_job(None, each.pods, nodes=nodes, now=now), source=each.job), {}, None, error
            )
    return described


def _plan(
    candidates: Mapping[str, ScheduledJob],
    nodes: Mapping[str, Node],
    foreign: Iterable[ForeignPod],
    profile: Profile,
    *,
    previous: Snapshot | None,
    history: History,
) -> _Planned:
    """What the profile decides for these jobs, by their keys in the Snapshot, and for which that failed."""
    snapshot = assemble(candidates.values(), nodes, foreign, time.time(), previous, history=history)
    plan = schedule(snapshot, profile)
    failed: dict[str, Exception] = {}
    decided = {name: found for name, found in candidates.items() if found.job is not None}
    return _Planned(snapshot, decide(plan, decided, failed.__setitem__), failed)
