"""The scheduling loop: Snapshot, Plan, and for each job whose target changes one patch of its annotation.

Only what fits beside what stands on the nodes at this moment is written. A job that shall have the room of another one
waits until that one has given it up: the plan is made anew by then, from a Snapshot that knows what was promised.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, cast

import structlog

from elastic_tfjob.api.configuration import Configuration
from elastic_tfjob.api.tfjob import CONTROLLER_NAME, OPERATOR_NAME_LABEL
from elastic_tfjob.controller import metrics
from elastic_tfjob.controller.cache import Informer
from elastic_tfjob.controller.client import ApiClient, ApiError, Conflict, NotFound
from elastic_tfjob.controller.cluster import ACTIVE_AND_BOUND, ForeignPod, Node
from elastic_tfjob.controller.decision import Event
from elastic_tfjob.controller.elastic import TARGET_ANNOTATION, Target
from elastic_tfjob.controller.events import Recorder
from elastic_tfjob.controller.executor import jobs_path
from elastic_tfjob.controller.observed import Job, Key, Pod
from elastic_tfjob.controller.reports import Reports
from elastic_tfjob.controller.snapshot import Candidate, Role, asked_for, assemble, candidate, promised
from elastic_tfjob.controller.status import parse_time
from elastic_tfjob.scheduling import plan as core
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.profiles import build
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.room import ANY_NODE
from elastic_tfjob.scheduling.snapshot import Snapshot

__all__ = ["FIXED", "Scheduler", "decide", "decide_fixed"]

log = structlog.get_logger(__name__)

FIXED: Final = "fixed"
_SPACING_S: Final = 1.0
_INTERVAL_S: Final = 15.0
# Why a job waits may be worded with figures that change all the time.
_REASON_S: Final = 10.0
_REFUSED_S: Final = 60.0
_MAX_REFUSED_S: Final = 3600.0


def decide(plan: Plan, candidates: Mapping[str, Candidate]) -> dict[str, Target]:
    """The targets to write, by the jobs' keys in the Snapshot: what changed and can be had now, why the others wait,
    and the sizes of jobs that run without a target (they began under another profile)."""
    free = {name: node.free for name, node in plan.snapshot.nodes.items()}
    for each in candidates.values():
        if each.job is not None:
            for name, taken in each.held.items():
                if name in free:
                    free[name] = free[name].minus(taken)
    targets: dict[str, Target] = {}
    later: dict[str, str] = {}
    for key, change in plan.changes.items():
        found = candidates[key]
        assert found.job is not None
        if not change.nodes:
            if found.job.spec.rescalable:
                targets[key] = _waits(found, change.reason)
            continue
        needed = _needed(found, change)
        short = next((name for name, more in needed.items() if not more.within(free.get(name, NOTHING))), None)
        if short is not None:
            later[key] = f"waits for room on {short} that another job is about to give up"
            continue
        for name, more in needed.items():
            free[name] = free[name].minus(Resources(*(max(0, amount) for amount in more)))
        targets[key] = _holds(found, change)
    for key, why in {**plan.waiting, **later}.items():
        found = candidates[key]
        if key not in targets and found.job is not None and found.job.phase == "waiting":
            targets[key] = _waits(found, why)
    for key, found in candidates.items():
        if key not in targets and found.job is not None and found.job.placement:
            kept = _kept(found)
            if kept is not None:
                targets[key] = kept
    return {key: target for key, target in targets.items() if _differs(target, candidates[key].target)}


def decide_fixed(found: Candidate) -> Target | None:
    """What profile `fixed` writes for a job: nothing, but where a person asks an elastic job for another size, or it
    still waits for a start that another profile owes it."""
    terms, target, state = found.terms, found.target, found.state
    if terms is None or terms.spec.run_policy.suspend:
        return None
    declared = terms.declared
    if target is not None and not target.replicas:
        return Target(_generation(found, declared), declared, reason="fixed: the declared size", declared=declared)
    if not terms.elastic or (target is None and state is None):
        return None
    size, _ = promised(terms, target, state, started=True)
    asked, why = asked_for(terms, target, state, size)
    wanted = {**size, **asked}
    if not size or (wanted == dict(size) and (target is None or target.declared == declared or not asked)):
        return None
    return Target(_generation(found, wanted), wanted, cpu=target.cpu if target else {}, reason=why, declared=declared)


def _needed(found: Candidate, change: core.Target) -> dict[str, Resources]:
    """What a change takes by node beyond what the job holds; what it gives up itself is deducted."""
    assert found.job is not None
    spec, needed = found.job.spec, dict[str, Resources]()

    def shift(node: str, amount: Resources) -> None:
        needed[node] = needed.get(node, NOTHING).plus(amount)

    wanted = dict(_roles(change.nodes))
    for (name, index), node in wanted.items():
        group = spec.group(name)
        if node == ANY_NODE or group is None:
            continue
        values = _millicores(change, name)
        cpu = values[index] if index < len(values) else group.request.cpu
        if (name, index) in found.bound:
            shift(found.bound[name, index], Resources(cpu=cpu - found.cpu[name, index]))
        elif found.awaited.get((name, index)) != node:
            shift(node, group.request._replace(cpu=cpu))
    for role, node in found.bound.items():
        if role not in wanted and node in needed:
            group = spec.group(role[0])
            assert group is not None
            shift(node, NOTHING.minus(group.request._replace(cpu=found.cpu[role])))
    # Freeing one resource while taking another is fine; what is freed is not given to others before it is free.
    return {node: amount for node, amount in needed.items() if any(part > 0 for part in amount)}


def _millicores(change: core.Target, name: str) -> tuple[int, ...]:
    return tuple(cast("Iterable[int]", change.cpu.get(name, ())))


def _roles(nodes: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[Role, str]]:
    for name, names in nodes.items():
        for index, node in enumerate(names):
            yield (name, index), node


def _holds(found: Candidate, change: core.Target) -> Target:
    assert found.job is not None
    assert found.terms is not None
    replicas = {group.type: len(change.nodes.get(group.type, ())) for group in found.job.spec.groups}
    anywhere = any(node in (ANY_NODE, "") for _, node in _roles(change.nodes))
    cpu = {
        name: tuple(max(1, value - found.terms.beside[name]) for value in _millicores(change, name))
        for name in change.cpu
    }
    return Target(
        _generation(found, replicas),
        replicas,
        {} if anywhere else {name: tuple(names) for name, names in change.nodes.items()},
        cpu,
        change.reason,
        _declared(found, replicas),
    )


def _waits(found: Candidate, why: str) -> Target:
    assert found.terms is not None
    return Target(_generation(found, {}), {}, reason=why, declared=found.terms.declared)


def _kept(found: Candidate) -> Target | None:
    """The target of a job that stays as it is: its size if it has none, and what its spec says by now."""
    assert found.job is not None
    assert found.terms is not None
    if found.target is not None:
        declared = _declared(found, found.target.replicas)
        return None if declared == found.target.declared else replace(found.target, declared=declared)
    if found.job.phase == "rescaling" and found.state is not None and found.state.rescaling:
        return None
    change = core.Target(found.job.placement, "had this size when the profile took over")
    return replace(_holds(found, change), generation=found.state.generation if found.state is not None else 0)


def _declared(found: Candidate, replicas: Mapping[str, int]) -> Mapping[str, int]:
    """The spec's replicas, once an edit of them has been followed; till then those that the last target saw."""
    assert found.terms is not None
    asked, _ = asked_for(found.terms, found.target, found.state, replicas)
    followed = all(replicas.get(name, 0) == count for name, count in asked.items())
    return found.terms.declared if followed or found.target is None else found.target.declared


