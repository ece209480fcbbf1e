"""What a decision reads of a Snapshot: every field of the contract that somebody asks a Job, a JobSpec, a Node or the
Snapshot for. Comparing and copying whole values is no reading."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.contract import FIELDS

__all__ = ["recorded_reads"]

_COPIES: Final = ("<string>", "dataclasses.py")
"""Where what a dataclass generates, and `replace`, come from."""


@contextmanager
def recorded_reads() -> Iterator[set[str]]:
    """The fields that are read from here on, each as `Job.speed`."""
    seen: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        for name, known in FIELDS.items():
            patch.setattr(getattr(core, name), "__getattribute__", _watch(name, set(known), seen))
        yield seen


def _watch(kind: str, unread: set[str], seen: set[str]) -> Any:
    def get(self: object, name: str) -> Any:
        if name in unread and not sys._getframe(1).f_code.co_filename.endswith(_COPIES):
            unread.discard(name)
            seen.add(f"{kind}.{name}")
        return object.__getattribute__(self, name)

    return get
