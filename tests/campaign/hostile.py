"""Hostile tenants on a real control plane, and what must hold whatever they send.

    PYTHONPATH=tests python -m campaign.hostile --seconds=600 --seed=7
    PYTHONPATH=tests python -m campaign.hostile --mutant=deep-answers    is this seeded defect caught?

Two namespaces send batches of Inputs (hostile_inputs.py), one is a bystander that creates small jobs all along, with
profile elastic or kips. A batch after which something does not hold is sent again input by input, to a fresh operator,
to tell which one it was.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final

import aiohttp

from campaign.mutants import MUTANTS, Mutant
from conformance.manifest import labels
from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.model.target import Target
from harness import operators
from harness.api import CORE, NODES, Api, ApiError, Object, events, pods, services, tfjobs
from harness.background import background
from harness.controlplane import ControlPlane
from harness.kubelet import kubelet

from .hostile_inputs import REPORT, STARTS_WITHIN_S, UID, Input, Step, corpus, generated, good_job, is_operators
from .statusservers import Answer, StatusServers

MAX_RSS_MIB: Final = 400
MAX_BLOCKED_S: Final = 5.0
"""Of CPU that the operator may use between two answers of /healthz; a busy machine that gives it none is no fault."""
MAX_SILENT_S: Final = 40.0
"""Between two answers of /healthz, whatever the machine does."""
MAX_START_S: Final = 5.0
"""p99 of the bystander: from the creation of a job to its pods, and where it is elastic, to its target."""
MAX_REPORTED_S: Final = 10.0
"""p99 of the bystander: from its pods' running to the step that they report in the job's annotations."""
MAX_TOLD_S: Final = 15.0
"""p99 of the bystander: from its start to its first event."""

PROFILES: Final = {"elastic": "profile: elastic\nprofiles:\n  elastic: {lend: none}\n", "kips": "profile: kips\n"}
"""What the operator's config.yaml may say."""

_KILL_MIB: Final = 1024
_GENERATED_AT_ONCE: Final = 25
_BATCH_S: Final = 4.0
_ALONE_S: Final = 6.0
_RECOVERIES: Final = 3
_READ_S: Final = 1.0
"""Within so long the operator has read what was written."""
_FIRST_STARTS_S: Final = 60.0
"""What the bystander's first two starts may take: without them it is not known how slow the machine is."""
_LATE_S: Final = 20.0
Log = Callable[[str], None]

