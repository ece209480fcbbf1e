"""Asking many pods: not too much, nobody at another's cost, and nothing of what they answer is trusted."""

import asyncio
import contextlib
import gzip
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from elastic_tfjob.controller.kube import reports as reports_module
from elastic_tfjob.controller.kube import supervise
from elastic_tfjob.controller.kube.queue import fair_share
from elastic_tfjob.controller.kube.reports import Reports, ask_directly, open_session
from elastic_tfjob.controller.model.job import Key
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.settings import StatusPolling
from harness.background import until

from .build import pod

FULL: dict[str, Any] = {
    "at": 1000.5,
    "generation": 2,
    "step": 1200,
    "cpu": {"usage_s": 12.5, "throttled_s": 0.5, "limit_cores": 0.5, "use_cores": 0.31},
}


class World:
    """Pods whose exporters are one real HTTP server on this machine."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.questions: list[tuple[str, float]] = []
        """Each with the pod's name and when it came, on the event loop's clock."""
        self.news: list[Key] = []
        self.pods: list[Pod] = []
        self.polling = StatusPolling(interval_s=0.2, max_requests_per_s=1000)

    async def status(self, request: web.Request) -> web.StreamResponse:
        name = request.headers["Pod"]
        self.questions.append((name, asyncio.get_running_loop().time()))
        answer = self.answers[name]
        if callable(answer):
            return cast("web.StreamResponse", await answer(request))
        return web.Response(status=500) if answer is None else web.Response(text=answer)

    @property
    def asked(self) -> list[str]:
        """The pods' names, question by question."""
        return [name for name, _ in self.questions]

    def gaps_s(self, name: str) -> list[float]:
        """Seconds from each question to a pod to the next."""
        return [after - before for before, after in pairwise(at for asked, at in self.questions if asked == name)]

    def of_job(self, _: Key) -> tuple[Pod, ...]:
        return tuple(self.pods)

    def add(self, kind: str, index: int, **fields: Any) -> Pod:
        made = replace(pod(kind, index), ip="127.0.0.1", exporter=True, **fields)
        self.pods.append(made)
        self.answers[made.name] = json.dumps({**FULL, "generation": 0})
        return made