def _generation(found: Candidate, replicas: Mapping[str, int]) -> int:
    """One more where the size changes; the first start is generation 0 however long the job waited for it."""
    target, state = found.target, found.state
    known = [target.generation if target is not None else 0]
    if state is not None:
        known.append(state.generation)
        known += [each.generation for each in (state.next, state.refused) if each is not None]
    last = max(known)
    has_run = target is not None and (target.generation > 0 or bool(target.replicas))
    has_run = has_run or (state is not None and bool(state.replicas))
    refused = target is not None and state is not None and state.refused is not None
    refused = refused and state.refused.generation == target.generation  # type: ignore[union-attr]
    size = target.replicas if target is not None else (state.replicas if state is not None else {})
    return last + 1 if has_run and (refused or dict(size) != dict(replicas)) else last


def _differs(wanted: Target, known: Target | None) -> bool:
    """Whether there is anything new in a target but, for a job that goes on running, other words."""
    if known is None:
        return True
    same = (wanted.generation, dict(wanted.replicas), dict(wanted.nodes), dict(wanted.cpu), dict(wanted.declared)) == (
        known.generation,
        dict(known.replicas),
        dict(known.nodes),
        dict(known.cpu),
        dict(known.declared),
    )
    return not same or (not wanted.replicas and wanted.reason != known.reason)