_RESERVED: Final = {"bystander": "only"}
_JOB: Final = "training.kubeflow.org/job-name"


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that did not hold. `what` is the oracle, `detail` tells equal ones from others; `input` did it, as far
    as one could tell, after `at_s` seconds of the campaign."""

    what: str
    detail: str
    at_s: float
    seed: int
    family: str = ""
    input: str = ""


@dataclass(slots=True)
class Result:
    """What a campaign did and found. Latencies are the bystander's, in seconds; `alone_s` is its slowest start before
    the first hostile input. `patience`: how many times as long as the limits say users wait in any case."""

    seed: int
    patience: float = 1.0
    inputs: int = 0
    refused: int = 0
    restarts: int = 0
    questions: int = 0
    recovered: int = 0
    recovered_running: int = 0
    rss_mib: float = 0.0
    blocked_s: float = 0.0
    alone_s: float = 0.0
    starts_s: list[float] = field(default_factory=list)
    reported_s: list[float] = field(default_factory=list)
    told_s: list[float] = field(default_factory=list)
    violations: dict[tuple[str, ...], Violation] = field(default_factory=dict)

    @property
    def slow(self) -> float:
        """How many times the limits of the bystander it may wait: on a machine where even an operator that nobody
        disturbs is slow, what counts is how much slower it got."""
        return self.patience * max(1.0, 4 * self.alone_s / MAX_START_S)

    def figures(self) -> dict[str, Any]:
        """As JSON, for build/bench/campaign.json."""
        return {
            "seeds": [self.seed],
            "inputs": self.inputs,
            "refused_by_api": self.refused,
            "operator_restarts": self.restarts,
            "status_questions": self.questions,
            "recovered": self.recovered,
            "recovered_without_suspension": self.recovered_running,
            "operator_rss_mib": round(self.rss_mib, 1),
            "operator_blocked_s": round(self.blocked_s, 2),
            "bystander_start_alone_s": round(self.alone_s, 2),
            "bystander_start_limit_s": MAX_START_S,
            "bystander_start_limit_used_s": round(MAX_START_S * self.slow, 2),
            "bystander_start_p99_within_limit": _percentile(self.starts_s, 99) <= MAX_START_S,
            "bystander_starts": len(self.starts_s),
            "bystander_start_p50_s": _percentile(self.starts_s, 50),
            "bystander_start_p99_s": _percentile(self.starts_s, 99),
            "bystander_reported_p50_s": _percentile(self.reported_s, 50),
            "bystander_reported_p99_s": _percentile(self.reported_s, 99),
            "bystander_told_p50_s": _percentile(self.told_s, 50),
            "bystander_told_p99_s": _percentile(self.told_s, 99),
            "violations": [
                {
                    "what": each.what,
                    "detail": each.detail,
                    "at_s": round(each.at_s, 1),
                    "seed": each.seed,
                    "family": each.family,
                    "input": each.input,
                }
                for each in self.violations.values()
            ],
        }


def campaign(
    folder: Path,
    *,
    budget_s: float,
    seed: int,
    profile: str = "elastic",
    known: int = 8,
    left_out: Collection[str] = (),
    patience: float = 1.0,
    log: Log = print,
) -> Result:
    """Run hostile tenants under one of PROFILES for `budget_s` seconds, beside the time it takes to start and stop. It
    begins with what has done harm before, in batches of `known`, but for the families `left_out`; 0: without it. Users
    wait `patience` times as long as the limits say: a machine that does other things, too, may get slower at any
    time."""
    with ControlPlane(folder / "plane") as plane:
        operators.install("ours", plane.kubeconfig)
        options = {"seed": seed, "profile": profile, "patience": patience, "left_out": left_out, "log": log}
        return asyncio.run(_campaign(plane.kubeconfig, folder, budget_s, known, options))


def hunt(
    folder: Path, names: Iterable[str], *, limit_s: float, budget_s: float = inf, log: Log = print
) -> Iterator[tuple[str, Violation | None]]:
    """For each mutant the first violation that its operator commits; None for one that commits none in `limit_s`. None
    begins after `budget_s`."""
    end = time.monotonic() + budget_s
    with ControlPlane(folder / "plane") as plane:
        operators.install("ours", plane.kubeconfig)
        for name in names:
            if time.monotonic() > end:
                return
            yield name, asyncio.run(_hunt(plane.kubeconfig, folder / name, MUTANTS[name], limit_s, log))


async def _hunt(kubeconfig: Path, folder: Path, mutant: Mutant, limit_s: float, log: Log) -> Violation | None:
    async with Api(kubeconfig, connections=64) as api, StatusServers() as servers:
        world = World(api, servers, kubeconfig, folder, seed=1, log=log, profile="kips", mutant=mutant.name)
        await world.prepare()
        try:
            return await world.hunt(mutant.first, limit_s)
        finally:
            await world.stop()


async def _campaign(kubeconfig: Path, folder: Path, budget_s: float, known: int, options: Mapping[str, Any]) -> Result:
    async with Api(kubeconfig, connections=64) as api, StatusServers() as servers:
        world = World(api, servers, kubeconfig, folder, **options)
        await world.prepare()
        try:
            await world.run(budget_s, known)
        finally:
            await world.stop()
        return world.result


class World:
    """The tenants, the bystander, the operator between them, and the oracles."""

    def __init__(
        self,
        api: Api,
        servers: StatusServers,
        kubeconfig: Path,
        folder: Path,
        *,
        seed: int,
        log: Log,
        profile: str,
        mutant: str = "",
        patience: float = 1.0,
        left_out: Collection[str] = (),
    ) -> None:
        self._left_out = left_out
        self._profile = profile
        self._mutant = mutant
        self._patience = patience
        self.result = Result(seed, patience)
        self._api = api
        self._servers = servers
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._random = Random(seed)
        self._log = log
        self._number = count()
        self._tenants: list[str] = []
        self._bystander = ""
        self._begun = time.monotonic()
        self._operator: operators.Operator | None = None
        self._broken: Violation | None = None
        self._is_broken = asyncio.Event()
        self._read = 0
        self._batch: tuple[Input, ...] = ()
        self._config = ""

    async def prepare(self) -> None:
        api = self._api
        self._tenants = [await api.new_namespace(), await api.new_namespace()]
        self._bystander = await api.new_namespace()
        config = {"metadata": {"name": "operator"}, "data": {"config.yaml": PROFILES[self._profile]}}
        await api.create(f"{CORE}/namespaces/{self._bystander}/configmaps", config)
        self._config = f"{self._bystander}/operator"
        for name in ("public-0", "public-1", "reserved-0"):
            await _make_node(api, name, reserved=name.startswith("reserved"))
        await self._start_operator()

    async def run(self, budget_s: float, known: int) -> None:
        self._begun = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(kubelet(self._api, self._bystander, self._bystanders_program))
            for each in (self._watch_health(), self._bystand(elastic=False), self._bystand(elastic=True)):
                await stack.enter_async_context(background(each))
            waiting = [each for each in corpus("known") if each.family not in self._left_out] if known else []
            self._random.shuffle(waiting)
            alone_s = min(_ALONE_S, budget_s / 8)
            await asyncio.sleep(alone_s)
            latest = time.monotonic() + _FIRST_STARTS_S
            while len(self.result.starts_s) < 2 and self._broken is None and time.monotonic() < latest:
                await asyncio.sleep(0.2)
            end = time.monotonic() + budget_s - alone_s
            self.result.alone_s = max(self.result.starts_s, default=0.0)
            while waiting or time.monotonic() < end - 3:  # what is known is sent whole, also on a slow machine
                batch, waiting = waiting[:known], waiting[known:]
                if not batch:
                    size = self._random.randrange(6, _GENERATED_AT_ONCE)
                    batch = [generated(f"h{next(self._number)}", self._random) for _ in range(size)]
                await self._send(tuple(batch), end)
        self._judge_latencies()

    async def hunt(self, first: tuple[str, ...], limit_s: float) -> Violation | None:
        """Send what has done harm before, the families that begin with one of `first` before the others, until the
        first violation."""
        self._begun = time.monotonic()
        known = list(corpus("known"))
        hinted = [each for each in known if each.family.startswith(first)]
        others = [each for each in known if each not in hinted]
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(kubelet(self._api, self._bystander, self._bystanders_program))
            for each in (self._watch_health(), self._bystand(elastic=False), self._bystand(elastic=True)):
                await stack.enter_async_context(background(each))
            await asyncio.sleep(2)
            for batch in (hinted, *(others[at : at + 16] for at in range(0, len(others), 16))):
                if time.monotonic() > self._begun + limit_s:
                    break
                await self._attempt(tuple(batch), 2 * _BATCH_S)
                if self._broken is not None or self.result.violations:
                    break
            else:
                self._judge_latencies()
        return self._broken or next(iter(self.result.violations.values()), None)

    async def stop(self) -> None:
        if self._operator is not None:
            await asyncio.to_thread(self._operator.kill)
        self.result.questions = self._servers.asked

    # Batches

    async def _send(self, batch: tuple[Input, ...], end: float) -> None:
        """Send a batch, wait, ask the oracles, clean up; on a fatal violation find out whose fault it was."""
        self.result.inputs += len(batch)
        while batch:
            await self._attempt(batch, _BATCH_S if len(batch) > 1 else 2 * _BATCH_S)
            if (found := self._broken) is None:
                return
            suspects, found = await self._suspects(batch, found, end)
            one = suspects[0] if len(suspects) == 1 else None
            self._record(found, one, f"one of: {', '.join(sorted({each.family for each in suspects}))}")
            await self._restart()
            batch = tuple(each for each in batch if each not in suspects) if time.monotonic() < end else ()

    async def _suspects(
        self, batch: tuple[Input, ...], found: Violation, end: float
    ) -> tuple[tuple[Input, ...], Violation]:
        """Halve a batch as long as one of the halves, sent to a fresh operator, does harm by itself."""
        while len(batch) > 1 and time.monotonic() < end:
            for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                await self._restart()
                await self._attempt(half, _BATCH_S, replay=True)
                if self._broken is not None:
                    batch, found = half, self._broken
                    break
            else:
                return batch, found
        return batch, found

    async def _attempt(self, batch: tuple[Input, ...], wait_s: float, *, replay: bool = False) -> None:
        self._batch = batch
        begun = time.monotonic()
        where = {id(each): self._tenants[n % 2] for n, each in enumerate(batch)}
        sending = asyncio.gather(*(self._apply(each, where[id(each)]) for each in batch), return_exceptions=True)
        broken = asyncio.create_task(self._is_broken.wait())
        first: list[asyncio.Future[Any]] = [sending, broken]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(broken), max(0.0, wait_s - (time.monotonic() - begun)))
        if self._broken is None and not replay:
            await asyncio.gather(*(self._judge_silence(each, where[id(each)]) for each in batch if each.must_tell))
            await asyncio.gather(*(self._judge_end(each, where[id(each)]) for each in batch if each.must_live))
            mendable = [each for each in batch if each.mendable]
            chosen = self._random.sample(mendable, min(_RECOVERIES, len(mendable)))
            await self._keep_only({each.job for each in chosen})
            # Drawn for all, so that what is drawn next does not depend on what was chosen.
            suspended = [self._random.random() < 0.5 or not each.keeps for each in chosen]
            await asyncio.gather(
                *(
                    self._judge_recovery(each, where[id(each)], suspend=suspend)
                    for each, suspend in zip(chosen, suspended, strict=True)
                )
            )
        sending.cancel()
        broken.cancel()
        await asyncio.gather(sending, broken, return_exceptions=True)
        await self._clean()

    async def _apply(self, given: Input, namespace: str) -> None:
        for step in given.steps:
            try:
                await self._take(step, namespace)
            except ApiError as error:
                if step.what == "create":
                    self.result.refused += 1
                    if error.status >= 500:
                        self._log(f"  {given.family}: the API server said {error}"[:300])
                    return
            except (aiohttp.ClientError, TimeoutError, ValueError):
                return

    async def _with_uid(self, path: str, body: Any) -> Any:
        """What a tenant writes who has looked up its job's uid."""
        text = json.dumps(body)
        if UID not in text:
            return body
        return json.loads(text.replace(UID, (await self._api.get(path))["metadata"]["uid"]))

    async def _take(self, step: Step, namespace: str) -> None:
        api = self._api
        match step.what:
            case "create":
                place = tfjobs(namespace) if step.path == "tfjobs" else pods(namespace)
                await _send_json(api, "POST", place, step.body)
            case "merge":
                path = f"/apis/kubeflow.org/v1/namespaces/{namespace}/{step.path}"
                await _send_json(api, "PATCH", path, await self._with_uid(path, step.body))
            case "delete":
                await api.delete(f"/apis/kubeflow.org/v1/namespaces/{namespace}/{step.path}")
            case "wait":
                await asyncio.sleep(step.seconds)
            case "run":
                assert step.answer is not None
                address = await self._servers.address(step.answer)
                least = step.most if step.most > 5 else 1
                for pod in (await self._pods_of(namespace, step.path, within_s=8.0, least=least))[: step.most]:
                    status = {"phase": "Running", **step.body, "podIP": address, "podIPs": [{"ip": address}]}
                    await _send_json(
                        api, "PATCH", f"{pods(namespace)}/{pod['metadata']['name']}/status", {"status": status}
                    )
            case "relabel":
                for pod in (await self._pods_of(namespace, step.path, within_s=2.0))[:1]:
                    patch = {"metadata": {"labels": labels("another", "worker", 0)}}
                    await api.merge(f"{pods(namespace)}/{pod['metadata']['name']}", patch)

    async def _pods_of(self, namespace: str, job: str, *, within_s: float = 0.0, least: int = 1) -> list[Object]:
        end = time.monotonic() + within_s
        while True:
            found, _ = await self._api.items(pods(namespace), labelSelector=f"{_JOB}={job}", limit="2100")
            if len(found) >= least or time.monotonic() >= end or self._broken is not None:
                return found
            await asyncio.sleep(0.2)

    async def _keep_only(self, jobs: set[str]) -> None:
        """The room of the others is free: a good job may have to wait for it, and rightly."""
        for namespace in self._tenants:
            with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError):
                for job in (await self._api.items(tfjobs(namespace)))[0]:
                    if job["metadata"]["name"] not in jobs:
                        await self._api.delete(f"{tfjobs(namespace)}/{job['metadata']['name']}")
                chosen = {"labelSelector": f"{_JOB} notin ({','.join(sorted(jobs))})"} if jobs else None
                await self._api.request("DELETE", pods(namespace), {"gracePeriodSeconds": 0}, params=chosen)

    async def _clean(self) -> None:
        """Nothing of the tenants is left."""
        end = time.monotonic() + 30
        for namespace in self._tenants:
            while True:
                left = 0
                for place in (tfjobs(namespace), pods(namespace), services(namespace)):
                    with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError):
                        left += len((await self._api.items(place, limit="1"))[0])
                        await self._api.request(
                            "DELETE", place, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
                        )
                if not left or time.monotonic() > end:
                    break

    # The operator

    async def _start_operator(self) -> None:
        mutant = self._mutant
        operator = await asyncio.to_thread(
            operators.start,
            "ours",
            self._kubeconfig,
            self._folder,
            arguments=[f"--config-map={self._config}", "--status-via=direct", "--image=operator:1", "--take-over"],
            environment={"CAMPAIGN_MUTANT": mutant} if mutant else None,
            command=(sys.executable, "-m", "campaign.mutated", "operator") if mutant else (),
        )
        self._operator = operator
        resource.prlimit(operator.pid, resource.RLIMIT_CORE, (0, 0))
        self._read = operator.log.stat().st_size

    async def _restart(self) -> None:
        """A fresh operator: all that went wrong with the last one is forgotten, and its inputs are gone."""
        if self._operator is not None:
            await asyncio.to_thread(self._operator.kill)
        await self._clean()
        self.result.restarts += 1
        await self._start_operator()
        self._broken = None
        self._is_broken.clear()

    # Oracles

    def _found(self, what: str, detail: str) -> Violation:
        return Violation(what, detail, time.monotonic() - self._begun, self.result.seed)

    def _break(self, what: str, detail: str) -> None:
        """Nothing that is seen from here on says anything: the operator does not do its work."""
        if self._broken is None:
            self._broken = self._found(what, detail)
            self._is_broken.set()

    def _record(self, found: Violation, culprit: Input | None = None, otherwise: str = "") -> None:
        family = culprit.family if culprit else otherwise
        key = (found.what, found.detail, culprit.family if culprit else "")
        if key in self.result.violations:
            return
        text = culprit.text() if culprit else ""
        self.result.violations[key] = Violation(found.what, found.detail, found.at_s, found.seed, family, text)
        self._log(f"✗ {found.at_s:6.1f} s  {found.what}: {found.detail}  <- {family}")

    async def _watch_health(self) -> None:
        """The process lives, answers, is small, and tells of no bug in its log."""
        answered, used_s = time.monotonic(), 0.0
        watched: operators.Operator | None = None
        timeout = aiohttp.ClientTimeout(total=1.0)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await asyncio.sleep(0.25)
                operator = self._operator
                if operator is None or self._broken is not None:
                    watched = None
                    continue
                if operator is not watched:
                    watched, answered, used_s = operator, time.monotonic(), _cpu_s(operator.pid)
                try:
                    async with session.get(f"{operator.probe_url}/healthz") as response:
                        await response.read()
                        answered, used_s = time.monotonic(), _cpu_s(operator.pid)
                except (aiohttp.ClientError, TimeoutError, OSError):
                    pass
                if operator is not self._operator or self._broken is not None:
                    continue
                blocked_s = _cpu_s(operator.pid) - used_s
                self.result.blocked_s = max(self.result.blocked_s, blocked_s)
                if not operator.process.alive:
                    self._break("the operator ended", _error(operator.log.read_text(errors="replace")[-20_000:]))
                    continue
                rss = _rss_mib(operator.pid)
                self.result.rss_mib = max(self.result.rss_mib, rss)
                if rss > MAX_RSS_MIB:
                    families = ", ".join(sorted({each.family for each in self._batch}))
                    self._record(self._found("memory", f"more than {MAX_RSS_MIB} MiB"), None, f"one of: {families}")
                if rss > _KILL_MIB:
                    self._break("memory", f"more than {_KILL_MIB} MiB")
                elif blocked_s > MAX_BLOCKED_S:
                    self._break("no answer of /healthz", f"for more than {MAX_BLOCKED_S:.0f} s of CPU")
                elif time.monotonic() - answered > MAX_SILENT_S:
                    self._break("no answer of /healthz", f"for more than {MAX_SILENT_S:.0f} s")
                else:
                    self._look_for_bugs(self._new_log(operator))
                if self._servers.trapped:
                    self._record(self._found("a redirect was followed", "to another port"), None, "a pod's answer")
                if self._servers.cookies:
                    self._record(self._found("a cookie came back", "to who had set it"), None, "a pod's answer")

    def _look_for_bugs(self, log: str) -> None:
        """The operator's word `bug` in its log: of one job it is no harm to others, of all it is."""
        for line in log.splitlines():
            try:
                said = json.loads(line)
            except ValueError:
                continue
            event = str(said.get("event", ""))
            unforeseen = "unexpected error in a pod's report" in event or _UNFORESEEN.match(str(said.get("error", "")))
            if not event.startswith("bug") and not unforeseen:
                continue
            found = self._found(event, _error(said.get("exception", "")) or str(said.get("error", "")))
            culprit = next((each for each in self._batch if each.job == said.get("job")), None)
            if culprit is None and (found.what, found.detail) in {key[:2] for key in self.result.violations}:
                continue
            if culprit is not None or len(self._batch) == 1:
                self._record(found, culprit or self._batch[0])
            else:
                self._break(found.what, found.detail)

    def _new_log(self, operator: operators.Operator) -> str:
        with operator.log.open("rb") as file:
            file.seek(self._read)
            found = file.read(2**22)
        if operator.process.alive:
            whole = found.rfind(b"\n") + 1
            self._read += whole
            found = found[:whole]
        return found.decode(errors="replace")

    async def _judge_silence(self, given: Input, namespace: str) -> None:
        """A job whose spec is good has pods, or the user is told why not."""
        end = time.monotonic() + self._patience * STARTS_WITHIN_S
        with contextlib.suppress(ApiError):
            while self._broken is None:
                if await self._pods_of(namespace, given.job):
                    return
                job = await self._api.get(f"{tfjobs(namespace)}/{given.job}")
                about = f"involvedObject.uid={job['metadata']['uid']}"
                if _has_ended(job) or (await self._api.items(events(namespace), fieldSelector=about))[0]:
                    return
                if time.monotonic() > end:
                    self._record(self._found("silent", "no pod and no event"), given)
                    return
                await asyncio.sleep(0.5)

    async def _judge_end(self, given: Input, namespace: str) -> None:
        """Nothing has come about that ends the job."""
        with contextlib.suppress(ApiError):
            job = await self._api.get(f"{tfjobs(namespace)}/{given.job}")
            if _has_ended(job):
                self._record(self._found("ended", "a job that trains still has Failed or Succeeded"), given)

    async def _judge_recovery(self, given: Input, namespace: str, *, suspend: bool) -> None:
        """Bad -> good recovers, and the end is the same as of a job that was always good. `suspend`: the job is
        suspended meanwhile."""
        path = f"{tfjobs(namespace)}/{given.job}"
        twin = f"{given.job}-twin"
        try:
            job = await self._api.get(path)
        except ApiError:
            return
        if self._broken is not None or _has_ended(job):
            return
        if not await self._make_good(path, given.job, keep=given.keeps, suspend=suspend):
            return
        if suspend:
            end = time.monotonic() + self._patience * STARTS_WITHIN_S
            while await self._holds(namespace, given.job) and time.monotonic() < end and self._broken is None:
                await self._api.request("DELETE", pods(namespace), {"gracePeriodSeconds": 0})  # no kubelet ends them
                await asyncio.sleep(0.2)
        await self._api.create(tfjobs(namespace), good_job(twin))
        if suspend:
            await self._api.merge(path, {"spec": {"runPolicy": {"suspend": False}}})
        else:
            await self._delete_old_pods(namespace, given.job)
        wanted = fresh_size = 3
        end = time.monotonic() + self._patience * 2 * STARTS_WITHIN_S
        shown: list[list[Object]] = [[], []]
        while time.monotonic() < end and self._broken is None:
            shown = [await self._pods_of(namespace, name) for name in (given.job, twin)]
            if not suspend:
                wanted = _kept_size(await self._api.get(path), fresh_size)
            if [len(each) for each in shown] == [wanted, fresh_size]:
                break
            await asyncio.sleep(0.2)
        if self._broken is not None:
            return
        counts = [len(each) for each in shown]
        if counts != [wanted, fresh_size]:
            detail = f"{counts[0]} pods, {counts[1]} of a fresh one, instead of {wanted} and {fresh_size}"
            with contextlib.suppress(ApiError):
                self._log(f"  the job is {json.dumps(await self._api.get(path))[:4000]}")
            self._record(self._found("not mended", detail), given)
            return
        names = (given.job, twin)
        mended, fresh = (_shape(each, name, kept=not suspend) for each, name in zip(shown, names, strict=True))
        both = fresh.keys() if suspend else fresh.keys() & mended.keys()
        different = sorted(name for name in both if mended.get(name) != fresh[name])
        if different:
            detail = f"other pods than of a fresh one: {', '.join(different)}"
            first = different[0]
            self._log(f"  {first} is {mended.get(first)}\n  of a fresh one {fresh[first]}")
            self._record(self._found("not mended", detail), given)
            return
        self.result.recovered += 1
        self.result.recovered_running += not suspend

    async def _holds(self, namespace: str, name: str) -> bool:
        """Whether a suspended job has pods, or nodes that it was given: who is resumed before the next plan keeps them,
        and the CPU that it was lent with them, which changes only in pods that run."""
        annotations = (await self._api.get(f"{tfjobs(namespace)}/{name}"))["metadata"]["annotations"]
        target = Target.parse(annotations.get(f"{PREFIX}target"))
        return (target is not None and bool(target.nodes)) or bool(await self._pods_of(namespace, name))

    async def _make_good(self, path: str, name: str, *, keep: bool, suspend: bool) -> bool:
        """Replace a job's spec and annotations by good ones. `keep`: all but the operator's own annotations, which no
        tenant can change under the admission policy."""
        good = good_job(name)
        good["spec"]["runPolicy"]["suspend"] = suspend
        for _ in range(20):
            with contextlib.suppress(ApiError):
                metadata = (await self._api.get(path))["metadata"]
                notes = metadata.get("annotations", {}) if keep else {}
                own = {key: text for key, text in notes.items() if is_operators(key)}
                metadata = {
                    **good["metadata"],
                    "annotations": good["metadata"]["annotations"] | own,
                    "resourceVersion": metadata["resourceVersion"],
                }
                await self._api.request("PUT", path, {**good, "metadata": metadata})
                return True
            await asyncio.sleep(0.1)
        return False

    async def _delete_old_pods(self, namespace: str, name: str) -> None:
        """A pod keeps what it was made from for life: whoever mends a job that runs deletes its pods. Those that a spec
        makes which the operator had read just before are among them."""
        await asyncio.sleep(_READ_S)
        chosen = {"labelSelector": f"{_JOB}={name}"}
        await self._api.request("DELETE", pods(namespace), {"gracePeriodSeconds": 0}, params=chosen)

    def _judge_latencies(self) -> None:
        slow = self.result.slow
        for name, values, limit in (
            ("start", self.result.starts_s, MAX_START_S),
            ("report", self.result.reported_s, MAX_REPORTED_S),
            ("event", self.result.told_s, MAX_TOLD_S),
        ):
            if not values or _percentile(values, 99) > limit * slow:
                detail = f"p99 of its {name} is more than {limit * slow:.0f} s"
                self._record(self._found("the bystander waits", detail))

    # The bystander

    async def _bystanders_program(self, pod: Object) -> int | None:
        if "elastic" in pod["metadata"]["labels"][_JOB]:
            address = await self._servers.address(
                Answer("split", json.dumps({**REPORT, "prepared": None, "switch": None}))
            )
            status = {"podIP": address, "podIPs": [{"ip": address}]}
            await self._api.merge(f"{pods(self._bystander)}/{pod['metadata']['name']}/status", {"status": status})
            return None
        await asyncio.sleep(0.5)
        return 0

    async def _bystand(self, *, elastic: bool) -> None:
        """Create a job, see it start, delete it, over and over."""
        place = tfjobs(self._bystander)
        for number in count():
            while self._broken is not None:
                await asyncio.sleep(0.2)
            name = f"{'elastic' if elastic else 'plain'}-{number}"
            job = good_job(name, elastic=elastic)
            for replica in job["spec"]["tfReplicaSpecs"].values():
                replica["template"]["spec"] |= {"nodeSelector": _RESERVED, "tolerations": [{"key": "bystander"}]}
            with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError):
                await self._api.create(place, job)
                start_s = await self._within(self._started(name, elastic), MAX_START_S)
                if start_s is not None:
                    self.result.starts_s.append(start_s)
                    seen, limit_s, told_s = (
                        (self._told_step(name), MAX_REPORTED_S, self.result.reported_s)
                        if elastic
                        else (self._told_event(name), MAX_TOLD_S, self.result.told_s)
                    )
                    later_s = await self._within(seen, limit_s)
                    if later_s is not None:
                        told_s.append(later_s)
                await self._api.delete(f"{place}/{name}")
                gone = {"gracePeriodSeconds": 0}
                for kind in (pods, services):  # no garbage collector runs here
                    chosen = {"labelSelector": f"{_JOB}={name}"}
                    await self._api.request("DELETE", kind(self._bystander), gone, params=chosen)
            await asyncio.sleep(0.3)

    async def _within(self, seen: Callable[[], Awaitable[bool]], limit_s: float) -> float | None:
        """Seconds until something is seen, at most 20 or more than its limit; None where the operator is known to be
        broken."""
        began, lives = time.monotonic(), self.result.restarts
        while (waited_s := time.monotonic() - began) < max(_LATE_S, 1.1 * limit_s * self.result.slow):
            if self._broken is not None or self.result.restarts != lives:
                return None
            with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError):
                if await seen():
                    return time.monotonic() - began
            await asyncio.sleep(0.1)
        return waited_s

    def _started(self, name: str, elastic: bool) -> Callable[[], Awaitable[bool]]:
        async def seen() -> bool:
            if len(await self._pods_of(self._bystander, name)) < 3:
                return False
            job = await self._api.get(f"{tfjobs(self._bystander)}/{name}")
            target = json.loads(job["metadata"].get("annotations", {}).get(f"{PREFIX}target", "{}"))
            return not elastic or bool(target.get("replicas"))

        return seen

    def _told_event(self, name: str) -> Callable[[], Awaitable[bool]]:
        async def seen() -> bool:
            about = f"involvedObject.kind=TFJob,involvedObject.name={name}"
            return bool((await self._api.items(events(self._bystander), fieldSelector=about))[0])

        return seen

    def _told_step(self, name: str) -> Callable[[], Awaitable[bool]]:
        async def seen() -> bool:
            job = await self._api.get(f"{tfjobs(self._bystander)}/{name}")
            return bool(job["metadata"].get("annotations", {}).get(f"{PREFIX}step"))

        return seen


