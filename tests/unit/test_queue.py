"""The work queue: once each, never twice at a time, earliest time wins, failures wait longer."""

import asyncio

from elastic_tfjob.controller.queue import KeyQueue

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


async def test_not_by_two_workers() -> None:
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