KEY = ("ns", "j")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than an operator waits."""
    monkeypatch.setattr(reports_module, "_TIMEOUT_S", 60.0)


@pytest.fixture
async def world(patient: None) -> AsyncIterator[tuple[World, Reports]]:
    world = World()
    app = web.Application()
    app.add_routes([web.get("/status", world.status)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with reports_of(world, port) as reports:
        task = asyncio.create_task(reports.run())
        yield world, reports
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await runner.cleanup()


@contextlib.asynccontextmanager
async def reports_of(world: World, port: int) -> AsyncIterator[Reports]:
    async with contextlib.AsyncExitStack() as stack:
        sessions: dict[str, aiohttp.ClientSession] = {}

        async def ask(asked: Pod) -> bytes:
            if asked.name not in sessions:  # the server tells pods apart by a header
                session = open_session(headers={"Pod": asked.name})
                sessions[asked.name] = await stack.enter_async_context(session)
            return await ask_directly(sessions[asked.name], port)(asked)

        yield Reports(ask, world.of_job, world.news.append, lambda: world.polling)


async def test_asks_running_pods_and_tells_news_once(world: tuple[World, Reports]) -> None:
    seen, reports = world
    chief, other = seen.add("chief", 0), seen.add("worker", 0, phase="Pending")
    reports.pods_changed(KEY)
    await until(lambda: seen.asked.count(chief.name) >= 3)
    assert set(reports.of_job(KEY)) == {chief.name}
    assert seen.news == [KEY]
    assert other.name not in seen.asked
    seen.answers[chief.name] = json.dumps({**FULL, "generation": 1})
    await until(lambda: len(seen.news) == 2)
    assert reports.of_job(KEY)[chief.name].generation == 1


async def test_a_pod_of_the_same_name_starts_with_no_report(world: tuple[World, Reports]) -> None:
    seen, reports = world
    chief = seen.add("chief", 0)
    reports.pods_changed(KEY)
    await until(lambda: chief.name in reports.of_job(KEY))
    seen.answers[chief.name] = None
    seen.pods = [replace(chief, uid="another")]
    reports.pods_changed(KEY)
    assert reports.of_job(KEY) == {}
    seen.pods = []
    reports.pods_changed(KEY)
    asked = len(seen.asked)
    await asyncio.sleep(0.6)
    assert len(seen.asked) <= asked + 1


async def test_an_invalid_answer_keeps_the_last_report_and_lowers_the_rate(world: tuple[World, Reports]) -> None:
    seen, reports = world
    seen.polling = StatusPolling(interval_s=0.1, max_requests_per_s=1000)
    chief = seen.add("chief", 0)
    reports.pods_changed(KEY)
    await until(lambda: chief.name in reports.of_job(KEY))
    seen.answers[chief.name] = "{"
    await asyncio.sleep(0.1)
    before = len(seen.asked)
    await asyncio.sleep(1.0)
    assert len(seen.asked) - before <= 6  # every 0.05 s it would be 20
    assert reports.of_job(KEY)[chief.name].generation == 0


async def test_a_rescaling_job_is_followed_closely(world: tuple[World, Reports]) -> None:
    seen, reports = world
    seen.polling = StatusPolling(interval_s=60, max_requests_per_s=1000)
    chief, worker = seen.add("chief", 0), seen.add("worker", 0)
    reports.pods_changed(KEY)
    await until(lambda: len(seen.asked) == 2)
    reports.follow(KEY)
    seen.questions.clear()
    # The shortest of some: a busy machine makes a gap longer, never shorter, since it begins when one is answered.
    await until(lambda: len(seen.gaps_s(worker.name)) >= 3 and len(seen.gaps_s(chief.name)) >= 10)
    assert min(seen.gaps_s(chief.name)) >= 0.099
    assert min(seen.gaps_s(worker.name)) >= 0.499
    sources = reports._sources[KEY]
    assert {name: reports._interval_s(KEY, source) for name, source in sources.items()} == {
        chief.name: 0.1,
        worker.name: 0.5,
    }
    reports.follow(KEY, False)
    now = asyncio.get_running_loop().time
    await until(lambda: all(not each.asked and each.due_s and each.due_s > now() + 30 for each in sources.values()))
    seen.questions.clear()
    await asyncio.sleep(0.6)
    assert seen.asked == []


async def test_a_pod_whose_program_has_ended_is_asked_once_more(world: tuple[World, Reports]) -> None:
    seen, reports = world
    seen.polling = StatusPolling(interval_s=60, max_requests_per_s=1000)
    chief = seen.add("chief", 0)
    reports.pods_changed(KEY)
    source = reports._sources[KEY][chief.name]
    await until(lambda: bool(source.report) and not source.asked)
    seen.answers[chief.name] = json.dumps({**FULL, "step": 1300})
    seen.pods[0] = replace(chief, phase="Succeeded", lingers=True)
    for _ in range(3):
        reports.pods_changed(KEY)
    await until(lambda: [each.step for each in reports.of_job(KEY).values()] == [1300])
    assert len(seen.asked) == 2
    seen.pods[0] = replace(chief, phase="Succeeded")
    reports.pods_changed(KEY)
    assert source.due_s is None


async def test_many_pods_share_the_rate(world: tuple[World, Reports]) -> None:
    seen, reports = world
    seen.polling = StatusPolling(interval_s=0.1, max_requests_per_s=20)
    for index in range(30):
        seen.add("worker", index)
    begin = asyncio.get_running_loop().time()
    reports.pods_changed(KEY)
    await asyncio.sleep(2.0)
    await until(lambda: len(set(seen.asked)) == 30)
    took_s = asyncio.get_running_loop().time() - begin
    assert len(seen.asked) <= 20 * took_s + 20 + 2  # the rate, and one second's burst
    assert len(set(seen.asked)) == 30


async def test_cpu_use_is_a_mean_over_the_window(world: tuple[World, Reports]) -> None:
    seen, reports = world
    seen.polling = StatusPolling(interval_s=0.1, max_requests_per_s=1000)
    chief = seen.add("chief", 0)
    reports.pods_changed(KEY)
    await until(lambda: chief.name in reports.of_job(KEY))
    assert reports.of_job(KEY)[chief.name].cpu.use_cores is None  # too early to say
    cpu = {**FULL["cpu"], "usage_s": 12.5 + 5.0}
    later = {"generation": 0, "at": FULL["at"] + 10, "step": FULL["step"] + 40}
    seen.answers[chief.name] = json.dumps({**FULL, **later, "cpu": cpu})
    await until(lambda: reports.of_job(KEY)[chief.name].at > FULL["at"])
    await asyncio.sleep(0.2)  # asked again, it says the same
    assert reports.of_job(KEY)[chief.name].cpu.use_cores == pytest.approx(0.5)
    assert reports.of_job(KEY)[chief.name].mean_steps_per_s == pytest.approx(4.0)
    assert reports.of_job(KEY)[chief.name].mean_cores == pytest.approx(0.5)  # in the same time
    older = {**cpu, "at": FULL["at"] + 20, "usage_s": 12.5 + 8.0}
    seen.answers[chief.name] = json.dumps({**FULL, "generation": 0, "at": FULL["at"] + 23, "cpu": older})
    await until(lambda: reports.of_job(KEY)[chief.name].at > FULL["at"] + 20)
    assert reports.of_job(KEY)[chief.name].cpu.use_cores == pytest.approx(0.4)  # by when it was looked at, not asked
    other = {**cpu, "usage_s": 30.0, "limit_cores": 2.0}
    seen.answers[chief.name] = json.dumps({**FULL, "generation": 0, "at": FULL["at"] + 30, "cpu": other})
    await until(lambda: reports.of_job(KEY)[chief.name].cpu.limit_cores == 2.0)
    assert reports.of_job(KEY)[chief.name].cpu.use_cores is None  # another limit: the mean begins anew
    assert reports.of_job(KEY)[chief.name].mean_cores is None


async def test_cpu_used_for_the_start_does_not_count_for_steps(world: tuple[World, Reports]) -> None:
    """They do not know of steps: their means begin anew with the chief's first one."""
    seen, reports = world
    seen.polling = StatusPolling(interval_s=0.05, max_requests_per_s=1000)
    chief, worker = seen.add("chief", 0), seen.add("worker", 0)
    none = {**FULL, "generation": 0, "step": None, "first_step_at": None}

    def says(name: str, at: float, usage_s: float, **more: object) -> None:
        cpu = {**FULL["cpu"], "usage_s": usage_s}
        seen.answers[name] = json.dumps({**none, "at": FULL["at"] + at, "cpu": cpu, **more})

    async def known(name: str, at: float) -> None:
        await until(lambda: name in reports.of_job(KEY) and reports.of_job(KEY)[name].at >= FULL["at"] + at)

    for at in (0.0, 20.0):
        says(worker.name, at, at)
        says(chief.name, at, at)
        reports.pods_changed(KEY)
        await known(worker.name, at)
    assert reports.of_job(KEY)[worker.name].mean_cores == pytest.approx(1.0)
    says(chief.name, 21.0, 20.5, first_step_at=FULL["at"] + 21, step=1)
    await known(chief.name, 21.0)
    await until(lambda: reports.of_job(KEY)[worker.name].mean_cores is None)
    says(worker.name, 41.0, 22.0)
    await known(worker.name, 41.0)
    assert reports.of_job(KEY)[worker.name].mean_cores == pytest.approx(2.0 / 21.0)
    over = {"first_step_at": FULL["at"] + 21, "last_step_at": FULL["at"] + 27, "step": 11}
    says(chief.name, 42.0, 21.5, **over)  # so does what its first steps cost
    await known(chief.name, 42.0)
    await until(lambda: reports.of_job(KEY)[worker.name].mean_cores is None)