# Parts


async def _send_json(api: Api, method: str, path: str, body: Object) -> None:
    """As `Api.request`, for numbers that only Python's json writes; NaN is no JSON, and such a body is not sent."""
    data = json.dumps(body, allow_nan=False)
    kind = "application/json" if method == "POST" else "application/merge-patch+json"
    async with api._slots, api._session.request(method, path, data=data, headers={"Content-Type": kind}) as response:
        content = await response.read()
        if response.status >= 400:
            raise ApiError(response.status, "", content[:300].decode(errors="replace"))


async def _make_node(api: Api, name: str, *, reserved: bool) -> None:
    size = {"cpu": "64", "memory": "256Gi", "pods": "1000"}
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}
    node: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(_RESERVED if reserved else {})}},
        "spec": {"taints": [{"key": "bystander", "effect": "NoSchedule"}]} if reserved else {},
    }
    try:
        await api.create(NODES, node)
    except ApiError as error:
        if error.status != 409:
            raise
        return  # of an earlier world
    await api.merge(f"{NODES}/{name}", {"spec": {"taints": node["spec"].get("taints")}})  # without node.../not-ready
    await api.merge(
        f"{NODES}/{name}/status", {"status": {"allocatable": size, "capacity": size, "conditions": [ready]}}
    )


