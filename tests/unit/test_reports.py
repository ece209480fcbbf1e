"""Reports: parsing what a pod says, and asking many pods without asking too much."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from elastic_tfjob.api.configuration import StatusPolling
from elastic_tfjob.controller.observed import Key, Pod
from elastic_tfjob.controller.reports import Report, Reports, ask_directly

from .build import pod

FULL: dict[str, Any] = {
    "at": 1000.5,
    "generation": 2,
    "launcher": True,
    "modes": ["overlap", "spare"],
    "prepared": {"generation": 3, "mode": "overlap", "state": "ready", "why": ""},
    "switch": None,
    "step": 1200,
    "total_steps": 2000,
    "steps_per_s": 101.2,
    "loss": 0.3,
    "first_step_at": 990.0,
    "last_step_at": 1000.4,
    "downtime_s": 0.61,
    "lost_steps": 0,
    "checkpoint": {"step": 1100, "at": 999.0, "seconds": 0.1, "bytes": 4096, "path": "/ckpt/1100"},
    "cpu": {"usage_s": 12.5, "throttled_s": 0.5, "limit_cores": 0.5, "use_cores": 0.31},
    "memory": {"used_bytes": 2**28, "limit_bytes": None},
    "something": "newer",
}


def test_reads_all_of_the_contract() -> None:
    found = Report.parse(json.dumps(FULL), 7.0)
    assert found.prepared is not None
    assert (found.prepared.generation, found.prepared.state) == (3, "ready")
    assert found.checkpoint is not None
    assert (found.checkpoint.bytes, found.cpu.use_cores, found.memory.limit_bytes) == (4096, 0.31, None)
    assert (found.step, found.modes, found.received_at) == (1200, ("overlap", "spare"), 7.0)


def test_what_is_missing_or_not_finite_is_unknown() -> None:
    found = Report.parse('{"loss": NaN, "step": 1e999, "total_steps": 1' + "0" * 400 + "}")
    assert (found.loss, found.step, found.total_steps, found.generation, found.launcher) == (None,) * 4 + (False,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        '{"step": "x"}',
        '{"step": -1}',
        '{"step": 1.5}',
        '{"launcher": 1}',
        '{"modes": "overlap"}',
        '{"prepared": {"generation": 1, "state": "odd"}}',
        '{"switch": {"state": "saving"}}',
        '{"cpu": 3}',
        "[" * 99999,
    ],
)
def test_nonsense_is_no_report(text: str) -> None:
    with pytest.raises(ValueError):
        Report.parse(text)


@pytest.mark.parametrize(("change", "news"), [({"step": 1201, "loss": 0.2}, False), ({"generation": 3}, True)])
def test_progress_is_no_news(change: dict[str, Any], news: bool) -> None:
    before, after = Report.parse(json.dumps(FULL)), Report.parse(json.dumps({**FULL, **change}))
    assert (before.news != after.news) is news


class World:
    """Pods whose exporters are one real HTTP server on this machine."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.questions: list[tuple[str, float]] = []
        """Each with the pod's name and when it came, on the event loop's clock."""
        self.news: list[Key] = []
        self.pods: list[Pod] = []
        self.polling = StatusPolling(interval_s=0.2, max_requests_per_s=1000)

    async def status(self, request: web.Request) -> web.Response:
        name = request.headers["Pod"]
        self.questions.append((name, asyncio.get_running_loop().time()))
        answer = self.answers[name]
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
async def world() -> AsyncIterator[tuple[World, Reports]]:
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
                session = aiohttp.ClientSession(headers={"Pod": asked.name})
                sessions[asked.name] = await stack.enter_async_context(session)
            return await ask_directly(sessions[asked.name], port)(asked)

        yield Reports(ask, world.of_job, world.news.append, lambda: world.polling)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):  # a busy machine takes long, and is no failure
        while not what():
            await asyncio.sleep(0.01)


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


async def test_nonsense_keeps_the_last_report_and_is_asked_for_less_often(world: tuple[World, Reports]) -> None:
    seen, reports = world
    seen.polling = StatusPolling(interval_s=0.05, max_requests_per_s=1000)
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
    assert 0.099 <= min(seen.gaps_s(chief.name)) < 0.15
    assert 0.499 <= min(seen.gaps_s(worker.name)) < 0.6
    reports.follow(KEY, False)
    await asyncio.sleep(0.6)
    seen.questions.clear()
    await asyncio.sleep(0.6)
    assert seen.asked == []


async def test_many_pods_share_the_rate(world: tuple[World, Reports]) -> None:
    seen, reports = world
    seen.polling = StatusPolling(interval_s=0.01, max_requests_per_s=20)
    for index in range(30):
        seen.add("worker", index)
    begin = asyncio.get_running_loop().time()
    reports.pods_changed(KEY)
    await asyncio.sleep(2.0)
    took_s = asyncio.get_running_loop().time() - begin
    assert len(seen.asked) <= 20 * took_s + 20 + 2  # the rate, and one second's burst
    assert len(set(seen.asked)) == 30


async def test_cpu_use_is_a_mean_over_the_window(world: tuple[World, Reports]) -> None:
    seen, reports = world
    seen.polling = StatusPolling(interval_s=0.05, max_requests_per_s=1000)
    chief = seen.add("chief", 0)
    reports.pods_changed(KEY)
    await until(lambda: chief.name in reports.of_job(KEY))
    assert reports.of_job(KEY)[chief.name].cpu.use_cores is None  # too early to say
    cpu = {**FULL["cpu"], "usage_s": 12.5 + 5.0}
    seen.answers[chief.name] = json.dumps({**FULL, "generation": 0, "at": FULL["at"] + 10, "cpu": cpu})
    await until(lambda: reports.of_job(KEY)[chief.name].at > FULL["at"])
    await asyncio.sleep(0.2)  # asked again, it says the same
    assert reports.of_job(KEY)[chief.name].cpu.use_cores == pytest.approx(0.5)
    older = {**cpu, "at": FULL["at"] + 20, "usage_s": 12.5 + 8.0}
    seen.answers[chief.name] = json.dumps({**FULL, "generation": 0, "at": FULL["at"] + 23, "cpu": older})
    await until(lambda: reports.of_job(KEY)[chief.name].at > FULL["at"] + 20)
    assert reports.of_job(KEY)[chief.name].cpu.use_cores == pytest.approx(0.4)  # by when it was looked at, not asked
    other = {**cpu, "usage_s": 30.0, "limit_cores": 2.0}
    seen.answers[chief.name] = json.dumps({**FULL, "generation": 0, "at": FULL["at"] + 30, "cpu": other})
    await until(lambda: reports.of_job(KEY)[chief.name].cpu.limit_cores == 2.0)
    assert reports.of_job(KEY)[chief.name].cpu.use_cores is None  # another limit: the mean begins anew