async def test_the_cost_of_a_step_is_measured_over_minutes(world: tuple[World, Reports]) -> None:
    """A pod that ran at half of its speed for the last minute, and as it does for three before."""
    seen, reports = world
    seen.polling = StatusPolling(interval_s=0.1, max_requests_per_s=1000)
    chief = seen.add("chief", 0)

    def seen_at(name: str) -> float:
        return reports.of_job(KEY)[name].at if name in reports.of_job(KEY) else 0.0

    for at, usage_s, step in ((0.0, 0.0, 0), (180.0, 90.0, 720), (240.0, 105.0, 840)):
        said = {"generation": 0, "at": FULL["at"] + at, "step": FULL["step"] + step}
        cpu = {**FULL["cpu"], "usage_s": 12.5 + usage_s}
        seen.answers[chief.name] = json.dumps({**FULL, **said, "cpu": cpu})
        reports.pods_changed(KEY)
        await until(lambda: seen_at(chief.name) == FULL["at"] + at)  # noqa: B023  waited for before the next
    found = reports.of_job(KEY)[chief.name]
    assert found.cpu.use_cores == pytest.approx(0.25)
    assert found.mean_cores is not None
    assert found.mean_steps_per_s is not None
    assert 0.35 < found.mean_cores < 0.45
    assert found.mean_cores / found.mean_steps_per_s == pytest.approx(0.125)


