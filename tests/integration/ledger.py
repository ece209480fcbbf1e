"""What happened, as the API server tells it, and the invariants that no fault may break.

The ledger watches the API server itself, not the operator and not a proxy, from before the first job to the end.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Self

from harness.api import Api, Object, pods, services, tfjobs

from .workload import Case, replica_of


def conditions(job: Object) -> dict[str, str]:
    """Type -> status, in the order of the list."""
    return {c["type"]: c["status"] for c in job.get("status", {}).get("conditions", ())}


def final(job: Object) -> str | None:
    """Succeeded, Failed, or None while it is not finished; both is a contradiction that the caller must see."""
    ends = [kind for kind in ("Succeeded", "Failed") if conditions(job).get(kind) == "True"]
    return "+".join(ends) or None


@dataclass(slots=True)
class Ledger:
    """Every pod ever seen, by job and replica; every job's latest state; and at once what must never be."""

    namespace: str
    uids: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    alive: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    jobs: dict[str, Object] = field(default_factory=dict)
    finals: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # each change of final()
    broken: list[str] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @contextlib.asynccontextmanager
    async def watching(self, api: Api) -> AsyncIterator[Self]:
        """Keep the ledger while the block runs, and fail at its end if an invariant was broken meanwhile."""
        follow = [
            asyncio.create_task(self._follow_pods(api)),
            asyncio.create_task(self._follow_jobs(api)),
        ]
        try:
            yield self
        finally:
            blind = [task for task in follow if task.done()]
            for task in follow:
                task.cancel()
            await asyncio.gather(*follow, return_exceptions=True)
            for task in blind:
                task.result()  # before any other failure: a ledger that stopped looking explains it
        assert not self.broken

    async def _follow_pods(self, api: Api) -> None:
        async for kind, pod in api.follow(pods(self.namespace)):
            replica, uid = replica_of(pod), pod["metadata"]["uid"]
            if kind == "DELETED":
                self.alive[replica].discard(uid)
            elif uid not in self.uids[replica]:
                self.uids[replica].append(uid)
                self.alive[replica].add(uid)
                if len(self.alive[replica]) > 1:
                    self.broken.append(f"two pods of {'/'.join(replica)} at once: {self.alive[replica]}")
            async with self._changed:
                self._changed.notify_all()

    async def _follow_jobs(self, api: Api) -> None:
        async for kind, job in api.follow(tfjobs(self.namespace)):
            name = job["metadata"]["name"]
            if kind == "DELETED":
                self.broken.append(f"{name} was deleted")
            end = final(job)
            if end and (not self.finals[name] or self.finals[name][-1] != end):
                self.finals[name].append(end)
            if self.finals[name] and not end:
                self.broken.append(f"{name} was {self.finals[name][-1]} and then not: {conditions(job)}")
            self.jobs[name] = job
            async with self._changed:
                self._changed.notify_all()

    async def finished(self, names: Iterable[str], within_s: float) -> None:
        """Wait until all these jobs are finished; fails with the state of those that are not."""
        names = list(names)
        try:
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: all(self.finals[name] for name in names))
        except TimeoutError:
            open_jobs = {n: conditions(self.jobs[n]) if n in self.jobs else "never seen" for n in names}
            open_jobs = {n: state for n, state in open_jobs.items() if not self.finals[n]}
            raise AssertionError(f"{len(open_jobs)} of {len(names)} jobs not finished: {open_jobs}") from None

    async def running(self, names: Iterable[str], within_s: float) -> None:
        """Wait until all these jobs have the condition Running."""
        names = list(names)
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(
                lambda: all(conditions(self.jobs.get(name, {})).get("Running") == "True" for name in names)
            )

    async def started(self, cases: Iterable[Case], within_s: float) -> None:
        """Wait until a pod of each replica of these cases has been seen."""
        expected = {(case.name, replica) for case in cases for replica in case.pods}
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: expected <= {key for key, uids in self.uids.items() if uids})


async def cleaned(api: Api, ledger: Ledger, cases: Iterable[Case], within_s: float = 120) -> None:
    """Wait until what the clean-up of finished jobs has to leave is all that is there, by the API server and by the
    ledger; when that is not so in time, `check` says what is wrong."""
    left = {(case.name, replica) for case in cases for replica in case.left}

    async def there(collection: str) -> set[tuple[str, str]]:
        return {replica_of(item) for item in (await api.items(collection))[0]}

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while not (
                {replica for replica, alive in ledger.alive.items() if alive} == left
                and await there(pods(ledger.namespace)) == left
                and await there(services(ledger.namespace)) == left
            ):
                await asyncio.sleep(0.2)


async def check(api: Api, ledger: Ledger, cases: Iterable[Case]) -> None:
    """Every case ended as it must: none lost, none doubled, none wrongly failed, nothing left behind or missing."""
    wrong: list[str] = []
    left: defaultdict[str, set[str]] = defaultdict(set)
    served: defaultdict[str, set[str]] = defaultdict(set)
    for found, collection in ((left, pods), (served, services)):
        for item in (await api.items(collection(ledger.namespace)))[0]:
            owner, replica = replica_of(item)
            found[owner].add(replica)
    expected = {case.name: case for case in cases}
    for owner, replica in ledger.uids:
        if owner not in expected or replica not in expected[owner].pods:
            wrong.append(f"{owner}: unexpected pod {replica}")
    for name, case in expected.items():
        job = ledger.jobs.get(name)
        if job is None:
            wrong.append(f"{name}: never seen")
            continue
        if ledger.finals[name] != [case.final]:
            wrong.append(f"{name}: ended as {ledger.finals[name]}, not as {case.final}: {conditions(job)}")
        started = {replica: len(ledger.uids.get((name, replica), ())) for replica in case.pods}
        if started != case.pods:
            wrong.append(f"{name}: pods started {started}, not {case.pods}")
        wrong += [f"{name}: {problem}" for problem in _status_problems(job, case)]
        if left[name] != case.left:
            wrong.append(f"{name}: pods left {sorted(left[name])}, not {sorted(case.left)}")
        if served[name] != case.left:
            wrong.append(f"{name}: services left {sorted(served[name])}, not {sorted(case.left)}")
    assert not wrong, f"{len(wrong)} problems:\n" + "\n".join(wrong[:40])


def _status_problems(job: Object, case: Case) -> Iterable[str]:
    status = job["status"]
    types = [c["type"] for c in status["conditions"]]
    if len(types) != len(set(types)) or types[0] != "Created" or types[-1] != case.final:
        yield f"conditions are {types}, should go from Created to {case.final}, each once"
    if conditions(job).get("Running") == "True":  # there may be none: the job began and ended while nobody looked
        yield "condition Running is True after the end"
    for time in ("startTime", "completionTime"):
        if not status.get(time):
            yield f"no {time}"
    if case.succeeded:
        counted = {kind: counts.get("succeeded", 0) for kind, counts in status["replicaStatuses"].items()}
        if counted != case.succeeded:
            yield f"succeeded is {counted}, not {case.succeeded}"