def _has_ended(job: Object) -> bool:
    conditions = job.get("status", {}).get("conditions", ())
    return any(each["type"] in ("Failed", "Succeeded") and each["status"] == "True" for each in conditions)


def _kept_size(job: Object, otherwise: int) -> int:
    """How many pods a job has that was not stopped: it keeps the size that it started with where the good annotations
    allow that (1 to 3 workers), for it changes only once its programs report, which those of tenants do not."""
    text = job["metadata"].get("annotations", {}).get(f"{PREFIX}state", "{}")
    size = json.loads(text).get("replicas") or {}
    return size["PS"] + size["Worker"] if size.get("PS") == 1 and 1 <= size.get("Worker", 0) <= 3 else otherwise


def _shape(found: Iterable[Object], job: str, *, kept: bool) -> dict[str, str]:
    """What the operator decided about a job's pods, by replica, without names and nodes. `kept`: without what a job
    that was not stopped keeps from its start: the CPU that it is lent, its size, which TF_CONFIG tells, and whether it
    was given nodes."""
    shapes = {}
    for pod in found:
        spec = pod["spec"]
        for container in spec["containers"]:  # the uid of its own job
            container["env"] = [each for each in container.get("env", ()) if each["name"] != "ELASTIC_TFJOB_JOB"]
        if kept:
            for container in spec["containers"]:
                container["env"] = [each for each in container["env"] if each["name"] != "TF_CONFIG"]
                for amounts in container.get("resources", {}).values():
                    amounts.pop("cpu", None)
        affinity = spec.get("affinity", {}).get("nodeAffinity")
        shape = {
            "containers": spec["containers"],
            "inits": spec.get("initContainers"),
            "pinned": bool(affinity and not kept),
        }
        name = pod["metadata"]["name"].removeprefix(f"{job}-")
        shapes[name] = json.dumps(shape, sort_keys=True).replace(job, "JOB")
    return shapes


