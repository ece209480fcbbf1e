"""Which examples training reads next: each once in an epoch, through any sequence of sizes."""

import math
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_tfjob.runtime.data import Data, Order, permuted, share
from harness.effort import effort


def elastic(batch: int = 0, *, parts: int = 1, place: int = 0, servers: bool = False) -> Any:
    task = SimpleNamespace(place=place, workers=parts)
    return SimpleNamespace(
        examples_of_a_batch=batch, parts_of_a_batch=parts, task=task, has_parameter_servers=servers, strategy=None
    )


def data(examples: int, epochs: int | None = 1, *, seed: int = 1, order: str = "shuffled", **options: Any) -> Data:
    sizes = {"block": options.pop("block", 16), "mix": options.pop("mix", 2)}
    return Data(elastic(**options), Order(examples, seed, order, **sizes), epochs)


def marker(position: dict[str, Any] | None) -> dict[str, Any]:
    """A checkpoint's marker; empty without a checkpoint."""
    return {} if position is None else {"step": 1, "data": position}


# -- the order


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 10, 255, 256, 257, 1797, 10_000, 65_537, 1_000_000])
def test_a_permutation_has_each_number_once(size: int) -> None:
    found = permuted(np.arange(size), size, 3, 0)
    assert found.dtype == np.int64
    assert np.array_equal(np.sort(found), np.arange(size))


