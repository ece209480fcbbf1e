"""bench-moves without a cluster: a pretended job that does what the operator does with a written target."""

import io
import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.objects.target import Target
from elastic_tfjob.controller.schedule.request import terms
from harness.jobs import Jobs
from harness.moves import arrived, elsewhere, move_target
from harness.progress import CommandFailed
from harness.rescale_cost import Rescale
from harness.training import PREFIX, Line, Lines

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import bench_moves
import bench_rescale
from bench_moves import Move

PREPARES_S = 14.0
PAUSE_S = 0.25
LEAVES_S = 3.0
"""From the first step elsewhere until the pod that was left is gone."""


class Clock:
    """Time that passes only while the test's thread sleeps. `tick` is called as it does. Threads that other tests have
    left in this process sleep as ever: their turns would be seconds here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_800_000_000.0
        self._thread, self._real_sleep = threading.current_thread(), time.sleep
        self.tick: Callable[[], None] = lambda: None
        monkeypatch.setattr(time, "time", lambda: self.now)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        if threading.current_thread() is not self._thread:
            self._real_sleep(seconds)
            return
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            self.tick()


class Pretended:
    """A cluster with one job, whose chief reports every fifth of ten steps a second. A target is followed PREPARES_S
    after it was written: `mode` says how, `refuses` why not, `loses` how many steps are made once more then."""

    def __init__(self, clock: Clock, *, mode: str = "overlap", refuses: str = "", loses: int = 0) -> None:
        self.clock, self.mode, self.refuses, self.loses = clock, mode, refuses, loses
        clock.tick = self._tick
        self.lines: list[Line] = []
        self.asked: list[tuple[str, ...]] = []
        self.step, self.resumed_at, self.next_at = 0, 0, clock.now + 0.5
        nodes = {"Chief": ["a"], "PS": ["a"], "Worker": ["b"]}
        replicas = dict.fromkeys(nodes, 1)
        sizes = {"replicas": replicas, "declared": replicas}
        self.target: dict[str, Any] = {"generation": 0, **sizes, "nodes": nodes, "reason": "r"}
        self.state: dict[str, Any] = {"phase": "Stable", "generation": 0, "replicas": replicas, "history": []}
        self.pods = {f"subject-{kind.lower()}-0": names[0] for kind, names in nodes.items()}
        self.written_at: float | None = None
        self.switched_at: float | None = None
        self.leaving = ""

    def workers(self) -> list[str]:
        return ["b", "a"]

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        self.asked.append(args)
        match [word for word in args if not word.startswith("--namespace")]:
            case ["get", "tfjob", _, "-o", "json"]:
                said = {f"{PREFIX}target": json.dumps(self.target), f"{PREFIX}state": json.dumps(self.state)}
                return json.dumps({"metadata": {"annotations": said}})
            case ["get", "pods", _, "-o", "json"]:
                pods = [{"metadata": {"name": n}, "spec": {"nodeName": node}} for n, node in self.pods.items()]
                return json.dumps({"items": pods})
            case ["get", "--raw", path]:
                return self._status(path.rpartition("/pods/")[2].partition(":")[0])
            case ["annotate", "tfjob", _, "--overwrite", text]:
                self._follow(json.loads(text.removeprefix(f"{PREFIX}target=")))
            case ["annotate", "tfjob", _, _, "--overwrite"]:  # a person's target-workers or target-ps
                self.target = {**self.target, "generation": self.state["generation"] + 1}
                self._prepare()
        return ""

    def _status(self, pod: str) -> str:
        """A pod's exporter. That of a worker does not answer: its pod may be about to end."""
        if "-worker-" in pod:
            raise CommandFailed("not found")
        report: dict[str, Any] = {"preparation": {"generation": self.state["generation"], "cpu_s": 0.1}}
        if pod == "subject-chief-0" and self.switched_at is not None:
            report["checkpoint"] = {"at": self.switched_at + 0.15, "seconds": 0.1}
            report["switch"] = {"at": self.switched_at + 0.2}
            report["first_step_at"] = self.switched_at + 0.25
        return json.dumps(report)

    def _prepare(self) -> None:
        self.written_at, self.state = self.clock.now, {**self.state, "phase": "Preparing"}

    def _follow(self, target: dict[str, Any]) -> None:
        """A pod with another index comes on the other node, and is prepared."""
        assert Target.parse(json.dumps(target)) is not None
        assert target["generation"] == self.state["generation"] + 1
        (kind,) = (k for k, names in target["nodes"].items() if names != self.target["nodes"][k])
        self.leaving = next(name for name in self.pods if f"-{kind.lower()}-" in name)
        index = 1 - int(self.leaving[-1])
        self.pods[f"{self.leaving[:-1]}{index}"] = target["nodes"][kind][0]
        self.target = target
        self._prepare()

    def _tick(self) -> None:
        now = self.clock.now
        while self.next_at <= now:
            self.step += 5
            content = {"step": self.step, "resumed_at": self.resumed_at}
            self.lines.append(Line(self.next_at, "subject-chief-0", content))
            if self.written_at is not None and self.next_at >= self.written_at + PREPARES_S:
                self._switch()
            else:
                self.next_at += 0.5
        if self.switched_at is not None and now >= self.switched_at + LEAVES_S:
            self.pods.pop(self.leaving, None)

    def _switch(self) -> None:
        """As the launcher of the chief has it: the next program goes on from what was saved."""
        generation, self.written_at = self.target["generation"], None
        if self.refuses:
            at = datetime.fromtimestamp(self.clock.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            refused = {"generation": generation, "reason": self.refuses, "at": at}
            self.state = {**self.state, "phase": "Stable", "refused": refused}
            self.next_at += 0.5
            return
        done = {"generation": generation, "mode": self.mode, "lost_steps": self.loses}
        history = [*self.state["history"], done]
        self.state = {**self.state, "phase": "Stable", "generation": generation, "history": history}
        self.step -= self.loses
        self.resumed_at, self.switched_at = self.step, self.next_at
        self.next_at += PAUSE_S


class Seen(Lines):
    """What the chief of a pretended job reports."""

    def __init__(self, cluster: Pretended, *_: str) -> None:
        self.seen = cluster.lines

    def __enter__(self) -> "Seen":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    (tmp_path / "1.complete").touch()
    monkeypatch.setattr("harness.cluster.shared_folder", lambda _: tmp_path)
    for bench in (bench_moves, bench_rescale):
        monkeypatch.setattr(bench, "Lines", Seen)
    return Clock(monkeypatch)


def run(cluster: Pretended, count: int) -> list[Move]:
    done: list[Move] = []
    bench_moves.run(cluster, count, done.append)  # type: ignore[arg-type]
    return done


def test_a_worker_and_a_ps_go_to_and_fro(clock: Clock) -> None:
    cluster = Pretended(clock)
    done = run(cluster, 2)
    assert [each.type for each in done] == ["Worker", "PS"] * 2
    assert {(each.downtime_s, each.steps_lost) for each in done} == {(PAUSE_S, 0)}
    assert all(PREPARES_S - 0.5 <= each.prepare_s <= PREPARES_S + 0.5 for each in done)
    written = [json.loads(words[-1].partition("=")[2]) for words in cluster.asked if "annotate" in words]
    assert [target["nodes"]["Worker"] + target["nodes"]["PS"] for target in written] == [
        ["a", "a"],
        ["a", "b"],
        ["b", "b"],
        ["b", "a"],
    ]
    assert written[-1]["nodes"]["Chief"] == ["a"]


def test_what_the_benchmark_made_goes(clock: Clock) -> None:
    cluster = Pretended(clock)
    run(cluster, 1)
    namespace = next(words[-1] for words in cluster.asked if words[:2] == ("create", "namespace"))
    assert ("delete", "namespace", namespace, "--wait=false") in cluster.asked


def test_a_thread_of_another_test_does_not_move_the_clock(clock: Clock) -> None:
    begun = clock.now
    other = threading.Thread(target=lambda: time.sleep(0.01))
    other.start()
    other.join(10)
    assert clock.now == begun


def test_bench_rescale_measures_by_the_same_code(clock: Clock) -> None:
    cluster, told = Pretended(clock), list[Rescale]()
    done = bench_rescale.measure(cluster, "overlap", "digits", 1, told.append)  # type: ignore[arg-type]
    assert done == told
    assert [(each.change, each.grows) for each in done] == [
        ("Worker 2->3", True),
        ("PS 1->2", True),
        ("Worker 3->2", False),
        ("PS 2->1", False),
    ]
    for each in done:
        assert (each.downtime_s, each.lost_steps, each.rate_before) == (PAUSE_S, 0, 10.0)
        assert each.prepare_cpu_s == {"kept": [0.1, 0.1], "added": []}
        parts = {name: seconds for name, seconds in each.parts_s.items() if name != "prepare"}
        assert parts == pytest.approx({"notice": 0.05, "save": 0.1, "commit": 0.05, "resume": 0.05}, abs=0.001)


def test_steps_that_are_made_twice_are_lost(clock: Clock) -> None:
    assert [each.steps_lost for each in run(Pretended(clock, loses=15), 1)] == [15, 15]


@pytest.mark.parametrize(
    ("how", "said"),
    [({"refuses": "no pod on b"}, "Worker from b was refused: no pod on b"), ({"mode": "recreate"}, "recreate")],
)
def test_what_is_no_move_beside_training_is_not_counted(clock: Clock, how: dict[str, str], said: str) -> None:
    done: list[Move] = []
    with pytest.raises(AssertionError, match=said):
        bench_moves.run(Pretended(clock, **how), 1, done.append)  # type: ignore[arg-type]
    assert done == []


def test_a_job_has_arrived_when_the_pod_that_it_left_is_gone(clock: Clock) -> None:
    cluster = Pretended(clock)
    cluster.pods["subject-worker-1"] = "a"
    jobs = Jobs(cluster, "ns")  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="Worker of subject is not on b alone"):
        arrived(jobs, "subject", "Worker", ["b"], 0)
    del cluster.pods["subject-worker-1"]
    arrived(jobs, "subject", "Worker", ["b"], 0)


