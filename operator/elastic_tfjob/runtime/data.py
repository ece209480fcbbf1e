"""`ElasticCheckpoint.data()`: which examples training reads next, so that it reads each of them once in an epoch.

An example has a number, from 0 to `examples` - 1. The order of an epoch's numbers is a pure function of seed, epoch and
place in the epoch. Training's position is the number of examples read in all; it is saved in each checkpoint's marker
and handed over with values in memory. So any number of workers continues where the last ones were, without a service
and without a list of what was read.

The chief chooses the numbers of a step and gives them to a worker, so a step that is repeated on another worker reads
the same examples.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np

from elastic_tfjob.runtime.checkpoints import Mismatch
from elastic_tfjob.runtime.progress import whole
from elastic_tfjob.runtime.protocol import brief

__all__ = ["Data", "Order"]

_ROUNDS = 4
_MULTIPLIER = np.uint64(0xFF51AFD7ED558CCD)
_SHIFT = np.uint64(29)
_AHEAD = 4096
"""Numbers that are computed at once: computing those of a small batch alone would take 0.1 ms."""
_ORDERS = ("shuffled", "blocks", "sequential")
_VERSION = 1
"""The version of the orders. Training cannot continue from a checkpoint of another version."""
_COUNT_THEM = (
    "it must be a whole number of at least 1. If the number of examples is not known, count them once, for example "
    "int(dataset.reduce(0, lambda n, _: n + 1)), and write that number"
)


# -- The order ---------------------------------------------------------------------------------------------------------


def permuted(places: np.ndarray, size: int, *key: int) -> np.ndarray:
    """The numbers at these places of a permutation of 0 .. size - 1; int64. `key`: chooses the permutation.

    A Feistel network over the least power of two that is not below `size`, repeated until the number is below `size`
    (Black and Rogaway, CT-RSA 2002, section 4). Needs memory for `places` alone.
    """
    bits = max(size - 1, 1).bit_length()
    low = np.uint64(bits // 2)
    low_mask, high_mask = np.uint64((1 << bits // 2) - 1), np.uint64((1 << (bits - bits // 2)) - 1)
    keys = np.random.SeedSequence(key).generate_state(_ROUNDS, np.uint64)
    found = places.astype(np.uint64)
    todo = np.arange(len(found))
    with np.errstate(over="ignore"):
        while len(todo):
            left, right = found[todo] >> low, found[todo] & low_mask
            for one, other in zip(keys[::2], keys[1::2]):
                left ^= _mixed(right + one) & high_mask
                right ^= _mixed(left + other) & low_mask
            found[todo] = (left << low) | right
            todo = todo[found[todo] >= np.uint64(size)]
    return found.astype(np.int64)


def _mixed(values: np.ndarray) -> np.ndarray:
    product: np.ndarray = values * _MULTIPLIER
    product ^= product >> _SHIFT
    return product


def _pieces(begin: int, count: int, width: int) -> Iterator[tuple[int, int, int]]:
    """The parts of the range begin .. begin + count - 1 in intervals of this width: index of the interval, first place
    in it, and length."""
    while count > 0:
        index, place = divmod(begin, width)
        length = min(count, width - place)
        yield index, place, length
        begin, count = begin + length, count - length


class Order:
    """The order of the examples in each epoch.

    `kind`: `shuffled`; `sequential`; or `blocks`: blocks of `block` examples are shuffled, and examples within `mix`
    neighbouring blocks. A shorter last block is in the last group of blocks. Raises TypeError and ValueError, which
    name what is wrong.
    """

    def __init__(self, examples: Any, seed: Any, kind: str, block: Any, mix: Any) -> None:
        if hasattr(examples, "cardinality"):
            raise TypeError(f"examples is a dataset; {_COUNT_THEM}")
        try:
            self.examples = whole("examples", examples)
        except ValueError as error:  # tf.data's UNKNOWN_CARDINALITY and INFINITE_CARDINALITY are negative
            raise ValueError(f"examples is {examples}; {_COUNT_THEM}") from error
        self.seed, self.kind = whole("seed", seed), kind
        self.block, self.mix = whole("block", block), whole("mix", mix)
        for name, value in (("examples", self.examples), ("block", self.block), ("mix", self.mix)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if kind not in _ORDERS:
            raise ValueError(f"order is {kind!r}; it must be one of {', '.join(map(repr, _ORDERS))}")

    def at(self, begin: int, count: int) -> np.ndarray:
        """The example numbers at the positions begin .. begin + count - 1, which count through all epochs; int64."""
        parts = [
            self._of_epoch(epoch, np.arange(place, place + length))
            for epoch, place, length in _pieces(begin, count, self.examples)
        ]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def _of_epoch(self, epoch: int, places: np.ndarray) -> np.ndarray:
        if self.kind == "sequential":
            return places
        if self.kind == "blocks":
            return self._blocks(epoch, places)
        return permuted(places, self.examples, self.seed, epoch)

    def _blocks(self, epoch: int, places: np.ndarray) -> np.ndarray:
        width, full_blocks = self.block * self.mix, self.examples // self.block
        groups = []
        for group, place, length in _pieces(int(places[0]), len(places), width):
            size = min(width, self.examples - group * width)
            mixed = permuted(np.arange(place, place + length), size, self.seed, epoch, group, 1)
            groups.append(group * width + mixed)
        blocks, offsets = np.divmod(np.concatenate(groups), self.block)
        full = blocks < full_blocks
        blocks[full] = permuted(blocks[full], full_blocks, self.seed, epoch, 0, 2)
        return blocks * self.block + offsets

    def state(self) -> dict[str, Any]:
        """What must be the same in a checkpoint to continue from it."""
        kind = f"{self.kind}-{_VERSION}"
        if self.kind == "blocks":
            kind += f"-{self.block}-{self.mix}"
        return {"examples": self.examples, "seed": self.seed, "order": kind}


def share(numbers: np.ndarray, index: int, of: int) -> np.ndarray:
    """Part `index` of `of` parts of a batch's numbers. No part is empty, as the mean over no example is not a number:
    if a batch has fewer examples than parts, the last parts repeat the first ones."""
    if of == 1:
        return numbers
    part = numbers[index::of]
    return part if len(part) else numbers[index % len(numbers) :][:1]


# -- The position ------------------------------------------------------------------------------------------------------


class Data:
    """The examples that training reads, and how far it is. Made by `ElasticCheckpoint.data`.

    A custom loop takes the numbers of the next examples (`take`), or training reads batches of them (`dataset`).
    `position`: examples read in all. `elastic`: the ElasticCheckpoint. Raises TypeError and ValueError for `epochs`.
    """

    def __init__(self, elastic: Any, order: Order, epochs: Any) -> None:
        self._elastic, self._order = elastic, order
        self.epochs = None if epochs is None else whole("epochs", epochs)
        if self.epochs == 0:
            raise ValueError("epochs is 0; it must be at least 1, or None for training without end")
        self.position = 0
        self.load: Callable[[Any], Any] | None = None
        """The argument of `dataset`."""
        self.takes = False
        """Whether a custom loop takes numbers."""
        self._by_batch = False  # a dataset hands out batches, and `count` counts them
        self._counted = 0
        self._ahead, self._ahead_from = np.empty(0, np.int64), 0

    @property
    def examples(self) -> int:
        """Examples in an epoch."""
        return self._order.examples

    @property
    def left(self) -> int:
        """Examples that are not read yet; sys.maxsize without `epochs`."""
        return sys.maxsize if self.epochs is None else max(self.examples * self.epochs - self.position, 0)

    @property
    def epoch(self) -> int:
        """The epoch of the next example, from 0; `epochs` at the end."""
        return self.position // self.examples

    @property
    def left_in_epoch(self) -> int:
        """Examples until the next epoch begins; 0 at the end of the last one."""
        return self.examples - self.position % self.examples if self.left else 0

    # -- numbers for a custom loop -------------------------------------------------------------------------------------

    def take(self, count: int) -> np.ndarray:
        """The next `count` example numbers, int64; fewer at the end of the last epoch. They may go over the end of an
        epoch.

        With parameter servers the chief gives them to a step: `coordinator.schedule(step, args=(data.take(32),))`. With
        MultiWorkerMirroredStrategy `count` is for all workers together, and each gets its share. What was taken before
        `elastic.step()` counts as read then. Raises TypeError or ValueError for `count`, and RuntimeError if no example
        is left or training reads `dataset`.
        """
        count = whole("count", count)
        if count < 1:
            raise ValueError(f"count is {count}; it must be at least 1")
        if self.load is not None:
            raise RuntimeError("the program trains on data.dataset(), which takes the examples itself")
        if not self.left:  # the mean over no example would spoil the model
            raise RuntimeError("no example is left; call take() only while data.left is above 0")
        self.takes = True
        return share(self._take(count), self._elastic.task.place, self._elastic.parts_of_a_batch)

    def _take(self, count: int) -> np.ndarray:
        count = min(count, self.left)
        begin = self.position - self._ahead_from
        if not 0 <= begin <= len(self._ahead) - count:
            self._ahead = self._order.at(self.position, min(max(_AHEAD, count), self.left))
            self._ahead_from, begin = self.position, 0
        self.position += count
        return self._ahead[begin : begin + count]

    # -- batches for `fit`, and for loops of workers that all train ----------------------------------------------------

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch that is trained from its beginning; its last batch may be smaller. Raises ValueError
        without a batch size."""
        return math.ceil(self.examples / self._batch)

    @property
    def _batch(self) -> int:
        """Examples of a step: those of one worker with parameter servers, else of all together."""
        size: int = self._elastic.examples_of_a_batch
        if not size:
            raise ValueError("data.dataset() needs the batch's size: ElasticCheckpoint(..., batch_size=32)")
        return size

    def dataset(self, load: Callable[[Any], Any]) -> Any:
        """What `fit` trains on, or a custom loop without parameter servers: batches of the examples that are left.

        `load`: gets the numbers of a batch, an int64 tensor of shape (batch,), and returns what `fit` expects of a
        batch, such as `(inputs, targets)`. With parameter servers it must consist of TensorFlow operations alone. The
        batch's size is that of ElasticCheckpoint. Returns a tf.data.Dataset, a distributed one with
        MultiWorkerMirroredStrategy, or a tf.keras DatasetCreator with parameter servers. A custom loop makes its
        iterator after `resume()`, and another one for the warm-up. Raises ValueError without a batch size, TypeError if
        TensorFlow cannot trace `load`, and RuntimeError after `take`.
        """
        import tensorflow as tf  # noqa: PLC0415

        if self.takes:
            raise RuntimeError("the program has called data.take() already; use one of the two")
        size, on_servers = self._batch, self._elastic.has_parameter_servers
        _check(tf, load, python=not on_servers)
        self.load, self._by_batch = load, not on_servers
        if on_servers:

            def shapes(_: Any = None) -> Any:
                """Keras learns the shapes from these batches; the callback schedules others."""
                return tf.data.Dataset.from_tensors(tf.zeros([size], tf.int64)).repeat().map(load)

            return (sys.modules.get("tf_keras") or tf.keras).utils.experimental.DatasetCreator(shapes)

        def batches(context: Any = None) -> Any:
            spec = tf.TensorSpec([None], tf.int64)
            numbers = tf.data.Dataset.from_generator(lambda: self._shares(context), output_signature=spec)
            return numbers.map(load).prefetch(2)

        strategy = self._elastic.strategy
        return batches() if strategy is None else strategy.distribute_datasets_from_function(batches)

    def _shares(self, context: Any) -> Iterator[np.ndarray]:
        """From here to the end of the last epoch, this worker's parts of each batch: one for each of its replicas.
        `context`: TensorFlow's InputContext; None if this is the only worker."""
        ahead = Data(self._elastic, self._order, self.epochs)  # this position counts what is trained, not what is read
        ahead.position = self.position
        replicas, pipelines, here = 1, 1, 0
        if context is not None:
            replicas, pipelines = context.num_replicas_in_sync, context.num_input_pipelines
            here = context.input_pipeline_id
        local = replicas // pipelines
        while ahead.left:
            numbers = ahead.take_batch()
            for index in range(here * local, (here + 1) * local):
                yield share(numbers, index, replicas)

    def take_batch(self) -> np.ndarray:
        """The numbers of the next batch; a batch of `dataset` ends with its epoch."""
        return self._take(min(self._batch, self.left_in_epoch))

    # -- for ElasticCheckpoint -----------------------------------------------------------------------------------------

    def count(self, steps: int) -> int | None:
        """Count these steps, which training has done. Returns for how many more steps there are examples; None if that
        is not known."""
        if self._by_batch:
            for _ in range(steps):
                self.position += min(self._batch, self.left_in_epoch)
        if self.load is not None:
            return self.steps_left()
        read, self._counted = self.position - self._counted, self.position
        if read > 0 and steps > 0 and self.epochs is not None:
            return math.ceil(self.left * steps / read)
        return None if self.left else 0

    def steps_left(self) -> int | None:
        """For how many batches there are examples; None without end, or if the batch's size is not known."""
        if self.epochs is None or not self._elastic.examples_of_a_batch:
            return None
        later = max(self.epochs - self.epoch - 1, 0)
        return math.ceil(self.left_in_epoch / self._batch) + later * self.steps_per_epoch

    def state(self) -> dict[str, Any]:
        """What a checkpoint's marker has of it."""
        return {"position": self.position, **self._order.state()}

    def differs(self, state: Any) -> str:
        """Why training cannot continue from a checkpoint with this state; empty if it can, or if it has none."""
        if state is None:
            return ""
        here = self._order.state()
        position = state.get("position") if isinstance(state, dict) else None
        if type(position) is not int or position < 0:
            return f"the checkpoint's position in the data is not valid: {state!r}"[:300]
        others = [
            f"{name} {state.get(name)!r} instead of {now!r}" for name, now in here.items() if state.get(name) != now
        ]
        if not others:
            return ""
        return (
            f"the checkpoint was made with other data: {', '.join(others)}. Give elastic.data() the values of the "
            "checkpoint, or use another checkpoint directory"
        )

    def restore(self, begun: dict[str, Any]) -> None:
        """Continue from the checkpoint with this marker; empty without a checkpoint. Raises Mismatch."""
        state = begun.get("data")
        if why := self.differs(state):
            raise Mismatch(why)
        self.position = self._counted = state["position"] if state else 0
        if begun and not state:
            print(
                "WARNING: the checkpoint has no position in the data: they begin with the first epoch",
                file=sys.stderr,
                flush=True,
            )


def _check(tf: Any, load: Callable[[Any], Any], *, python: bool) -> None:
    """Trace `load`. `python`: whether it may call Python. Raises TypeError, which says what is wrong."""
    try:
        graph = tf.function(load).get_concrete_function(tf.TensorSpec([None], tf.int64)).graph.as_graph_def()
    except Exception as error:
        raise TypeError(
            "load(numbers) cannot be traced by TensorFlow; its argument is an int64 tensor of shape (batch,), so use "
            f"TensorFlow operations, such as tf.gather(images, numbers): {brief(error)}"
        ) from error
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    calls = sorted({node.op for node in nodes if "PyFunc" in node.op})
    if calls and not python:
        raise TypeError(
            f"load(numbers) calls Python ({', '.join(calls)}), which workers do not have; use TensorFlow operations, "
            "such as tf.gather, tf.io.read_file or tf.data.FixedLengthRecordDataset"
        )