def test_a_permutation_is_unlike_another_one_and_unlike_none() -> None:
    size = 10_000
    first, second = permuted(np.arange(size), size, 1, 0), permuted(np.arange(size), size, 1, 1)
    for one, other in ((first, np.arange(size)), (first, second)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.05
    assert np.mean(np.abs(np.diff(first)) <= 10) < 0.01, "neighbours stay neighbours"


def test_a_permutation_of_a_huge_set_needs_no_list() -> None:
    places = np.arange(10**12, 10**12 + 5)
    assert len(set(permuted(places, 10**13, 1, 0))) == 5


def test_the_order_stays_the_same_in_later_versions() -> None:
    """A checkpoint must be continued as it began: with another order, `_VERSION` must be another one."""
    assert permuted(np.arange(8), 1000, 7, 2).tolist() == [926, 602, 433, 766, 928, 42, 645, 591]
    assert permuted(np.arange(8), 1500, 7, 2).tolist() == [66, 176, 1455, 162, 957, 300, 773, 717]
    assert Order(10, 7, "shuffled", 1, 1).state() == {"examples": 10, "seed": 7, "order": "shuffled-1"}
    assert Order(10, 7, "blocks", 4, 2).state()["order"] == "blocks-1-4-2"


@settings(max_examples=effort(50, 300), deadline=None)
@given(
    st.integers(1, 400), st.sampled_from(["shuffled", "blocks", "sequential"]), st.integers(1, 64), st.integers(1, 4)
)
def test_an_epoch_of_any_order_has_each_example_once(examples: int, kind: str, block: int, mix: int) -> None:
    order = Order(examples, 5, kind, block, mix)
    for epoch in range(3):
        assert sorted(order.at(epoch * examples, examples)) == list(range(examples))


def test_blocks_are_read_in_pieces() -> None:
    read = data(1000, order="blocks", block=100, mix=1)
    for _ in range(10):
        piece = read.take(100)
        assert len(set(piece // 100)) == 1, "all of one block"
        assert list(piece) != sorted(piece)
    mixed = data(1000, order="blocks", block=100, mix=4)
    assert len(set(mixed.take(400) // 100)) == 4
    short = data(1030, order="blocks", block=100, mix=1)
    short.take(1000)
    assert sorted(short.take(100)) == list(range(1000, 1030)), "the short block comes last"


# -- any sequence of sizes

EVENT = st.tuples(st.integers(1, 5), st.integers(1, 60), st.sampled_from(["go", "save", "back", "given up"]))


@settings(max_examples=effort(100, 500), deadline=None)
@given(st.integers(1, 300), st.integers(1, 3), st.lists(EVENT, max_size=60), st.booleans())
def test_each_example_counts_once_in_an_epoch(
    examples: int, epochs: int, events: list[tuple[int, int, str]], all_train: bool
) -> None:
    """Workers, batches and programs change; a program that ends badly goes back to the last checkpoint, and so do the
    counts, which are in the same one."""
    counts: Counter[tuple[int, int]] = Counter()
    position: dict[str, Any] | None = None
    saved: tuple[dict[str, Any] | None, Counter[tuple[int, int]]] = (None, Counter())
    for workers, batch, event in (*events, *[(2, 50, "go")] * (examples * epochs)):
        places = range(workers) if all_train else range(1)
        programs = [data(examples, epochs, parts=len(places), place=place) for place in places]
        for program in programs:
            if event == "given up":
                program.take(batch)  # its warm-up
            program.restore(marker(position))
        if not programs[0].left:
            break
        if event == "given up":
            continue
        before = programs[0].position
        took = np.concatenate([program.take(batch) for program in programs])
        whole_batch = min(batch, examples * epochs - before)
        read = data(examples, epochs)
        read.restore(marker(position))
        assert set(took) == set(read.take(batch)), "all of the batch, and nothing else"
        assert len(took) == max(whole_batch, len(places))
        for place, number in enumerate(read._order.at(before, whole_batch)):
            counts[(before + place) // examples, int(number)] += 1
        position = programs[0].state()
        assert all(program.state() == position for program in programs)
        if event == "save":
            saved = (position, counts.copy())
        elif event == "back":
            position, counts = saved[0], saved[1].copy()
    assert counts == Counter({(epoch, number): 1 for epoch in range(epochs) for number in range(examples)})


def test_a_batch_may_go_over_the_end_of_an_epoch() -> None:
    read = data(10, 2)
    first = read.take(8)
    over = read.take(8)
    assert sorted([*first, *over[:2]]) == list(range(10))
    assert (read.epoch, read.left, read.left_in_epoch) == (1, 4, 4)
    assert len(read.take(8)) == 4
    assert (read.left, read.left_in_epoch, read.epoch) == (0, 0, 2)
    with pytest.raises(RuntimeError, match=r"no example is left; call take\(\) only while data.left"):
        read.take(8)


def test_without_epochs_there_is_no_end() -> None:
    read = data(3, None)
    assert len(read.take(10)) == 10
    assert read.left == sys.maxsize
    assert read.count(1) is None


def test_numbers_are_computed_ahead_and_stay_right_after_a_restore() -> None:
    read, other = data(100_000, seed=3), data(100_000, seed=3)
    here = np.concatenate([read.take(32) for _ in range(300)])
    assert np.array_equal(here, other._order.at(0, 9600))
    read.restore(marker({**read.state(), "position": 64}))
    assert np.array_equal(read.take(5000), here[64:5064])
    read.restore(marker(None))
    assert np.array_equal(read.take(32), here[:32])


# -- batches


@pytest.mark.parametrize("batch", [1, 7, 10, 64])
@pytest.mark.parametrize("replicas", [(1, 1), (3, 3), (4, 2)])
def test_workers_share_each_batch(batch: int, replicas: tuple[int, int]) -> None:
    in_all, workers = replicas
    iterators = []
    for worker in range(workers):
        context = SimpleNamespace(num_replicas_in_sync=in_all, num_input_pipelines=workers, input_pipeline_id=worker)
        iterators.append(data(25, 2, batch=batch)._shares(context))
    counter = data(25, 2, batch=batch)
    counter._by_batch = True
    local = in_all // workers
    steps, seen = 0, [Counter[int](), Counter[int]()]
    while counter.left:
        parts = [next(iterator) for iterator in iterators for _ in range(local)]
        assert all(len(part) for part in parts)
        begin = counter.position
        assert counter.steps_left() == math.ceil(counter.left_in_epoch / batch) + (
            (2 - counter.epoch - 1) * math.ceil(25 / batch)
        )
        counter.count(1)
        seen[begin // 25].update(set(np.concatenate(parts).tolist()))
        assert len(set(np.concatenate(parts))) == counter.position - begin
        steps += 1
    assert steps == 2 * math.ceil(25 / batch)
    assert all(each == Counter(range(25)) for each in seen)
    assert all(next(iterator, None) is None for iterator in iterators)


def test_the_last_part_of_a_small_batch_is_not_empty() -> None:
    assert [share(np.array([4, 5]), index, 4).tolist() for index in range(4)] == [[4], [5], [4], [5]]


def test_how_many_steps_are_left() -> None:
    read = data(100, 2, batch=30)
    assert read.steps_left() == 8, "an epoch of a dataset has four batches"
    assert read.steps_per_epoch == 4
    read.take(30)
    assert read.count(1) == 6, "numbers are taken over the end of an epoch"
    read.take(170)
    assert read.count(6) == 0


def test_a_dataset_in_the_middle_of_an_epoch() -> None:
    read = data(100, 2, batch=30)
    read._by_batch = True
    read.count(5)
    assert (read.epoch, read.left_in_epoch, read.left) == (1, 70, 70)
    resumed = data(100, 2, batch=45)  # with a different number of workers
    resumed.restore(marker(read.state()))
    assert (resumed.steps_per_epoch, resumed.steps_left(), resumed.epoch) == (3, 2, 1)


def test_fewer_epochs_than_were_read_are_an_end() -> None:
    read = data(10, 1)
    read.restore(marker({**read.state(), "position": 15}))
    assert (read.left, read.left_in_epoch) == (0, 0)


# -- what is wrong is told


def test_another_data_set_is_told_from_this_one() -> None:
    read = data(10)
    assert read.differs(None) == ""
    assert read.differs(read.state()) == ""
    why = read.differs({**read.state(), "examples": 11, "seed": 4})
    assert "examples 11 instead of 10, seed 4 instead of 1" in why
    assert "another checkpoint directory" in why
    assert "order 'shuffled-2' instead of 'shuffled-1'" in read.differs({**read.state(), "order": "shuffled-2"})
    states: list[Any] = [{}, {"position": -1}, {"position": "3"}, [], 3, {"position": 2.5}, {"position": True}]
    for state in states:
        assert "is not valid" in read.differs(state), state


def test_a_checkpoint_without_a_position_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    data(10).restore({"step": 5})
    assert "no position in the data: they begin with the first epoch" in capsys.readouterr().err
    data(10).restore({})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"examples": 0}, "examples is 0"),
        ({"examples": 2.5}, "examples is 2.5"),
        ({"examples": -2}, "examples is -2; it must be a whole number of at least 1. If the number of examples is not"),
        ({"examples": SimpleNamespace(cardinality=None)}, "examples is a dataset; it must be a whole number"),
        ({"epochs": 0}, "epochs is 0; it must be at least 1, or None"),
        ({"epochs": "3"}, "epochs is '3'"),
        ({"seed": -1}, "seed is -1"),
        ({"block": 0}, "block is 0"),
        ({"mix": 0}, "mix is 0"),
        ({"order": "random"}, "order is 'random'; it must be one of 'shuffled', 'blocks', 'sequential'"),
    ],
)
def test_values_are_checked(options: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match="is") as raised:
        data(**{"examples": 10, **options})
    assert error in str(raised.value)


def test_a_count_is_checked() -> None:
    with pytest.raises(ValueError, match="count is 0"):
        data(10).take(0)
    with pytest.raises(TypeError, match=r"count is 1\.5"):
        data(10).take(1.5)  # type: ignore[arg-type]
