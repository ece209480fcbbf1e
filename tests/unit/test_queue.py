"""The work queue: once each, never twice at a time, earliest time wins, failures wait longer."""

import asyncio
import sys
from types import FrameType
from typing import Any

from elastic_tfjob.controller.kube.queue import KeyQueue

A, B = ("ns", "a"), ("ns", "b")


async def taken(queue: KeyQueue) -> tuple[str, str] | None:
    """The next key that is due within a moment, or None."""
    taking = asyncio.create_task(queue.take())
    # Not by wait_for: on a busy machine its timeout may run out in the same turn of the event loop as the timer of a
    # key, and it would then cancel what has taken the key.
    done, _ = await asyncio.wait([taking], timeout=0.2)
    if done:
        return taking.result()
    taking.cancel()
    return None


async def test_each_key_once_in_order() -> None:
    """A key that waits is not queued again."""
    queue = KeyQueue()
    for key in (A, B, A):
        queue.add(key)
    assert [await taken(queue), await taken(queue), await taken(queue)] == [A, B, None]


async def test_jobs_that_have_begun_come_first() -> None:
    """A key that became due overtakes new ones."""
    queue = KeyQueue()
    queue.add(A, after_s=0.01)
    await asyncio.sleep(0.02)
    queue.add(B)
    queue.add(("ns", "c"), after_s=0.01)
    await asyncio.sleep(0.02)
    assert [await taken(queue) for _ in range(3)] == [A, ("ns", "c"), B]


async def test_a_key_is_never_handled_by_two_workers() -> None:
    """A key added while it is handled comes back when that is done, once."""
    queue = KeyQueue()
    queue.add(A)
    assert await taken(queue) == A
    queue.add(A)
    queue.add(A)
    assert await taken(queue) is None
    queue.done(A)
    assert [await taken(queue), await taken(queue)] == [A, None]


async def test_the_earliest_time_holds() -> None:
    """A later time does not delay a key, an earlier one brings it forward."""
    queue = KeyQueue()
    queue.add(A, after_s=60)
    queue.add(A, after_s=0.01)
    queue.add(A, after_s=60)
    assert await taken(queue) == A
    queue.add(B, after_s=60)
    queue.add(B)
    assert await taken(queue) == B


async def test_failures_wait_longer_each_time() -> None:
    """Back-off doubles and is forgotten after a success."""
    queue = KeyQueue()
    assert [queue.retry(A), queue.retry(A), queue.retry(A)] == [0.1, 0.2, 0.4]
    queue.succeeded(A)
    assert queue.retry(A) == 0.1
    assert max(queue.retry(A) for _ in range(50)) == 60


async def test_changes_after_a_failure_do_not_shorten_the_backoff() -> None:
    """Pods that a failing job loses and makes again call it back only when its retry is due; the job itself at once."""
    queue = KeyQueue()
    loop = asyncio.get_running_loop()
    queue.add(A)
    for failure in range(3):
        assert await taken(queue) == A
        begun = loop.time()
        queue.add(A, after_s=0.01)  # by what this attempt does itself
        if failure == 1:
            await asyncio.sleep(0.02)  # and it is due while it is still being handled
        for _ in range((0, 1, 8)[failure]):  # in the end so often that a busy machine is not too late for it
            queue.retry(A)
        after_s = queue.retry(A)
        queue.done(A)
        queue.add(A, after_s=0.01)
        if failure < 2:
            while not len(queue):
                await asyncio.sleep(0.005)
            assert loop.time() - begun >= after_s
    assert after_s >= 1.6
    queue.add(A, after_s=0.01)
    assert await taken(queue) is None
    queue.add(A)
    assert await taken(queue) == A
    queue.succeeded(A)
    queue.done(A)
    queue.add(A, after_s=0.01)
    assert await taken(queue) == A


async def test_a_job_that_changes_while_it_fails_comes_back_at_once() -> None:
    """Whatever its pods did meanwhile."""
    queue = KeyQueue()
    queue.add(A)
    assert await taken(queue) == A
    queue.add(A)
    queue.add(A, after_s=0.001)
    await asyncio.sleep(0.01)
    for _ in range(5):
        queue.retry(A)
    queue.done(A)
    assert await taken(queue) == A


