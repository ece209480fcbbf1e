"""`train-policy --follow`: learns from live jobs, for ever, and hands over weights that are not worse.

An update trains on recorded and on drawn workloads in turn. What comes out is accepted if it is not worse than what
decides now on the jobs that were held back, nor on drawn workloads that nothing was chosen on. What decides now are the
weights that were handed over last; where there are none, it is the profile `hull`. Before each update these weights are
compared with what they replaced, on the newest jobs: where they are worse there, that comes back.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np

from elastic_tfjob.api.fields import Fields, cut
from elastic_tfjob.api.limits import MAX_DURATION_S
from elastic_tfjob.learning.episodes import Episode, draw
from elastic_tfjob.learning.evolution import cost
from elastic_tfjob.learning.recorded import LEAST_JOBS, Recorded, read_experience
from elastic_tfjob.learning.training import Drawn, Plan, State, begin, load, replace_file, save, train
from elastic_tfjob.scheduling.profiles.dl2.network import Network
from elastic_tfjob.scheduling.profiles.dl2.weights import as_bytes, read

__all__ = ["Course", "Update", "follow"]

HELD_WORKLOADS: Final = 6
WORSE: Final = 0.01
"""So much worse than what was before them on the newest jobs, and that comes back."""
ONE_LINE: Final = 1 << 16

Outcome = Literal["accepted", "refused", "rolled back", "failed"]
Decides = Network | None
"""None: the profile `hull`, as under `dl2` where no weights can be used."""


@dataclass(frozen=True, slots=True)
class Course:
    """Where experience is read and weights are handed over; an update is due after `jobs` new ones, and `plan` says how
    it learns. `poll_s`: so often it is looked whether there are."""

    experience: Path
    output: Path
    plan: Plan
    jobs: int = LEAST_JOBS
    poll_s: float = 30.0

    def beside(self, what: str) -> Path:
        return self.output.with_name(f"{self.output.name}.{what}")


@dataclass(frozen=True, slots=True)
class Update:
    """What became of an attempt. `held` and `drawn`: change of the mean completion time beside what decided until
    then, as a part (-0.02: 2 % shorter); of a roll-back, that of going back. `until_s`: the arrival of the newest job
    in it. `why` it failed, if it did."""

    number: int
    outcome: Outcome
    jobs: int
    held: float
    drawn: float
    until_s: float
    unreadable: int = 0
    why: str = ""

    def __str__(self) -> str:
        passed = f"; {self.unreadable} lines or jobs could not be read" if self.unreadable else ""
        if self.outcome == "failed":
            return f"update {self.number}, {self.jobs} live jobs: failed, {self.why}{passed}"
        return (
            f"update {self.number}, {self.jobs} live jobs: {self.outcome}, completion times {self.held:+.1%} on live "
            f"jobs that were held back, {self.drawn:+.1%} on drawn workloads{passed}"
        )


class Mixed:
    """Recorded and drawn workloads in turn. What is handed over is judged on others of both kinds (`held`, `drawn`):
    were it chosen on them, too, that would say little."""

    def __init__(self, recorded: Recorded, plan: Plan) -> None:
        self._recorded, self._drawn = recorded, Drawn(plan)
        self.held = [recorded.episode("held", k) for k in range(HELD_WORKLOADS)]
        self.drawn = judges(plan)
        self.select = [*(recorded.episode("train", -1 - k) for k in range(HELD_WORKLOADS)), *self._drawn.select]

    def train(self, number: int) -> Episode:
        return self._drawn.train(number) if number % 2 else self._recorded.episode("train", number)


def judges(plan: Plan) -> list[Episode]:
    """The same drawn workloads for each update: who is never worse on them does not get worse little by little."""
    return [draw("judge", k, plan.models) for k in range(plan.select)]


def follow(course: Course) -> Iterator[Update | None]:
    """The updates, as they come; None each time that there was not enough to learn from, so that the caller may end.
    Raises OSError where experience cannot be read, or weights not be written."""
    last = _last(course.beside("updates.jsonl"))
    number, until_s = (last.number, last.until_s) if last is not None else (0, float("-inf"))
    looked: object = None
    while True:
        if (stamps := _stamps(course.experience)) == looked:
            yield None
            continue
        looked, recorded = stamps, read_experience(course.experience)
        newer = recorded.after(until_s)
        if len(recorded.jobs) < LEAST_JOBS or len(newer.jobs) < course.jobs:
            yield None
            continue
        number, until_s = number + 1, recorded.until_s
        try:
            update = rolled_back(course, newer, number) or updated(course, recorded, number)
        except ValueError as error:  # noted, so that nobody tries the same for ever
            update = Update(
                number, "failed", len(recorded.jobs), 0.0, 0.0, until_s, recorded.unreadable, cut(f"{error}")
            )
        yield _noted(course, update)


def _stamps(experience: Path) -> object:
    """What tells that something was written."""
    file = experience / "experience.jsonl"
    if not file.exists():
        return "nothing"
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def updated(course: Course, recorded: Recorded, number: int) -> Update:
    """Learn from these jobs, and hand over what comes out if it is not worse."""
    plan = replace(course.plan, seed=course.plan.seed + number, workloads=recorded.fingerprint)
    workloads = Mixed(recorded, plan)
    now = decides(course.output)
    candidate = _trained(course, plan, shipped() if now is None else now, workloads)
    held, drawn = (_change(candidate, now, each) for each in (workloads.held, workloads.drawn))
    better = held <= 0 and drawn <= 0 and min(held, drawn) < 0
    update = _update(number, "accepted" if better else "refused", recorded, held, drawn)
    if better:
        said = {"plan": asdict(plan), "update": number, "jobs": len(recorded.jobs), "held": held, "drawn": drawn}
        before = b"" if now is None else as_bytes(now, {"replaced_by_update": number})
        replace_file(course.beside("before"), before)
        replace_file(course.output, as_bytes(candidate, said))
    course.beside("state").unlink(missing_ok=True)
    return update


def rolled_back(course: Course, newer: Recorded, number: int) -> Update | None:
    """Where the weights in use are worse than what was before them, on jobs that came after all that either learned
    from, that comes back: other weights, or `hull` (an empty file), for which they are removed."""
    kept, now = course.beside("before"), decides(course.output)
    if not kept.exists() or now is None:
        return None
    before = decides(kept)
    if before is None and kept.stat().st_size:  # broken: nobody knows what it was
        return None
    held = _change(before, now, [newer.episode("all", k) for k in range(HELD_WORKLOADS)])
    if held >= -WORSE:
        return None
    drawn = _change(before, now, judges(course.plan))
    if before is None:
        course.output.unlink()
        kept.unlink()
    else:
        os.replace(kept, course.output)
    return _update(number, "rolled back", newer, held, drawn)


def decides(file: Path) -> Decides:
    """What decides where the operator is given this file: its weights, or `hull` where there are none to be used."""
    found = read(str(file))
    return None if isinstance(found, str) else found


def shipped() -> Network:
    """Where learning begins. Raises OSError where the package lacks it."""
    if isinstance(found := read(""), str):
        raise OSError(found)
    return found


def _trained(course: Course, plan: Plan, current: Network, workloads: Mixed) -> Network:
    """What training from these weights ends with. One that was stopped in this update goes on."""
    kept = course.beside("state")
    state = begun = _resumed(kept, plan) or begin(plan, current, workloads)
    save(begun, kept)
    for state in train(begun, workloads):
        save(state, kept)
    return state.network


def _resumed(kept: Path, plan: Plan) -> State | None:
    try:
        state = load(kept) if kept.exists() else None
    except ValueError:
        return None
    return state if state is not None and state.plan == plan else None


def _change(ours: Decides, theirs: Decides, episodes: Sequence[Episode]) -> float:
    return float(np.expm1(cost(ours, episodes) - cost(theirs, episodes)))


def _update(number: int, outcome: Outcome, recorded: Recorded, held: float, drawn: float) -> Update:
    return Update(number, outcome, len(recorded.jobs), held, drawn, recorded.until_s, recorded.unreadable)


def _noted(course: Course, update: Update) -> Update:
    with course.beside("updates.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"at": time.time(), **asdict(update)}) + "\n")
    return update


def _last(path: Path) -> Update | None:
    """The last attempt that is noted there; None where there is none that can be read."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - ONE_LINE))
        lines = file.read().decode("utf-8", "replace").splitlines()
    for line in reversed(lines):
        try:
            fields = Fields(json.loads(line))
            until_s = fields.number("until_s", float(MAX_DURATION_S) * 10)
            number = fields.whole("number", 2**31)
        except (ValueError, RecursionError):
            continue
        if until_s is not None:
            return Update(number, "refused", 0, 0.0, 0.0, until_s)
    return None