def test_a_target_changes_one_node_and_is_newer_than_all() -> None:
    before = {
        "generation": 3,
        "replicas": {"PS": 1, "Worker": 2},
        "nodes": {"PS": ["a"], "Worker": ["a", "b"]},
        "declared": {"PS": 1, "Worker": 2},
    }
    made = move_target(before, 5, "Worker", "c")
    assert made["nodes"] == {"PS": ["a"], "Worker": ["c", "b"]}
    assert made["generation"] == 6
    assert move_target(before, 1, "PS", "c")["generation"] == 4
    assert (made["replicas"], made["declared"]) == (before["replicas"], before["declared"])


def test_elsewhere_is_the_next_node() -> None:
    assert [elsewhere(["a", "b", "c"], node) for node in ("a", "b", "c", "gone")] == ["b", "c", "a", "a"]
    with pytest.raises(ValueError, match="no other node than a"):
        elsewhere(["a"], "a")


def test_the_job_can_be_moved_and_is_never_rescaled() -> None:
    made = bench_moves.manifest("folder")
    made["metadata"] |= {"namespace": "ns", "uid": "u", "resourceVersion": "1"}
    found = terms(Job.parse(made))
    assert (found.elastic, found.stoppable) == (False, True)


MOVES = [Move("Worker", 0.2, 12.0, 0), Move("PS", 0.5, 14.0, 0), Move("Worker", 0.4, 13.0, 5)]


