"""`TFRecords`: the records of TFRecord files by number, for `ElasticCheckpoint.data()`.

A TFRecord file has no index, and TensorFlow reads it from its beginning. So records are read in blocks that are
neighbours in a file, and the order `blocks` needs few of them at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["TFRecords"]

_HEAD, _TAIL = 12, 4
"""Bytes before and after a record: its length with a checksum, and a checksum of the record."""


class TFRecords:
    """The records of TFRecord files; their number is `len`.

    `files`: paths or URLs for tf.io.gfile, in an order that stays the same. `block`: records that are read together, at
    least 1; the same as that of `data()`. `compression`: as in tf.data.TFRecordDataset. Reads the head of each record
    to count them; a compressed file is read as a whole. Raises ValueError for a file that is damaged or of another
    kind, and what TensorFlow raises.
    """

    def __init__(
        self, files: Iterable[str | os.PathLike[str]], *, block: int = 1024, compression: str | None = None
    ) -> None:
        import tensorflow as tf  # noqa: PLC0415

        self._tf, self._compression = tf, compression
        self._files = [os.fspath(each) for each in files]
        if not self._files or block < 1:
            raise ValueError(f"there are {len(self._files)} files, and block is {block}; both must be at least 1")
        count = _count if compression is None else self._count_compressed
        counts = [count(path) for path in self._files]
        # For each block: its file, and its first record and length there.
        blocks = [
            (file, first, min(block, records - first))
            for file, records in enumerate(counts)
            for first in range(0, records, block)
        ]
        self._file, self._skip, self._size = np.array(blocks, np.int64).reshape(-1, 3).T
        self._begin = np.cumsum(self._size) - self._size
        self._records = sum(counts)

    def __len__(self) -> int:
        return self._records

    def load(self, numbers: Any) -> Any:
        """The records with these numbers, a tensor of strings, for tf.io.parse_example. TensorFlow operations alone, so
        workers beside parameter servers can run it. `numbers`: an int64 tensor of shape (batch,)."""
        tf = self._tf
        blocks, index = tf.unique(tf.searchsorted(self._begin, numbers, side="right") - 1)
        sizes = tf.gather(self._size, blocks)

        def read(block: Any) -> Any:
            file = tf.data.TFRecordDataset(tf.gather(self._files, tf.gather(self._file, block)), self._compression)
            return file.skip(tf.gather(self._skip, block)).take(tf.gather(self._size, block))

        found = tf.data.Dataset.from_tensor_slices(blocks).flat_map(read)
        records = found.batch(tf.reduce_sum(sizes)).get_single_element()
        before = tf.cumsum(sizes, exclusive=True) - tf.gather(self._begin, blocks)
        return tf.gather(records, tf.gather(before, index) + numbers)

    def _count_compressed(self, path: str) -> int:
        records = self._tf.data.TFRecordDataset(path, self._compression)
        return int(records.reduce(np.int64(0), lambda count, _: count + 1))


def _count(path: str) -> int:
    """The number of records of a file that is not compressed."""
    import tensorflow as tf  # noqa: PLC0415

    count, at, size = 0, 0, tf.io.gfile.stat(path).length
    with tf.io.gfile.GFile(path, "rb") if "://" in path else open(path, "rb") as file:  # the latter takes a tenth
        while at < size:
            file.seek(at)
            at += _HEAD + int.from_bytes(file.read(_HEAD)[:8], "little") + _TAIL
            if at > size:
                raise ValueError(f"{path} is no TFRecord file, or is compressed or damaged: see its record {count}")
            count += 1
    return count