# One pod alone

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def asked(handler: Handler, host: str = "127.0.0.1") -> tuple[bytes | Exception, list[str]]:
    """What asking a pod that answers like this brings, and the paths that its server saw."""
    seen: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    async with open_session() as session:
        try:
            found: bytes | Exception = await ask_directly(session, runner.addresses[0][1])(
                replace(pod("worker", 0), ip=host)
            )
        except Exception as error:
            found = error
        kept = list(session.cookie_jar)
    await runner.cleanup()
    assert kept == []
    return found, seen


@pytest.mark.usefixtures("patient")
async def test_a_redirect_is_a_failure() -> None:
    async def away(_: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "/elsewhere", "Set-Cookie": "a=b"}, text="{}")

    found, seen = await asked(away)
    assert isinstance(found, aiohttp.ClientError)
    assert seen == ["/status"]


def in_parts(*parts: bytes, pause_s: float = 0.05, headers: dict[str, str] | None = None) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for part in parts:
                await response.write(part)
                await asyncio.sleep(pause_s)
        return response

    return handle


@pytest.mark.usefixtures("patient")
async def test_a_body_is_read_whole() -> None:
    assert (await asked(in_parts(b'{"step"', b": 7}")))[0] == b'{"step": 7}'
    assert (await asked(in_parts(b"x" * 64 * 1024)))[0] == b"x" * 64 * 1024


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "handler",
    [
        in_parts(b"x" * (64 * 1024 + 1)),
        in_parts(*[b"x" * 64 * 1024] * 100, pause_s=0.001),
        in_parts(gzip.compress(b" " * 10**6 + b"{}"), headers={"Content-Encoding": "gzip"}),
    ],
)
async def test_too_much_is_a_failure(handler: Handler) -> None:
    assert isinstance((await asked(handler))[0], aiohttp.ClientPayloadError)


async def test_an_endless_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports_module, "_TIMEOUT_S", 0.3)
    # Else it would be read to its end, after 100 s.
    assert isinstance((await asked(in_parts(*[b" "] * 1000, pause_s=0.1)))[0], TimeoutError)


@pytest.mark.usefixtures("patient")
async def test_pods_of_ipv6_are_asked() -> None:
    with contextlib.closing(socket.socket(socket.AF_INET6)) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    assert (await asked(in_parts(b"{}"), "::1"))[0] == b"{}"


@pytest.mark.parametrize("ip", ["", "localhost", "127.0.0.1:80/x?", "[::1]", "::1%x]:80#", "metadata.google.internal"])
async def test_only_addresses_are_asked(ip: str) -> None:
    async with open_session() as session:
        with pytest.raises(ValueError):
            await ask_directly(session, 1)(replace(pod("worker", 0), ip=ip))


# Many pods, of which some are nobody's friends


@contextlib.asynccontextmanager
async def polled(ask: Callable[[Pod], Awaitable[bytes]], pods: list[Pod]) -> AsyncIterator[Reports]:
    """Reports of these pods, which are asked like this."""

    def of_job(key: Key) -> tuple[Pod, ...]:
        return tuple(each for each in pods if each.key == key)

    settings = StatusPolling(interval_s=0.1, max_requests_per_s=1000)
    reports = Reports(ask, of_job, lambda _: None, lambda: settings)
    for key in dict.fromkeys(each.key for each in pods):
        reports.pods_changed(key)
    task = asyncio.create_task(reports.run())
    yield reports
    assert not task.done(), task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def pods_of(namespace: str, job: str, count: int) -> list[Pod]:
    return [
        replace(
            pod("worker", index), namespace=namespace, job=job, uid=f"{namespace}-{job}-{index}", exporter=True, ip="::"
        )
        for index in range(count)
    ]


@pytest.mark.parametrize(
    "error",
    [RecursionError(), UnicodeError("x"), MemoryError(), KeyError("x"), AssertionError(), asyncio.CancelledError()],
)
async def test_an_error_of_one_question_counts_for_that_pod_only(error: BaseException) -> None:
    bad, good = pods_of("bad", "j", reports_module._IN_FLIGHT), pods_of("good", "j", 1)
    questions: list[str] = []

    async def ask(of: Pod) -> bytes:
        questions.append(of.namespace)
        if of.namespace == "bad":
            raise error
        return b"{}"

    async with polled(ask, bad + good) as reports:
        await until(lambda: questions.count("good") >= 5 and questions.count("bad") >= 2)
        assert reports.of_job(("good", "j"))
        assert not reports.of_job(("bad", "j"))