def _rss_mib(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _cpu_s(pid: int) -> float:
    """CPU seconds that a process has used."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


_FRAME = re.compile(r'File "[^"]*elastic_tfjob/([^"]+\.py)", line (\d+), in (\w+)')
"""A place of ours in a traceback."""
_ERROR = re.compile(r"^[ |+-]*(\w*(?:Error|Exception|Exit)\b.{0,100})", re.MULTILINE)
_UNFORESEEN = re.compile(
    r"(Type|Attribute|Lookup|Key|Index|Arithmetic|Overflow|ZeroDivision|Recursion|Assertion)Error\b"
)
"""Begins what the operator says of an error that no part of it raises on purpose."""


def _error(trace: str) -> str:
    """The exception that a traceback ends with, and the last place of ours in it."""
    frames = _FRAME.findall(trace)
    errors = [error for error in _ERROR.findall(trace) if "ExceptionGroup" not in error]
    place = " at {} line {}, {}".format(*frames[-1]) if frames else ""
    return f"{errors[-1] if errors else trace[-200:]}{place}"


def _percentile(values: list[float], percent: int) -> float:
    if not values:
        return float("nan")
    if len(values) == 1:
        return round(values[0], 2)
    return round(statistics.quantiles(values, n=100, method="inclusive")[percent - 1], 2)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, help="how long (60); after which no seeded defect is begun (none)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", choices=PROFILES, help="of the operator (elastic); of one with a defect: kips")
    parser.add_argument("--known", type=int, default=8, help="batch size of what has done harm before; 0: without it")
    parser.add_argument("--mutant", action="append", default=[], help="a seeded defect to be caught; may be repeated")
    parser.add_argument("--limit", type=float, default=90, help="seconds to catch one")
    arguments = parser.parse_args()
    if arguments.mutant:
        if arguments.profile not in (None, "kips"):
            parser.error("--profile: an operator with a seeded defect has kips")
        uncaught, waiting, names = 0, list(arguments.mutant), tuple(arguments.mutant)
        budget_s = inf if arguments.seconds is None else arguments.seconds
        with tempfile.TemporaryDirectory() as folder:
            for name, first in hunt(Path(folder), names, limit_s=arguments.limit, budget_s=budget_s, log=_say):
                uncaught += first is None
                waiting.remove(name)
                told = {"mutant": name, "tried": True, "violation": first and f"{first.what}: {first.detail}"}
                print(json.dumps(told), flush=True)
        for name in waiting:
            print(json.dumps({"mutant": name, "tried": False}))
        raise SystemExit(bool(uncaught))
    budget_s = 60.0 if arguments.seconds is None else arguments.seconds
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(
            Path(folder),
            budget_s=budget_s,
            seed=arguments.seed,
            profile=arguments.profile or "elastic",
            known=arguments.known,
            log=_say,
        )
    print(json.dumps(found.figures(), indent=1))
    raise SystemExit(bool(found.violations))


if __name__ == "__main__":
    main()