def test_the_file_has_each_move_and_the_percentiles_by_type(tmp_path: Path) -> None:
    bench_moves.write(tmp_path / "new" / "moves.json", MOVES)
    found = json.loads((tmp_path / "new" / "moves.json").read_text())
    assert found["moves"][0] == {"type": "Worker", "downtime_s": 0.2, "prepare_s": 12.0, "steps_lost": 0}
    assert found["by_type"] == {
        "Worker": {"p50": 0.3, "p90": 0.38, "n": 2},
        "PS": {"p50": 0.5, "p90": 0.5, "n": 1},
    }
    assert bench_moves.results([]) == {"moves": [], "by_type": {}}


def test_the_table() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(bench_moves.table(MOVES))
    rows = [line.replace("│", " ").split() for line in console.export_text().splitlines()]
    assert ["Worker", "2", "0.30", "0.38", "0.40", "12.5", "5"] in rows
    assert ["PS", "1", "0.50", "0.50", "0.50", "14.0", "0"] in rows


def test_one_that_is_stopped_by_a_problem_tells_it_and_what_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def breaks(_: object, __: int, tell: Any) -> None:
        tell(MOVES[0])
        raise AssertionError("after 400 s no step")

    monkeypatch.setattr("harness.deploy.deploy", lambda: None)
    monkeypatch.setattr(bench_moves, "run", breaks)
    output = tmp_path / "moves.json"
    result = CliRunner().invoke(bench_moves.main, ["--count", "3", "--output", str(output)])
    assert result.exit_code == 1
    assert json.loads(output.read_text())["by_type"]["Worker"]["n"] == 1
    assert "after 1 moves: after 400 s no step" in result.output


def test_help_and_what_is_no_count() -> None:
    text = CliRunner().invoke(bench_moves.main, ["--help"]).output
    for word in ("--count", "[default: 10", "build/bench/moves.json", "idle machine", "bench_moves.py --count 2"):
        assert word in text
    refused = CliRunner().invoke(bench_moves.main, ["--count", "0"])
    assert refused.exit_code == 2
    assert "x>=1" in refused.output