async def test_silent_pods_delay_no_other_namespace_and_no_other_job() -> None:
    silent = pods_of("bad", "silent", 300)
    others = [*pods_of("bad", "speaks", 1), *pods_of("good", "j", 1)]
    in_flight = 0
    most: dict[str, int] = {}

    async def ask(of: Pod) -> bytes:
        nonlocal in_flight
        if of.job != "silent":
            return b"{}"
        in_flight += 1
        most["silent"] = max(most.get("silent", 0), in_flight)
        try:
            await asyncio.Event().wait()
            raise TimeoutError
        finally:
            in_flight -= 1

    async with polled(ask, silent + others) as reports:
        await until(lambda: most.get("silent", 0) >= 16)
        await until(lambda: bool(reports.of_job(("good", "j")) and reports.of_job(("bad", "speaks"))))
        await asyncio.sleep(0.2)
        assert most["silent"] == 16  # of 64 slots, and for ever


async def test_many_jobs_of_silent_pods_leave_slots_to_other_namespaces() -> None:
    silent = [each for number in range(20) for each in pods_of("bad", f"j{number}", 20)]
    good = pods_of("good", "j", 3)
    questions: list[str] = []

    async def ask(of: Pod) -> bytes:
        questions.append(of.namespace)
        if of.namespace == "bad":
            await asyncio.Event().wait()
        return b"{}"

    async with polled(ask, silent + good):
        await until(lambda: questions.count("good") >= 20 and questions.count("bad") >= 32)
        assert questions.count("bad") == 32


async def test_many_pods_of_one_namespace_make_no_other_namespace_wait() -> None:
    many, few = pods_of("evil", "j", 5000), pods_of("ns", "j", 20)
    found = {("evil", "j"): many, ("ns", "j"): few}
    settings = StatusPolling(interval_s=5.0, max_requests_per_s=50.0)
    reports = Reports(cast("Any", None), lambda key: tuple(found[key]), lambda _: None, lambda: settings)
    for key, pods in found.items():
        reports.pods_changed(key)
        assert reports._interval_s(key, reports_module._Source(pods[0])) == (100.0 if key[0] == "evil" else 5.0)
    assert reports._interval_s(("evil", "j"), reports_module._Source(many[0])) == pytest.approx(5000 / (50 - 20 / 5))
    found["evil", "j"] = many[:100]
    reports.pods_changed(("evil", "j"))
    assert reports._interval_s(("evil", "j"), reports_module._Source(many[0])) == 5.0


@pytest.mark.parametrize(
    ("wanted", "total", "share"),
    [((), 5, inf), ((1, 2), 3, inf), ((1, 9), 4, 3), ((9, 9), 4, 2), ((3, 1, 9, 9), 12, 4)],
)
def test_a_share_that_is_not_wanted_goes_to_the_others(wanted: tuple[float, ...], total: float, share: float) -> None:
    assert fair_share(wanted, total) == share


async def test_pods_that_never_answered_are_asked_ever_less_often() -> None:
    reports = Reports(cast("Any", None), lambda _: (), lambda _: None, StatusPolling)
    (found,) = pods_of("ns", "j", 1)
    source = reports_module._Source(found)
    source.failures, source.silent = 9, True
    reports._followed.add(("ns", "j"))
    assert reports._interval_s(("ns", "j"), source) == 10.0
    source.take(Report.parse("{}"))  # it did once: a rescale is waiting for it to come back
    assert reports._interval_s(("ns", "j"), source) == 2.0


async def test_polling_ends_when_it_is_cancelled_while_news_arrive() -> None:
    """Else a leader that has to stop would wait for it for ever."""

    async def ask(_: Pod) -> bytes:
        return b"{}"

    pods = pods_of("ns", "j", 1)
    reports = Reports(ask, lambda _: tuple(pods), lambda _: None, lambda: StatusPolling(interval_s=60))
    reports.pods_changed(("ns", "j"))
    task = asyncio.create_task(reports.run())
    await until(lambda: bool(reports.of_job(("ns", "j"))))
    await asyncio.sleep(0.05)  # the next question is due in a minute
    reports._wake.set()
    task.cancel()
    _, left = await asyncio.wait([task], timeout=60)
    assert not left


