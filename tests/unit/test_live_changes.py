"""The hook's side of a change of workers: what it answers its launcher, and when it touches training."""

import json
from pathlib import Path
from typing import Any

from elastic_tfjob.runtime import protocol
from elastic_tfjob.runtime.live_changes import LiveChanges
from elastic_tfjob.runtime.progress import Progress


class Workers:
    """In place of LiveWorkers, whose own test has TensorFlow."""

    def __init__(self) -> None:
        self.present = ["a:1", "b:1"]
        self.wanted: list[str] = []
        self.ready = self.made = False
        self.outcome: tuple[bool, str] | None = None
        self.why = ""
        self.limits: list[float] = []

    def unable(self) -> str:
        return self.why

    def addresses(self) -> list[str]:
        return self.present

    def start(self, workers: list[str], limit_s: float) -> None:
        self.wanted, self.outcome, self.made = workers, None, False
        self.limits.append(limit_s)

    def apply(self) -> int:
        self.ready, self.made, self.present = False, True, self.wanted
        return len(self.present)

    def cancel(self) -> bool:
        if not self.made and self.outcome is None:
            self.outcome = (False, "cancelled")
        return not self.made


class Hook:
    """A program of generation 3 with two workers, and its launcher."""

    def __init__(self, folder: Path, why_not: str = "") -> None:
        self.folder, self.workers = folder, Workers()
        self.progress = Progress(None, 3, lambda: None)
        self.progress.step = 100
        self.counts: list[int] = []
        self.changes = LiveChanges(self.workers, folder, self.progress, lambda: why_not, self.counts.append)

    def ask(self, generation: int, workers: Any, **more: Any) -> None:
        request = {"id": f"{generation}-{workers}", "generation": generation, "workers": workers, "limit_s": 30.0}
        (self.folder / protocol.WORKERS).write_text(json.dumps({**request, **more}))

    @property
    def answer(self) -> tuple[bool, str] | None:
        found = protocol.read(self.folder / protocol.CHANGED)
        return (found["ok"], found["why"]) if found else None


def test_a_change_is_made_between_two_steps_and_answered_after_it(tmp_path: Path) -> None:
    hook = Hook(tmp_path)
    hook.ask(4, ["a:1", "b:1", "c:1"])
    assert not hook.changes.watch()
    hook.changes.at_step()
    assert hook.answer is None
    hook.workers.ready = True
    assert hook.changes.watch()
    hook.changes.at_step()
    assert hook.counts == [3]
    hook.changes.watch()
    assert hook.answer is None, "the workers that left may not end yet"
    hook.workers.outcome = (True, "")
    hook.changes.watch()
    assert hook.answer == (True, "")
    assert hook.progress.generation == 4


def test_a_refusal_says_why_and_changes_nothing(tmp_path: Path) -> None:
    hook = Hook(tmp_path)
    hook.ask(4, ["a:1"])
    hook.changes.watch()
    hook.workers.outcome = (False, "no dataset")
    hook.changes.watch()
    assert hook.answer == (False, "no dataset")
    assert (hook.progress.generation, hook.counts) == (3, [])


def test_a_program_that_does_not_follow_its_workers_is_not_changed_again(tmp_path: Path) -> None:
    hook = Hook(tmp_path)
    hook.changes.watch()
    hook.changes.refuse("on_workers failed: KeyError: 'a'")
    hook.ask(4, ["a:1"])
    hook.changes.watch()
    assert hook.answer == (False, "on_workers failed: KeyError: 'a'")
    told = protocol.read(tmp_path / protocol.LIVE)
    assert told == {"able": False, "why": "on_workers failed: KeyError: 'a'"}


def test_the_present_workers_need_no_change(tmp_path: Path) -> None:
    hook = Hook(tmp_path)
    hook.ask(3, ["b:1", "a:1"])
    hook.changes.watch()
    assert hook.answer == (True, "")
    assert not hook.workers.limits


def test_what_is_not_made_yet_is_given_up_for_the_next_request(tmp_path: Path) -> None:
    hook = Hook(tmp_path)
    hook.ask(4, ["a:1"])
    hook.changes.watch()
    hook.ask(3, ["a:1", "b:1"])
    hook.changes.watch()
    assert hook.answer == (True, "")
    assert hook.progress.generation == 3


def test_what_is_made_is_taken_back_by_another_change(tmp_path: Path) -> None:
    hook = Hook(tmp_path)
    hook.ask(4, ["a:1"])
    hook.changes.watch()
    hook.workers.ready = True
    hook.changes.at_step()
    hook.ask(3, ["a:1", "b:1"])
    hook.changes.watch()
    assert len(hook.workers.limits) == 1, "the first change is not over"
    hook.workers.outcome = (True, "")
    hook.changes.watch()
    assert hook.workers.wanted == ["a:1", "b:1"]
    hook.workers.ready = True
    hook.changes.at_step()
    hook.workers.outcome = (True, "")
    hook.changes.watch()
    assert hook.answer == (True, "")
    assert (hook.progress.generation, hook.counts) == (3, [1, 2])


def test_a_program_that_is_not_to_be_changed_reports_why(tmp_path: Path) -> None:
    hook = Hook(tmp_path, "the program has set live=False")
    hook.changes.watch()
    assert protocol.read(tmp_path / protocol.LIVE) == {"able": False, "why": "the program has set live=False"}
    hook.ask(4, ["a:1"])
    hook.changes.watch()
    assert hook.answer == (False, "the program has set live=False")
    assert not hook.workers.limits


def test_the_report_follows_what_is_possible(tmp_path: Path) -> None:
    hook = Hook(tmp_path)
    hook.changes.watch()
    assert protocol.read(tmp_path / protocol.LIVE) == {"able": True, "why": ""}
    hook.workers.why = "a worker is away"
    hook.changes.watch()
    assert protocol.read(tmp_path / protocol.LIVE) == {"able": False, "why": "a worker is away"}


def test_a_request_is_not_trusted(tmp_path: Path) -> None:
    hook = Hook(tmp_path)
    for number, (workers, limit) in enumerate(((None, 1), ("a:1", 1), (["a:1"], 1e9), (["b:1"], "x"))):
        hook.ask(10 + number, workers, limit_s=limit, id=number)
        hook.changes.watch()
    assert hook.workers.limits == [60.0, 60.0]


def test_the_pause_is_the_longest_time_between_two_reports(tmp_path: Path) -> None:
    hook = Hook(tmp_path)
    progress = hook.progress
    progress.count(101, None, 1)
    progress._longest_s = 50.0
    progress.begin_change()
    progress._clock -= 0.7
    progress.count(102, None, 1)
    progress.continue_as(4)
    progress.count(103, None, 1)
    assert progress._downtime_s is not None
    assert 0.7 <= progress._downtime_s < 5.0
    assert (progress._lost, progress._resumed) == (0, 102)