@dataclass(slots=True)
class _Refusal:
    """A size that a job could not get. `until` is Unix time."""

    generation: int
    replicas: Mapping[str, int]
    delay_s: float
    until: float


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
    ) -> None:
        self._api = api
        self._jobs = jobs
        self._pods = pods
        self._reports = reports
        self._recorder = recorder
        self._configuration = configuration
        self._priorities = priorities
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
        self._dirty: set[Key] = set()
        self._candidates: dict[Key, Candidate] = {}
        self._managed: set[Key] = set()
        self._snapshot: Snapshot | None = None
        self._profile: tuple[Configuration, Profile] | None = None
        self._all_at = 0.0
        self._usable: set[str] = set()
        self._refusals: dict[Key, _Refusal] = {}
        self._reasoned_at: dict[Key, float] = {}

    def touched(self, key: Key) -> None:
        """A job, one of its pods or what it reports has changed."""
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
        self._candidates.clear()
        self._managed.clear()
        self._snapshot = None
        self._dirty.update(self._jobs.keys)
        self._dirty.update(self._pods.keys)

    async def run(self, holds: Callable[[], bool]) -> None:
        """Decide for ever."""
        self._begin_anew()
        async with asyncio.TaskGroup() as group:
            watching = False
            while True:
                configuration = self._configuration()
                if configuration.profile != FIXED and not watching:
                    watching = True
                    group.create_task(self._nodes.run(), name="nodes")
                    group.create_task(self._foreign.run(), name="foreign-pods")
                    await self._nodes.synced.wait()
                    await self._foreign.synced.wait()
                begun = time.monotonic()
                if holds():
                    try:
                        await self._round(configuration)
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
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), interval_s)
            await asyncio.sleep(max(0.0, begun + _SPACING_S - time.monotonic()))
        else:
            await asyncio.sleep(interval_s - time.time() % interval_s)
        self._wake.clear()

    async def _round(self, configuration: Configuration) -> None:
        with metrics.SCHEDULING_SECONDS.time():
            targets = await self._decide(configuration)
            now = time.time()
            await asyncio.gather(
                *(self._write(key, target) for key, target in targets.items() if self._may_write(key, target, now))
            )

    async def _decide(self, configuration: Configuration) -> dict[Key, Target]:
        fixed = configuration.profile == FIXED
        changed, self._dirty = self._dirty, set()
        self._describe(changed if fixed or not self._all_due(configuration) else changed | self._managed, configuration)
        if fixed:
            asked = {key: decide_fixed(self._candidates[key]) for key in changed if key in self._candidates}
            return {key: target for key, target in asked.items() if target is not None}
        targets = {
            key: _waits(found, "suspended")
            for key in changed
            if (found := self._candidates.get(key)) is not None
            and found.job is None
            and found.terms is not None
            and found.terms.spec.run_policy.suspend
            and found.target is not None
            and found.target.replicas
        }
        if not self._managed:
            self._snapshot = None
            return targets
        plan, considered = await self._plan(configuration, changed)
        by_name = {f"{key[0]}/{key[1]}": key for key in considered}
        decided = decide(plan, {name: considered[key] for name, key in by_name.items()})
        return {**targets, **{by_name[name]: target for name, target in decided.items()}}

    def _all_due(self, configuration: Configuration) -> bool:
        """Whether all jobs are to be looked at, and not only those that changed: for the progress of each, at every
        interval; and when nodes have come or gone. Between, progress is as predicted."""
        now, usable = time.monotonic(), {node.name for node in self._nodes if node.usable}
        due = now - self._all_at >= (configuration.parameters.interval_s or _INTERVAL_S) or usable != self._usable
        if due:
            self._all_at, self._usable = now, usable
        return due

    def _describe(self, keys: set[Key], configuration: Configuration) -> None:
        """Bring the candidates of these jobs up to date."""
        nodes = {node.name: node for node in self._nodes if node.usable}
        now, priorities = datetime.now(UTC), self._priorities()
        everything = configuration.scope == "all"
        for key in keys:
            job = next(iter(self._jobs.of_job(key)), None)
            pods = self._pods.of_job(key)
            if job is None and not pods:
                for known in (self._candidates, self._refusals, self._reasoned_at):
                    known.pop(key, None)
                self._managed.discard(key)
                continue
            reports = self._reports.of_job(key)
            before = self._candidates.get(key)
            try:
                found = candidate(
                    job,
                    pods,
                    nodes=nodes,
                    now=now,
                    all_jobs=everything,
                    reports=reports,
                    priorities=priorities,
                    before=before,
                )
            except Exception as error:
                assert job is not None
                self._leave_out(job, error)
                found = candidate(None, pods, nodes=nodes, now=now)
            self._candidates[key] = found
            (self._managed.add if found.job is not None else self._managed.discard)(key)
            self._note_refusal(key, found)
        for phase in ("waiting", "running", "rescaling"):
            count = sum(found.job is not None and found.job.phase == phase for found in self._decided())
            metrics.SCHEDULED_JOBS.labels(phase).set(count)

    def _decided(self) -> Iterator[Candidate]:
        return (self._candidates[key] for key in self._managed)

    def _leave_out(self, job: Job, error: Exception) -> None:
        log.warning("job left out of scheduling", namespace=job.namespace, job=job.name, error=repr(error))
        self._recorder.record(job, Event("Warning", "NotScheduled", f"Left out of scheduling: {error}"))

    async def _plan(self, configuration: Configuration, changed: set[Key]) -> tuple[Plan, dict[Key, Candidate]]:
        """The plan and the jobs it is for. Where the core fails it is tried from scratch, and then without the jobs
        that are new to it."""
        profile = self._profile_of(configuration)
        foreign = list(self._foreign)
        if self._by_uid:
            own = {pod.uid for pod in self._pods}
            foreign = [pod for pod in foreign if pod.uid not in own]
        nodes = {node.name: node for node in sorted(self._nodes, key=lambda node: node.name) if node.usable}
        left_out: set[Key] = set()
        for attempt in range(3):
            considered = {key: found for key, found in self._candidates.items() if key not in left_out}
            previous = self._snapshot if attempt == 0 else None
            try:
                snapshot = assemble(considered.values(), nodes, foreign, time.time(), previous)
                self._snapshot = snapshot
                plan = await asyncio.to_thread(schedule, snapshot, profile)
                return plan, {key: found for key, found in considered.items() if found.job is not None}
            except Exception as error:
                self._snapshot = None
                if attempt == 2 or (attempt == 1 and not changed & self._managed):
                    raise
                log.exception("bug: the core failed", again_without_new_jobs=attempt == 1)
                if attempt == 1:
                    left_out = changed & self._managed
                    for key in left_out:
                        if (job := self._candidates[key].source) is not None:
                            self._leave_out(job, error)
        raise AssertionError("the last attempt raises")  # pragma: no cover

    def _profile_of(self, configuration: Configuration) -> Profile:
        if self._profile is None or self._profile[0] is not configuration:
            made = build(configuration.profile, configuration.parameters)
            # A replica that runs stays where it is: only added ones can be placed.
            self._profile = configuration, replace(made, repack=False)
        return self._profile[1]

    def _note_refusal(self, key: Key, found: Candidate) -> None:
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

    async def _write(self, key: Key, target: Target) -> None:
        job = self._candidates[key].source
        assert job is not None
        where = {"namespace": job.namespace, "job": job.name}
        body = {
            "metadata": {
                "uid": job.uid,
                "resourceVersion": str(job.version),
                "annotations": {TARGET_ANNOTATION: target.to_json()},
            }
        }
        try:
            self._jobs.seen(await self._api.patch(f"{jobs_path(job.namespace)}/{job.name}", body))
        except Conflict:
            metrics.TARGETS.labels("conflict").inc()
            self.touched(key)  # it has changed since: the next round decides anew
        except NotFound:
            metrics.TARGETS.labels("gone").inc()
        except ApiError as error:
            metrics.TARGETS.labels("failed").inc()
            log.warning("target not written", **where, error=str(error))
            self._dirty.add(key)
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
