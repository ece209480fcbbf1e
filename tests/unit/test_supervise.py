"""Background tasks: what one raises is counted and logged, and it begins anew; liveness tells who is stuck."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from elastic_tfjob.controller.kube import supervise
from elastic_tfjob.controller.kube.supervise import Supervisor, excerpt, trace, unending, watch_loop


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_BACKOFF_S", 0.01)
    monkeypatch.setattr(supervise, "_MAX_BACKOFF_S", 0.04)


async def kept(run: Callable[[], Awaitable[object]], until: Callable[[], bool], name: str = "task") -> Supervisor:
    """A supervisor that has kept a task until then, and ended it by cancelling."""
    supervisor = Supervisor()
    task = asyncio.create_task(supervisor.keep(name, run))
    async with asyncio.timeout(60):
        while not until():
            assert not task.done(), task
            await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    return supervisor


async def in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(60))
        raise RecursionError("maximum recursion depth exceeded")


async def cancelled_by_nobody() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    "problem", [ValueError("x"), RecursionError(), MemoryError(), in_a_group, cancelled_by_nobody, None]
)
@pytest.mark.usefixtures("quick")
async def test_a_task_is_restarted_whatever_ends_it(problem: object) -> None:
    begun: list[float] = []

    async def run() -> None:
        begun.append(time.monotonic())
        if isinstance(problem, Exception):
            raise problem
        if callable(problem):
            await problem()

    def failures() -> float:
        return REGISTRY.get_sample_value("elastic_tfjob_task_failures_total", {"task": "odd"}) or 0.0

    before = failures()
    await kept(run, lambda: len(begun) >= 4, "odd")
    assert failures() - before >= 3
    assert begun[3] - begun[2] >= 0.02  # the third pause: 0.04 s, of which jitter leaves at least half


async def test_a_cancellation_that_a_failure_hides_ends_it() -> None:
    """As a TaskGroup does that fails and is cancelled at once: it raises the failure alone."""

    async def run() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError from None

    task = asyncio.create_task(Supervisor().keep("hides", run))
    await asyncio.sleep(0.01)
    task.cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


@pytest.mark.usefixtures("quick")
async def test_a_cancellation_that_a_group_left_counted_is_not_ours() -> None:
    """As a TaskGroup leaves one whose member fails while it waits for the others, before Python 3.13."""
    begun: list[float] = []

    async def member_fails() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(60))
            group.create_task(fails_soon())

    async def fails_soon() -> None:
        await asyncio.sleep(0.001)
        raise ValueError

    async def run() -> None:
        begun.append(time.monotonic())
        if len(begun) % 2:
            await member_fails()
        await cancelled_by_nobody()

    await kept(run, lambda: len(begun) >= 4)


@pytest.mark.usefixtures("quick")
async def test_a_task_that_was_well_is_begun_soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_BACKOFF_S", 0.05)
    monkeypatch.setattr(supervise, "_MAX_BACKOFF_S", 60.0)
    monkeypatch.setattr(supervise, "_WELL_S", 0.1)
    begun: list[float] = []

    async def run() -> None:
        begun.append(time.monotonic())
        await asyncio.sleep(0.15)
        raise ValueError

    with capture_logs() as said:
        await kept(run, lambda: len(begun) >= 4)
    assert max(each["again_in_s"] for each in said) <= 0.05


@pytest.mark.usefixtures("quick")
async def test_only_a_task_that_fails_for_long_makes_the_process_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_STUCK_S", 0.2)
    begun = time.monotonic()

    async def fails() -> None:
        raise ValueError

    supervisor = Supervisor()
    task = asyncio.create_task(supervisor.keep("bad", fails))
    good = asyncio.create_task(supervisor.keep("good", asyncio.Event().wait))
    await asyncio.sleep(0.05)
    assert supervisor.stuck == () or time.monotonic() - begun > 0.2
    async with asyncio.timeout(60):
        while not supervisor.stuck:
            await asyncio.sleep(0.01)
    assert supervisor.stuck == ("bad",)
    assert time.monotonic() - begun >= 0.2
    for each in (task, good):
        each.cancel()
    await asyncio.gather(task, good, return_exceptions=True)


@pytest.mark.usefixtures("quick")
async def test_a_task_that_is_well_again_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_STUCK_S", 0.0)
    monkeypatch.setattr(supervise, "_WELL_S", 0.1)
    runs: list[tuple[str, ...]] = []

    async def fails_once() -> None:
        runs.append(supervisor.stuck)
        if len(runs) == 1:
            raise ValueError
        await asyncio.Event().wait()

    supervisor = Supervisor()
    task = asyncio.create_task(supervisor.keep("odd", fails_once))
    async with asyncio.timeout(60):
        while len(runs) < 2 or supervisor.stuck:
            await asyncio.sleep(0.005)
    assert runs == [(), ("odd",)]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("ends", [cancelled_by_nobody, asyncio.sleep])
@pytest.mark.usefixtures("quick")
async def test_a_group_does_not_go_on_without_a_task_that_should_never_end(ends: Callable[..., object]) -> None:
    """A TaskGroup takes no notice of one that returns or is cancelled by something that it waited for."""
    begun: list[None] = []

    async def child() -> None:
        begun.append(None)
        await ends(0) if ends is asyncio.sleep else await ends()  # type: ignore[misc]

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(unending(child))
            group.create_task(unending(asyncio.Event().wait))

    with capture_logs() as said:
        await kept(run, lambda: len(begun) >= 3)
    assert said[0]["error"] in ("RuntimeError: it returned", "RuntimeError: something it waited for was cancelled")
    if ends is cancelled_by_nobody:
        assert said[0]["trace"][-1].endswith("cancelled_by_nobody")


class Unspeakable(Exception):
    """Its words are an error themselves."""

    def __str__(self) -> str:
        raise RecursionError


def nested() -> Exception:
    try:
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("the cause")])])
    except ExceptionGroup as error:
        return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("a\n  b"), "ValueError: a b"),
        (KeyError(), "KeyError"),
        (Unspeakable(), "Unspeakable: (without words)"),
        (nested(), "ValueError: the cause"),
        (ValueError("x" * 10**6), "ValueError: " + "x" * 300),
    ],
)
def test_an_error_is_said_in_one_short_line(error: Exception, said: str) -> None:
    assert excerpt(error) == said


def test_a_trace_says_where_and_is_bounded() -> None:
    def deeper() -> None:
        deeper()

    with pytest.raises(RecursionError) as raised:
        deeper()
    frames = trace(raised.value)
    assert len(frames) == 20
    assert frames[-1].endswith("deeper")


async def test_the_loop_is_watched() -> None:
    def slow() -> float:
        """Times that the loop was more than 50 ms late."""
        sample = REGISTRY.get_sample_value
        return sample("elastic_tfjob_loop_lag_seconds_count") - sample(  # type: ignore[operator]
            "elastic_tfjob_loop_lag_seconds_bucket", {"le": "0.05"}
        )

    before = slow()
    task = asyncio.create_task(watch_loop())
    await asyncio.sleep(0.01)
    time.sleep(0.2)  # noqa: ASYNC251
    await asyncio.sleep(0.01)
    assert slow() > before
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
