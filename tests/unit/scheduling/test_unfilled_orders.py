"""Which jobs order nothing for a while, since no node came for them or they did not use it."""

import pytest

from elastic_tfjob.scheduling.unfilled_orders import FailedOrder, UnfilledOrders


def follow(
    memory: UnfilledOrders,
    now_s: float,
    *,
    waits_since: float | None = None,
    filled: bool = False,
    held: int | None = 0,
) -> FailedOrder | None:
    """One look at the orders of the job `a`."""
    waiting = {} if waits_since is None else {"a": waits_since}
    found = memory.follow(waiting, {"a"} if filled else set(), lambda _: held, now_s, timeout_s=900, retry_s=300)
    return found.get("a")


def test_a_job_whose_nodes_do_not_come_asks_again_later_each_time() -> None:
    memory = UnfilledOrders()
    assert follow(memory, 899, waits_since=0) is None
    assert memory.next_s({"a": 0}, 899, 900) == 900
    assert follow(memory, 900, waits_since=0) == FailedOrder("not coming", 300)
    assert memory.failed(1199) == {"a"}
    assert follow(memory, 1000, waits_since=0) is None, "it is known"
    assert follow(memory, 1100) is None
    assert memory.next_s({}, 1100, 900) == 1200
    assert memory.failed(1200) == frozenset()
    assert follow(memory, 2100, waits_since=1200) == FailedOrder("not coming", 600)
    assert follow(memory, 3600, waits_since=2700) == FailedOrder("not coming", 1200)
    assert follow(memory, 5700, waits_since=4800) == FailedOrder("not coming", 1800)
    assert follow(memory, 8400, waits_since=7500) == FailedOrder("not coming", 1800)


@pytest.mark.parametrize(("filled", "held"), [(True, 0), (False, None)])
def test_it_is_forgotten_when_the_nodes_have_come_or_the_job_is_gone(filled: bool, held: int | None) -> None:
    memory = UnfilledOrders()
    follow(memory, 900, waits_since=0)
    follow(memory, 950, filled=filled, held=held)
    assert memory.failed(951) == frozenset()


@pytest.mark.parametrize(("after", "pauses"), [(1, True), (2, False)])
def test_a_job_that_did_not_grow_on_new_nodes_asks_for_none_for_a_while(after: int, pauses: bool) -> None:
    memory = UnfilledOrders()
    assert follow(memory, 10, waits_since=10, held=1) is None
    assert follow(memory, 20, filled=True, held=1) is None
    assert follow(memory, 30, held=1) is None, "there is room now"
    assert follow(memory, 90, held=after) is None
    told = follow(memory, 100, waits_since=100, held=after)  # and now there is none again
    assert told == (FailedOrder("not used", 1800) if pauses else None)
    assert bool(memory.failed(101)) == pauses
    assert memory.failed(100 + 1800) == frozenset()


def test_the_time_until_nodes_come_is_the_median_of_the_last_orders() -> None:
    memory = UnfilledOrders()
    assert memory.lead_s == 120, "nothing is known yet"
    for k, took_s in enumerate((60, 300, 70)):
        at_s = 1000 * k
        follow(memory, at_s, waits_since=at_s)
        assert memory.since_s == {"a": at_s}
        follow(memory, at_s + took_s, filled=True)
        follow(memory, at_s + took_s + 1, filled=True)
    assert memory.lead_s == 70
    follow(memory, 5000, waits_since=4000)
    follow(memory, 5001)
    assert memory.lead_s == 70, "an order that was withdrawn says nothing"


def test_a_waiting_job_may_ask_again_at_once() -> None:
    """Others took the nodes that it ordered."""
    memory = UnfilledOrders()
    for now_s in (10, 20):
        follow(memory, now_s, waits_since=now_s)
        assert follow(memory, now_s + 5) is None
    assert memory.failed(30) == frozenset()
