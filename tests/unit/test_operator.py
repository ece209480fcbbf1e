"""The process: no bug, no job and no pause of the machine ends it or stops the others."""

import asyncio
import contextlib
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from elastic_tfjob.cli import main
from elastic_tfjob.controller import operator as operator_module
from elastic_tfjob.controller.job.decision import Create, Decision, Event, Observed, ReconcileSettings
from elastic_tfjob.controller.job.pods import replica_labels
from elastic_tfjob.controller.kube import leader, queue, reconciler, startup, supervise
from elastic_tfjob.controller.kube.configuration import LiveConfiguration
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, NotFound, Unavailable
from elastic_tfjob.controller.kube.executor import Executor
from elastic_tfjob.controller.kube.informer import Caches, Informer
from elastic_tfjob.controller.kube.leader import LeaderElection
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.pod import EXPORTER, Pod
from elastic_tfjob.controller.model.settings import Configuration, parse_configuration
from elastic_tfjob.controller.model.state import Next, StoredState
from elastic_tfjob.controller.operator import EXIT_LOST_LEADERSHIP, EXIT_OK, Operator, Options
from harness.background import until
from harness.controlplane import free_port
from harness.hostile_text import ALIASES, DEEP_LIST, MERGE_KEYS, NO_YAML, named

from .build import Recorder


class Server:
    """An API server that holds some TFJobs, in memory, and a lease; it takes events and knows no fence."""

    def __init__(self, *names: str) -> None:
        self.jobs = [
            {
                "metadata": {"namespace": name, "name": "j", "uid": f"{name}-uid", "resourceVersion": "1"},
                "spec": {"tfReplicaSpecs": {}},
            }
            for name in names
        ]
        self.events: list[dict[str, Any]] = []
        self.lease: dict[str, Any] | None = None
        self.refused = False

    def fenced(self, left_s: Callable[[], float]) -> "Server":
        return self

    def abandon(self) -> None: ...

    async def get(self, path: str, **_: str) -> dict[str, Any]:
        return {"items": self.jobs if path.endswith("/tfjobs") else [], "metadata": {"resourceVersion": "5"}}

    async def watch(self, path: str, **_: str) -> AsyncIterator[dict[str, Any]]:
        await asyncio.Event().wait()
        yield {}

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.events.append(body)
        return body

    async def once(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if self.refused:
            raise ApiError(method, 403, "Forbidden", "")
        if method != "GET":
            assert body is not None
            self.lease = {**body, "metadata": {"resourceVersion": str(time.monotonic_ns())}}
        if self.lease is None:
            raise NotFound(method, 404, "NotFound", "")
        return self.lease


@contextlib.asynccontextmanager
async def running(server: Server, **options: Any) -> AsyncIterator[tuple[Operator, "asyncio.Task[int]", asyncio.Event]]:
    operator = Operator(
        server,  # type: ignore[arg-type]
        Options(**{"metrics_address": "0", "health_address": "0", "image": "i", **options}),
    )
    stop = asyncio.Event()
    task = asyncio.create_task(operator.run(stop))
    try:
        yield operator, task, stop
    finally:
        stop.set()
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 60)


