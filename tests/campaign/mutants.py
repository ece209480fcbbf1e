"""Seeded defects: each a small replacement in the source of one module, made when it is first imported.

A process is of one mutant or of none: `CAMPAIGN_MUTANT=name python -m campaign.run --until-first ...`. Nothing of the
product may be imported before `install`, which is why this module imports none of it.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["MUTANTS", "Mutant", "install"]

_PACKAGE: Final = "elastic_tfjob"


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` must be in the module's source exactly once; `new` stands there instead. `what` goes wrong then."""

    name: str
    module: str
    old: str
    new: str
    what: str


MUTANTS: Final = {
    each.name: each
    for each in (
        Mutant(
            "two-leaders",
            "controller.leader",
            'if holder not in ("", self._identity) and now < self._runs_out_at:',
            "if False:",
            "a candidate takes a lease that another one holds",
        ),
        Mutant(
            "stale-event-wins",
            "controller.cache",
            "if known is not None and known.version >= entry.version:",
            "if False:",
            "an old event brings an old object back",
        ),
        Mutant(
            "deleted-comes-back",
            "controller.cache",
            "if entry.uid in self._tombstones:",
            "if False:",
            "the late answer to a write, or a replayed event, brings a deleted object back",
        ),
        Mutant(
            "list-forgets-nothing",
            "controller.cache",
            "for entry in gone:",
            "for entry in []:",
            "what was deleted while the watch was away stays in the cache",
        ),
        Mutant(
            "committed-before-saved",
            "controller.rescale",
            'if report.switch.state == "committed":',
            'if report.switch.state in ("committed", "saving"):',
            "the operator takes a switch for done while the chief still saves",
        ),
        Mutant(
            "rolled-back-unheard",
            "controller.rescale",
            "if gone or cancelled:",
            "if True:",
            "a rollback does not wait for the chief to give up",
        ),
        Mutant(
            "lost-answer-is-an-error",
            "controller.executor",
            'if not any(owner["uid"] == job.uid for owner in owners):',
            "if True:",
            "a pod whose creation was not answered is never taken in",
        ),
        Mutant(
            "added-while-handled",
            "controller.queue",
            "self._add_now(key, self._begun)\n        if not self._handled:",
            "pass\n        if not self._handled:",
            "a key that was added while it was handled is forgotten",
        ),
        Mutant(
            "no-retry",
            "controller.queue",
            "self.add(key, after_s)\n        return after_s",
            "return after_s",
            "a job whose pass failed is not looked at again",
        ),
        Mutant(
            "switch-before-ready",
            "runtime.launcher",
            'elif self.asked is None and prepared.state == "ready":',
            "elif self.asked is None:",
            "the running program saves before the next one waits",
        ),
        Mutant(
            "old-one-goes-on",
            "runtime.launcher",
            "        if old is not None:\n            self._stop(old, now)\n        self._log",
            "        self._log",
            "the program of the old size is not stopped after a switch",
        ),
    )
}


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, mutant: Mutant) -> None:
        super().__init__(name, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path).decode()
        mutant = self._mutant
        if source.count(mutant.old) != 1:
            raise ImportError(f"mutant {mutant.name}: {mutant.old!r} is {source.count(mutant.old)} times in {path}")
        return compile(source.replace(mutant.old, mutant.new), path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != f"{_PACKAGE}.{self._mutant.module}":
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert found is not None
        assert found.origin is not None
        loader = _Loader(fullname, found.origin, self._mutant)
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=loader)


def install(name: str) -> None:
    """Have one module imported with its defect. Raises KeyError for a mutant that does not exist, RuntimeError when it
    comes too late."""
    mutant = MUTANTS[name]
    if f"{_PACKAGE}.{mutant.module}" in sys.modules:
        raise RuntimeError(f"{mutant.module} is imported already")
    sys.meta_path.insert(0, _Finder(mutant))