async def test_questions_begin_anew_after_a_failure() -> None:
    """What a run that failed was about to ask is asked by the next."""
    questions: list[str] = []

    async def ask(of: Pod) -> bytes:
        questions.append(of.name)
        return b"{}"

    pods = pods_of("ns", "j", 3)
    reports = Reports(ask, lambda _: tuple(pods), lambda _: None, lambda: StatusPolling(interval_s=0.1))
    reports.pods_changed(("ns", "j"))
    for _ in range(2):
        questions.clear()
        task = asyncio.create_task(reports.run())
        await until(lambda: set(questions) == {each.name for each in pods})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_progress_is_told_of_the_pod_that_leads(world: tuple[World, Reports]) -> None:
    """And of no other: a job's figures are the chief's. Whoever answers is among those that are new."""
    seen, reports = world
    progress: list[Key] = []
    reports._progressed = progress.append
    chief, worker = seen.add("chief", 0), seen.add("worker", 0)
    reports.pods_changed(KEY)
    await until(lambda: len(reports.of_job(KEY)) == 2)
    assert reports.renewed() == {KEY}
    seen.answers[worker.name] = json.dumps({**FULL, "generation": 0, "step": FULL["step"] + 1})
    await until(lambda: reports.of_job(KEY)[worker.name].step == FULL["step"] + 1)
    assert progress == []
    seen.answers[chief.name] = json.dumps({**FULL, "generation": 0, "step": FULL["step"] + 2})
    await until(lambda: progress == [KEY])
    assert reports.renewed() == {KEY}
    seen.pods = []
    reports.pods_changed(KEY)
    assert reports.renewed() == set()


async def test_askers_that_end_are_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is cancelled by something it waits for ends the run, which begins anew with all of them."""
    monkeypatch.setattr(supervise, "_BACKOFF_S", 0.01)
    questions: list[str] = []
    ends = 2 * reports_module._IN_FLIGHT

    async def ask(of: Pod) -> bytes:
        questions.append(of.name)
        return b"{}"

    pods = pods_of("ns", "j", 1)
    reports = Reports(ask, lambda _: tuple(pods), lambda _: None, lambda: StatusPolling(interval_s=0.1))
    limit = reports._limit

    async def cancelled_at_first() -> None:
        nonlocal ends
        if ends:
            ends -= 1
            raise asyncio.CancelledError
        await limit()

    monkeypatch.setattr(reports, "_limit", cancelled_at_first)
    monkeypatch.setattr(supervise, "_MAX_BACKOFF_S", 0.02)
    reports.pods_changed(("ns", "j"))
    task = asyncio.create_task(supervise.Supervisor().keep("reports", reports.run))
    await until(lambda: bool(questions))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_reports_are_read_in_another_thread_while_a_pod_comes() -> None:
    """As the query API does for nodes."""
    reports = Reports(cast("Any", None), lambda _: (), lambda _: None, StatusPolling)
    sources: dict[str, Any] = {}

    class Comes:
        @property
        def report(self) -> None:
            sources["another"] = self

    sources["one"] = Comes()
    reports._sources["ns", "j"] = sources
    assert reports.of_job(("ns", "j")) == {}
    assert len(sources) == 2


async def test_a_pod_that_ends_while_it_is_asked_is_asked_once_more(world: tuple[World, Reports]) -> None:
    """For its last step: the interval until the next question is longer than its exporter lives."""
    seen, reports = world
    seen.polling = StatusPolling(interval_s=3600.0, max_requests_per_s=1000)
    chief = seen.add("chief", 0)
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> web.StreamResponse:
        asked.set()
        await goes_on.wait()
        return web.Response(text=json.dumps({**FULL, "step": 1200}))

    seen.answers[chief.name] = slow
    reports.pods_changed(KEY)
    await asked.wait()
    seen.pods[0] = replace(chief, phase="Succeeded", lingers=True)
    reports.pods_changed(KEY)
    await asyncio.sleep(0.1)  # its turn has come, and it is being asked
    seen.answers[chief.name] = json.dumps({**FULL, "step": 1300})
    goes_on.set()
    await until(lambda: [each.step for each in reports.of_job(KEY).values()] == [1300])