async def test_idle() -> None:
    """A graceful stop waits for what is being handled, not for what is queued."""
    queue = KeyQueue()
    await asyncio.wait_for(queue.idle(), 60)
    queue.add(A)
    queue.add(B)
    assert await taken(queue) == A
    waiting = asyncio.create_task(queue.idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.done(A)
    await asyncio.wait_for(waiting, 60)


def of(namespace: str, count: int) -> list[tuple[str, str]]:
    """Keys of a namespace."""
    return [(namespace, str(number)) for number in range(count)]


async def test_namespaces_take_turns() -> None:
    """Whoever has ten thousand jobs waiting delays another namespace's by one."""
    queue = KeyQueue()
    for key in (*of("many", 10_000), *of("few", 3)):
        queue.add(key)
    found = []
    for _ in range(6):
        turn = await taken(queue)
        assert turn is not None
        queue.done(turn)
        found.append(turn[0])
    assert found == ["many", "few"] * 3


async def test_one_namespace_leaves_workers_for_the_others() -> None:
    """Jobs that take for ever hold half of the workers, and those of a second namespace find some free."""
    queue = KeyQueue(8)
    for key in of("slow", 100):
        queue.add(key)
    held = [await taken(queue) for _ in range(4)]
    assert [key and key[0] for key in held] == ["slow"] * 4
    assert await taken(queue) is None
    queue.add(A)
    assert await taken(queue) == A
    queue.done(A)
    assert await taken(queue) is None
    assert held[0] is not None
    queue.done(held[0])
    assert await taken(queue) == ("slow", "4")


async def test_workers_that_wait_are_called() -> None:
    """All that may be taken is taken, in whatever order keys come and are done, also where workers are cancelled."""
    queue = KeyQueue(8)
    done: list[tuple[str, str]] = []

    async def work() -> None:
        while True:
            key = await queue.take()
            await asyncio.sleep(0.001)
            done.append(key)
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(8)]
    doomed = [asyncio.create_task(queue.take()) for _ in range(4)]
    await asyncio.sleep(0.01)
    keys = [key for namespace in "abc" for key in of(namespace, 50)]
    for number, key in enumerate(keys):
        queue.add(key)
        if number < 4:
            doomed[number].cancel()  # in the very moment in which it was called
        if number % 10 == 0:
            await asyncio.sleep(0.002)
    async with asyncio.timeout(60):
        while len(done) < len(keys):
            await asyncio.sleep(0.01)
    assert sorted(done) == sorted(keys)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, *doomed, return_exceptions=True)


async def test_every_key_that_an_end_admits_is_taken() -> None:
    """One item of two namespaces at their limit is done: now each may have one more, and two workers wait."""
    queue = KeyQueue(6)
    for key in (*of("a", 2), *of("b", 2)):
        queue.add(key)
    first = [await queue.take() for _ in range(4)]
    waiting = [asyncio.create_task(queue.take()) for _ in range(2)]
    for namespace in "ab":
        queue.add((namespace, "next"))
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    queue.done(next(key for key in first if key[0] == "b"))
    _, left = await asyncio.wait(waiting, timeout=60)
    assert not left


async def test_a_deleted_key_leaves_nothing() -> None:
    """A job with a time to live of years that was deleted is not remembered for years."""
    queue = KeyQueue()
    queue.retry(A)
    queue.add(B, after_s=10.0**9)
    for key in (A, B):
        queue.forget(key)
    assert (queue._later, queue._failures) == ({}, {})


async def test_a_step_costs_the_same_however_many_wait() -> None:
    """By lines of Python, which no other load of the machine changes."""

    async def lines_of_a_thousand(namespaces: int, keys: int) -> int:
        queue = KeyQueue(64)
        for number in range(namespaces):
            for key in of(str(number), keys):
                queue.add(key)
        lines = 0

        def count(frame: FrameType, event: str, _: object) -> Any:
            nonlocal lines
            lines += event == "line"
            return count

        sys.settrace(count)
        try:
            for _ in range(1000):
                queue.done(await queue.take())
        finally:
            sys.settrace(None)
        return lines

    assert await lines_of_a_thousand(1000, 20) < 1.1 * await lines_of_a_thousand(10, 100)
