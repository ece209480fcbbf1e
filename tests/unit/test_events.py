"""Events: bounded, fair between namespaces, and safe from whatever words they are given."""

import asyncio
import time
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any, cast

import pytest

from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube import events, supervise
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import Unavailable
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.model.job import TFJob
from harness.hostile_text import LONE_SURROGATE, MARKUP, NUMBERS, TEXTS, named


class Server:
    """Takes events; those of the namespace `slow` for ever, those of `broken` not at all."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.patched: list[tuple[str, Any]] = []
        self.held = 0

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        namespace = body["metadata"]["namespace"]
        if namespace == "slow":
            self.held += 1
            await asyncio.Event().wait()
        if namespace == "broken":
            raise Unavailable("POST", 500, "InternalError", "")
        if namespace == "odd":
            raise TypeError("nobody thought of this")
        if namespace == "cancelled":
            raise asyncio.CancelledError
        self.posted.append(body)
        return body

    async def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.patched.append((path, body))
        return body

    @property
    def said(self) -> Counter[str]:
        """How many events came, by namespace."""
        return Counter(body["metadata"]["namespace"] for body in self.posted)


def job(namespace: str, name: str = "j") -> TFJob:
    return TFJob(namespace, name, f"{namespace}-{name}", 1, False, {}, b"{}", b"{}")


@pytest.fixture
async def recorder() -> Any:
    server = Server()
    made = EventRecorder(cast("ApiClient", server), lambda: False)
    task = asyncio.create_task(made.run())
    yield server, made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def event(message: Any, reason: Any = "Reason", kind: Any = "Normal") -> Event:
    return Event(kind, reason, message)


@pytest.mark.parametrize(
    "odd",
    [5, None, {"a": 1}, ["x"] * 9999, b"bytes", f"{LONE_SURROGATE} alone", "x" * 10**6, *TEXTS, MARKUP, *NUMBERS],
    ids=named,
)
async def test_any_words_are_written_and_bounded(recorder: tuple[Server, EventRecorder], odd: Any) -> None:
    server, made = recorder
    made.record(job("ns"), event(odd, odd, odd))
    made.record(job("ns"), event("after"))
    await made.drain(60)
    first, second = server.posted
    assert second["message"] == "after"
    assert isinstance(first["message"], str)
    assert len(first["message"]) <= 1024
    assert len(first["reason"]) <= 128
    first["message"].encode()


async def test_an_event_that_cannot_be_written_costs_only_itself(recorder: tuple[Server, EventRecorder]) -> None:
    server, made = recorder
    for number in range(20):
        made.record(job("odd"), event(str(number)))
        made.record(job("broken"), event(str(number)))
    made.record(job("ns"), event("after"))
    await made.drain(60)
    assert server.said == {"ns": 1}


async def test_an_event_whose_writing_is_cancelled_costs_only_itself(recorder: tuple[Server, EventRecorder]) -> None:
    """By a connection that is given up, say. There are more of them than writers."""
    server, made = recorder
    for number in range(2 * events._WRITERS):
        made.record(job("cancelled"), event(f"{number}"))
    await made.drain(60)
    made.record(job("ns"), event("after"))
    await made.drain(60)
    assert server.said == {"ns": 1}


async def test_writers_that_end_are_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends all the same ends all, which are then begun anew: else the others would write on without it."""
    monkeypatch.setattr(supervise, "_BACKOFF_S", 0.01)
    server = Server()
    made = EventRecorder(cast("ApiClient", server), lambda: False)
    take, taken = made._queue.take, 0

    async def cancelled_once() -> Any:
        nonlocal taken
        taken += 1
        if taken == 1:
            raise asyncio.CancelledError
        return await take()

    monkeypatch.setattr(made._queue, "take", cancelled_once)
    task = asyncio.create_task(supervise.Supervisor().keep("events", made.run))
    async with asyncio.timeout(60):
        while taken < 1 + events._WRITERS or len(made._queue._takers) < events._WRITERS:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_repetitions_are_counted(recorder: tuple[Server, EventRecorder], monkeypatch: pytest.MonkeyPatch) -> None:
    server, made = recorder
    for _ in range(3):
        made.record(job("ns"), event("same"))
    made.record(replace(job("ns"), version=2), event("same"))
    made.record(job("ns", "k"), event("same"))
    await made.drain(60)
    assert server.said == {"ns": 2}
    monkeypatch.setattr(events, "_REPEAT_S", 0.0)
    made.record(job("ns"), event("same"))
    await made.drain(60)
    ((path, body),) = server.patched
    assert body["count"] == 5
    assert path.endswith(server.posted[0]["metadata"]["name"])


async def test_ten_thousand_events_of_one_namespace_delay_no_other(recorder: tuple[Server, EventRecorder]) -> None:
    server, made = recorder
    for number in range(10_000):
        made.record(job("many", str(number % 7)), event(f"unknown annotation {number}"))
    began = time.monotonic()
    await asyncio.sleep(0.1)
    before, took_s = len(server.posted), time.monotonic() - began
    for number in range(5):
        made.record(job("few"), event(str(number)))
    async with asyncio.timeout(60):
        while server.said["few"] < 5:
            await asyncio.sleep(0.01)
    order = [body["metadata"]["namespace"] for body in server.posted]
    last = max(at for at, namespace in enumerate(order) if namespace == "few")
    # A turn for each of the others, and what was on its way.
    assert order[before:last].count("many") <= 5 + events._WRITERS
    assert before <= events._PER_S + events._PER_S * took_s + 1  # a second's burst, and the rate


async def test_a_slow_webhook_of_one_namespace_leaves_writers_for_others(
    recorder: tuple[Server, EventRecorder],
) -> None:
    server, made = recorder
    for number in range(100):
        made.record(job("slow"), event(str(number)))
    await asyncio.sleep(0.2)
    made.record(job("ns"), event("after"))
    async with asyncio.timeout(60):
        while not server.said["ns"]:
            await asyncio.sleep(0.01)
    assert 0 < server.held <= 4


async def test_the_queue_and_the_memory_of_events_are_bounded() -> None:
    """Messages are cut before they are kept, jobs are not kept at all, and a namespace has half of the room at most."""
    made = EventRecorder(cast("ApiClient", Server()), lambda: False)
    tracemalloc.start()
    try:
        for number in range(1500):
            large = replace(job("many"), annotations={"a": f"{number}" + "x" * 100_000}, version=number)
            made.record(large, event(f"{number}" + "y" * 100_000))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 1500 * 4096  # and not 200 KB each


async def test_one_namespace_does_not_fill_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_QUEUE_BYTES", 100 * 1024)
    server = Server()
    made = EventRecorder(cast("ApiClient", server), lambda: False)
    for number in range(1000):
        made.record(job("many"), event(str(number)))
    made.record(job("few"), event("heard"))
    monkeypatch.setattr(made, "_limiter", asyncio.Semaphore(10**6))
    monkeypatch.setattr(made._limiter, "acquire", lambda amount: asyncio.sleep(0))
    task = asyncio.create_task(made.run())
    await made.drain(60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert server.said["few"] == 1
    assert 50 < server.said["many"] < 100  # of 768 bytes and a few each, in 50 KiB


async def test_a_job_with_many_events_evicts_only_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_REMEMBERED", 100)
    server = Server()
    made = EventRecorder(cast("ApiClient", server), lambda: False)
    made.record(job("few"), event("same"))
    for number in range(500):
        made.record(job("many"), event(str(number)))
    made.record(job("few"), event("same"))
    assert sum(map(len, made._seen.values())) == 100
    assert [seen.count for seen in made._seen["few"].values()] == [2]