@pytest.mark.parametrize(
    "error",
    [RecursionError("deep"), ValueError("x" * 10**6), ExceptionGroup("g", [KeyError("k")]), asyncio.CancelledError()],
)
async def test_a_job_that_raises_is_set_aside_alone(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """With a Warning that says so in a few words, and ever later; other jobs are reconciled."""
    seen: list[str] = []

    def reconcile(observed: Any, _: Any) -> Decision:
        seen.append(observed.job.namespace)
        if observed.job.namespace == "bad":
            raise error
        return Decision(events=(Event("Normal", "Fine", ""),))

    monkeypatch.setattr(reconciler, "reconcile", reconcile)
    server = Server("bad", "good")
    async with running(server) as (_, task, _):
        await until(lambda: seen.count("bad") >= 3 and len(server.events) == 2)
        assert not task.done()
    found = {each["metadata"]["namespace"]: each for each in server.events}
    assert (found["bad"]["type"], found["bad"]["reason"]) == ("Warning", "ReconcileFailed")
    assert len(found["bad"]["message"]) < 450
    assert "Traceback" not in found["bad"]["message"]
    assert found["good"]["reason"] == "Fine"


async def test_a_bug_in_any_background_task_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that is kept, whichever there are, fails before it has done anything, then in the midst of it, and goes on
    at the third try; and the operator does what it is for. No other is started, but those whose end is the process's.
    """
    monkeypatch.setattr(supervise, "_BACKOFF_S", 0.01)
    seen: list[str] = []

    def reconcile(observed: Any, _: Any) -> Decision:
        seen.append(observed.job.namespace)
        return Decision(events=(Event("Normal", "Fine", ""),))

    monkeypatch.setattr(reconciler, "reconcile", reconcile)
    tries: Counter[str] = Counter()
    keep, started = supervise.Supervisor.keep, set[str]()

    def failing(supervisor: supervise.Supervisor, name: str, run: Callable[[], Awaitable[object]]) -> Any:
        assert name not in tries, "its failures would be another's"
        tries[name] = 0

        async def wrapped() -> None:
            tries[name] += 1
            if tries[name] == 1:
                raise RecursionError(name)
            if tries[name] == 2:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await run()
                raise KeyError(name)
            await run()

        return keep(supervisor, name, wrapped)

    def create_task(run: Any, **options: Any) -> "asyncio.Task[Any]":
        started.add(run.__qualname__)
        return asyncio.create_task(run, **options)

    monkeypatch.setattr(supervise.Supervisor, "keep", failing)
    monkeypatch.setattr(operator_module, "asyncio", SimpleNamespace(**vars(asyncio) | {"create_task": create_task}))
    server = Server("ns")
    all_there_is = {
        "config_map": "kubeflow/c",
        "gang_scheduler": "volcano",
        "jobsets": True,
        "query_address": f"127.0.0.1:{free_port()}",
        "threads": 1,
    }
    with capture_logs() as logs:
        async with running(server, **all_there_is) as (operator, task, _):
            await until(lambda: operator._leads and set(tries.values()) == {3} and server.events)
            assert not task.done()
            assert operator._alive() == ""
        assert task.result() == EXIT_OK
    assert set(tries.values()) == {3}, "one that cannot begin anew is tried once more"
    told = Counter(each["task"] for each in logs if each["event"] == "bug: a task failed")
    assert told == dict.fromkeys(tries, 2)
    assert {"tfjobs", "podgroups", "image", "query", "run-jobsets", "scheduler"} <= tries.keys(), "not all was started"
    assert started == {"Supervisor.keep", "Operator._lead", "Event.wait", "KeyQueue.idle"}
    # Once or more: a task that comes back may ask for another look at every job.
    assert set(seen) == {"ns"}


@pytest.mark.parametrize(
    "error", [Unavailable("GET", 503, "", ""), ApiError("GET", 403, "Forbidden", ""), KeyError("spec")]
)
async def test_the_operators_own_image_is_asked_for_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Jobs do not wait for it. Those that were looked at without it are looked at again."""
    monkeypatch.setattr(startup, "_IMAGE_S", 0.01)
    monkeypatch.setenv("POD_NAME", "operator-0")
    monkeypatch.setenv("POD_NAMESPACE", "kubeflow")
    images: list[str] = []

    def reconcile(_: Any, settings: Any) -> Decision:
        images.append(settings.image)
        return Decision()

    monkeypatch.setattr(reconciler, "reconcile", reconcile)
    server = Server("ns")
    get, asked = server.get, 0

    async def fails_at_first(path: str, **parameters: str) -> dict[str, Any]:
        nonlocal asked
        if path != "/api/v1/namespaces/kubeflow/pods/operator-0":
            return await get(path, **parameters)
        asked += 1
        if asked < 3 or not images:
            raise error
        return {"spec": {"containers": [{"name": "other", "image": "o"}, {"name": "operator", "image": "own:1"}]}}

    monkeypatch.setattr(server, "get", fails_at_first)
    async with running(server, image="") as (_, task, _):
        await until(lambda: images[-1:] == ["own:1"])
        assert not task.done()
    assert images[0] == ""


async def test_without_the_right_to_read_budgets_it_acts_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was upgraded by its image alone. Once it may, all jobs are looked at again."""
    known: list[bool] = []

    def reconcile(observed: Observed, _: ReconcileSettings) -> Decision:
        known.append(observed.budget_known)
        return Decision()

    monkeypatch.setattr(reconciler, "reconcile", reconcile)

    class WithoutRight(Server):
        may = False

        async def get(self, path: str, **options: str) -> dict[str, Any]:
            if path.endswith("/poddisruptionbudgets") and not self.may:
                raise ApiError("GET", 403, "Forbidden", "")
            return await super().get(path, **options)

    server = WithoutRight("ns")
    async with running(server) as (operator, _, _):
        await until(lambda: known)
        assert not any(known)
        assert operator._ready() == ""
        server.may = True
        await until(lambda: known[-1])


async def test_leadership_that_is_lost_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ever. On a busy machine a renewal may take longer than it should; the lease must hold until it is refused."""
    monkeypatch.setattr(leader, "RETRY_S", 0.02)
    monkeypatch.setattr(leader, "RENEW_S", 5.0)
    server = Server("ns")
    async with running(server, leader_elect=True) as (operator, task, _):
        await until(operator._holds)
        server.refused = True
        assert await asyncio.wait_for(task, 60) == EXIT_LOST_LEADERSHIP


def passes_seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Namespaces of the jobs that are looked at from now on; nothing is decided."""
    seen: list[str] = []

    def reconcile(observed: Observed, _: ReconcileSettings) -> Decision:
        seen.append(observed.job.namespace)
        return Decision()

    monkeypatch.setattr(reconciler, "reconcile", reconcile)
    return seen


async def test_a_job_whose_turn_comes_in_doubt_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause the lease is not sure for a moment. If it is renewed, no job may have been forgotten."""
    monkeypatch.setattr(queue, "NOT_SURE_S", 0.05)
    seen = passes_seen(monkeypatch)
    server = Server("ns")
    async with running(server) as (operator, _, _):
        await until(lambda: seen)
        monkeypatch.setattr(operator._reconciler, "_holds", lambda: False)
        before = len(seen)
        operator._queue.add(("ns", "j"))
        await asyncio.sleep(0.2)
        assert len(seen) == before
        monkeypatch.setattr(operator._reconciler, "_holds", lambda: True)
        await until(lambda: len(seen) > before)


async def test_a_standby_forgets_deleted_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """And looks at all that there is when it leads."""
    monkeypatch.setattr(leader, "RETRY_S", 0.02)
    seen = passes_seen(monkeypatch)
    server = Server("a", "b")
    server.lease = {"spec": {"holderIdentity": "other"}, "metadata": {"resourceVersion": "1"}}
    async with running(server, leader_elect=True) as (operator, _, _):
        await until(lambda: len(operator._caches.jobs) == 2)
        running_pod = {
            "metadata": {
                "namespace": "c",
                "name": "j-worker-0",
                "uid": "u",
                "resourceVersion": "7",
                "labels": replica_labels("j", "Worker", 0),
            },
            "spec": {"initContainers": [{"name": EXPORTER}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        }
        operator._caches.pods.seen(running_pod)
        operator._caches.pods._remove("u", 8)
        await asyncio.sleep(0.2)
        assert (len(operator._queue), operator._scheduler._dirty, operator._reports._later) == (0, set(), [])
        assert seen == []
        server.lease["spec"]["holderIdentity"] = ""
        await until(lambda: set(seen) == {"a", "b"})


async def test_the_last_events_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of jobs that were looked at before the operator was asked to stop."""
    monkeypatch.setattr(reconciler, "reconcile", lambda *_: Decision(events=(Event("Normal", "Fine", ""),)))
    server = Server("a")
    post, asked = server.post, asyncio.Event()

    async def slow(path: str, body: dict[str, Any]) -> dict[str, Any]:
        asked.set()
        await asyncio.sleep(0.1)
        return await post(path, body)

    monkeypatch.setattr(server, "post", slow)
    async with running(server) as (_, _, _):
        await asked.wait()
    assert {each["reason"] for each in server.events} == {"Fine"}


@pytest.mark.parametrize("forward", [(60.0, 0.0), (0.0, 60.0)])
async def test_a_pause_is_seen_on_either_clock(monkeypatch: pytest.MonkeyPatch, forward: tuple[float, float]) -> None:
    """A suspended machine's boot-time clock went on; of one paused from outside only the wall clock is set right."""
    server = Server()
    election = LeaderElection(server, namespace="n", name="l", identity="me")  # type: ignore[arg-type]
    assert not election.holds()
    await election.acquire()
    assert election.holds()
    now = leader._clocks()
    monkeypatch.setattr(leader, "_clocks", lambda: (now[0] + forward[0], now[1] + forward[1]))
    assert not election.holds()


@pytest.mark.parametrize(("age_s", "left_s"), [(0.0, 13.0), (4.0, 9.0), (9.9, 3.1), (10.1, 0.0), (20.0, 0.0)])
@pytest.mark.parametrize("clock", [0, 1])
async def test_a_write_ends_before_another_candidate_may_lead(
    monkeypatch: pytest.MonkeyPatch, age_s: float, left_s: float, clock: int
) -> None:
    election = LeaderElection(Server(), namespace="n", name="l", identity="me")  # type: ignore[arg-type]
    monkeypatch.setattr(leader, "_clocks", lambda: (100.0, 1000.0))
    await election.acquire()
    now = [100.0, 1000.0]
    now[clock] += age_s
    monkeypatch.setattr(leader, "_clocks", lambda: tuple(now))
    assert election.left_s() == pytest.approx(left_s)


async def test_a_lease_with_invalid_fields_is_not_acquired() -> None:
    server = Server()
    server.lease = {"spec": {"holderIdentity": 5, "leaseDurationSeconds": "x"}, "metadata": {"resourceVersion": "1"}}
    election = LeaderElection(server, namespace="n", name="l", identity="me")  # type: ignore[arg-type]
    assert await election._try() is False


async def answer(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_servers_listen_on_both_families_and_say_who_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    health, metrics = free_port(), free_port()
    hosts = ["127.0.0.1"]
    with contextlib.closing(socket.socket(socket.AF_INET6)) as probe, contextlib.suppress(OSError):
        probe.bind(("::1", 0))
        hosts.append("[::1]")
    options = {"health_address": f":{health}", "metrics_address": f"{hosts[-1]}:{metrics}"}
    async with running(Server(), **options) as (operator, _, _):
        await until(lambda: all(informer.synced.is_set() for informer in operator._informers))
        for host in hosts:
            assert await answer(f"http://{host}:{health}/healthz") == (200, "ok")
            assert await answer(f"http://{host}:{health}/readyz") == (200, "ok")
        status, text = await answer(f"http://{hosts[-1]}:{metrics}/metrics")
        assert status == 200
        assert "elastic_tfjob_loop_lag_seconds" in text
        operator._supervisor._failing["pods"] = time.monotonic() - supervise._STUCK_S
        status, text = await answer(f"http://127.0.0.1:{health}/healthz")
        assert (status, "pods" in text) == (503, True)


async def failing(monkeypatch: pytest.MonkeyPatch, operator: Operator, state: str = "") -> list[float]:
    """Times of the passes of a job whose every pass stores a state and then fails."""
    passes: list[float] = []

    async def carry_out(job: TFJob, _: Decision) -> None:
        passes.append(time.monotonic())
        if state:
            metadata: dict[str, Any] = {"namespace": job.namespace, "name": job.name, "uid": job.uid}
            metadata |= {"resourceVersion": f"{len(passes)}00", "annotations": {STATE_ANNOTATION: state}}
            operator._caches.jobs.written({"metadata": metadata, "spec": {"tfReplicaSpecs": {}}})
        raise ApiError("POST", 403, "Forbidden", "exceeded quota")

    monkeypatch.setattr(operator._executor, "carry_out", carry_out)
    return passes


async def test_a_rescale_is_followed_although_a_write_after_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The phase is stored: from now on its pods are asked often."""
    coming = Next(1, 1, "overlap", {"Worker": 2}, {"Worker": 1})
    state = StoredState("Preparing", replicas={"Worker": 1}, next=coming, since="2026-01-02T03:04:05Z")
    server = Server("ns")
    operator = Operator(server, Options(metrics_address="0", health_address="0", image="i"))  # type: ignore[arg-type]
    passes = await failing(monkeypatch, operator, state.to_json())
    stop = asyncio.Event()
    task = asyncio.create_task(operator.run(stop))
    await until(lambda: len(passes) >= 2)
    assert operator._reports._followed == {("ns", "j")}
    stop.set()
    await task


async def test_reports_of_pods_do_not_shorten_the_backoff_of_a_failing_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant's pod may have news ten times a second."""
    server = Server("ns")
    operator = Operator(server, Options(metrics_address="0", health_address="0", image="i"))  # type: ignore[arg-type]
    passes = await failing(monkeypatch, operator)
    stop = asyncio.Event()
    task = asyncio.create_task(operator.run(stop))
    await until(lambda: len(passes) >= 3)
    before = len(passes)
    for _ in range(20):
        operator._reported(("ns", "j"))
        await asyncio.sleep(0.01)
    await until(lambda: len(passes) > before)
    assert passes[before] - passes[before - 1] >= 0.4
    stop.set()
    await task


@pytest.mark.parametrize(
    "text",
    [*NO_YAML, ALIASES, MERGE_KEYS, "[" * 1200, DEEP_LIST, "status: {max_requests_per_s: x}", "a: &a [*a, *a]"],
    ids=named,
)
def test_a_configuration_that_cannot_be_read_is_refused(text: str) -> None:
    told = Recorder()
    live = LiveConfiguration(Server(), "ns/name", told, lambda _: None)  # type: ignore[arg-type]
    assert live.informer is not None
    metadata = {"namespace": "ns", "name": "name", "uid": "u", "resourceVersion": "1"}
    live.informer.seen({"metadata": metadata, "data": {"config.yaml": text}})
    (event,) = told.events
    assert event.reason == "InvalidConfiguration"
    assert event.message.endswith("Still in use: profile fixed.")
    assert len(event.message) <= 1024


@pytest.mark.parametrize(
    ("profile", "parameter", "value", "said"),
    [
        ("srtf", "oracle", "true", "only a simulation knows the true values"),
        ("optimus", "repack", "true", "only a simulation places a resized job again"),
        ("optimus", "sample_points", "4", "a live cluster learns it"),
        ("kips", "lend", "offered", "borrowing needs pools"),
    ],
)
def test_a_parameter_only_for_simulations_is_refused(profile: str, parameter: str, value: str, said: str) -> None:
    """Also of a profile that is not chosen: it would be refused when it is."""
    told = Recorder()
    taken: list[Configuration] = []
    live = LiveConfiguration(Server(), "ns/name", told, taken.append)  # type: ignore[arg-type]
    assert live.informer is not None
    metadata = {"namespace": "ns", "name": "name", "uid": "u", "resourceVersion": "1"}
    text = f"profile: fifo\nprofiles: {{{profile}: {{{parameter}: {value}}}}}"
    live.informer.seen({"metadata": metadata, "data": {"config.yaml": text}})
    (event,) = told.events
    assert f"profiles.{profile}.{parameter}: " in event.message
    assert said in event.message
    assert taken == []
    metadata["resourceVersion"] = "2"
    live.informer.seen({"metadata": metadata, "data": {"config.yaml": f"profile: {profile}"}})
    assert [each.profile for each in taken] == [profile]


def test_defaults_that_no_live_cluster_can_follow_are_told_once() -> None:
    live = LiveConfiguration(Server(), "ns/name", Recorder(), lambda _: None)  # type: ignore[arg-type]
    assert live.informer is not None
    metadata = {"namespace": "ns", "name": "name", "uid": "u"}
    told = []
    texts = ("profile: srtf", "{profile: srtf, scope: all}", "{profile: srtf, profiles: {srtf: {oracle: false}}}")
    for version, text in enumerate(texts):
        with capture_logs() as entries:
            seen = {**metadata, "resourceVersion": str(version)}
            live.informer.seen({"metadata": seen, "data": {"config.yaml": text}})
        told.append([each for each in entries if each["event"] == "default ignored"])
    (first,), *later = told
    assert (first["profile"], first["parameter"]) == ("srtf", "oracle")
    assert "only a simulation knows the true values" in first["why"]
    assert later == [[], []]


def test_a_profile_that_borrows_is_refused_where_no_pool_lends() -> None:
    with pytest.raises(ValueError, match="profile aryl borrows nodes, but no pool is configured"):
        parse_configuration("profile: aryl")
    for text in ("profiles: {aryl: {lend: none}}", "pools: {inference: {namespaces: [serving]}}"):
        assert parse_configuration(f"profile: aryl\n{text}").profile == "aryl"


async def test_a_quota_that_changed_meanwhile_is_not_taken_for_a_name_that_is_taken() -> None:
    """Kubernetes answers both with 409; only for the second is there an object to look at."""

    class Busy(Server):
        async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            raise Conflict("POST", 409, "Conflict", "Operation cannot be fulfilled on resourcequotas: modified")

        async def get(self, path: str, **_: str) -> dict[str, Any]:
            raise NotFound("GET", 404, "NotFound", "")

    pods: Any = Informer(Server(), "/api/v1/pods", Pod.parse, lambda _: None)  # type: ignore[arg-type]
    executor = Executor(Busy(), Caches(pods, pods, pods), Recorder())  # type: ignore[arg-type]
    job = TFJob("ns", "j", "u", 1, False, {}, b"{}", b"{}")
    with pytest.raises(Conflict):
        await executor.carry_out(job, Decision(actions=(Create("Pod", "j-worker-0", dict),)))


async def test_missing_or_invalid_priority_classes_are_ignored() -> None:
    """A list without items is null in JSON; a class whose value is no number is left out alone."""
    answers: list[Any] = [
        None,
        [{"metadata": {"name": "none"}, "value": None}, {"metadata": {"name": "high"}, "value": 7}],
        [{"metadata": {"name": name}, "value": value, "globalDefault": True} for name, value in (("a", 9), ("b", 8))],
    ]
    operator = Operator(Server("ns"), Options(image="i"))  # type: ignore[arg-type]

    async def get(path: str) -> dict[str, Any]:
        return {"items": answers.pop(0)}

    operator._priorities._api.get = get  # type: ignore[method-assign, assignment]
    for expected in ({}, {"high": 7}, {"a": 9, "b": 8, "": 8}):
        task = asyncio.create_task(operator._priorities.follow())
        await asyncio.sleep(0.01)
        assert not task.done()
        assert operator._priorities.values == expected
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize(
    ("flag", "value", "allowed"),
    [
        ("--kube-api-qps", "nan", "-1 to 100000"),
        ("--kube-api-qps", "inf", "-1<=x<=100000"),
        ("--kube-api-burst", "0", "1<=x<=100000"),
        ("--controller-threads", "0", "1<=x<=1000"),
        ("--controller-threads", "1000000000", "1<=x<=1000"),
    ],
)
def test_flags_that_no_operator_could_work_with_are_refused(flag: str, value: str, allowed: str) -> None:
    told = CliRunner().invoke(main, ["operator", flag, value])
    assert told.exit_code == 2
    assert flag in told.output
    assert allowed in told.output
