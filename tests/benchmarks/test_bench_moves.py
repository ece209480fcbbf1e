"""bench-moves without a cluster: a pretended job that does what the operator does with a written target."""

import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

import bench_moves
import bench_rescale
from bench_moves import Move
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.planning.request import job_request
from harness.jobs import Jobs
from harness.moves import arrived, elsewhere, move_target
from harness.rescale_cost import Rescale

from .pretended_job import PAUSE_S, PREPARES_S, Clock, Pretended


def run(cluster: Pretended, count: int) -> list[Move]:
    done: list[Move] = []
    bench_moves.run(cluster, count, done.append)  # type: ignore[arg-type]
    return done


def test_a_worker_a_ps_and_the_chief_go_to_and_fro(clock: Clock) -> None:
    cluster = Pretended(clock)
    done = run(cluster, 2)
    assert [each.type for each in done] == ["Worker", "PS", "Chief"] * 2
    assert {(each.downtime_s, each.steps_lost) for each in done} == {(PAUSE_S, 0)}
    assert all(PREPARES_S - 0.5 <= each.prepare_s <= PREPARES_S + 0.5 for each in done)
    written = [json.loads(words[-1].partition("=")[2]) for words in cluster.asked if "annotate" in words]
    where = ["".join(target["nodes"][kind][0] for kind in ("Worker", "PS", "Chief")) for target in written]
    assert where == ["aaa", "aba", "abb", "bbb", "bab", "baa"]
    assert cluster.leader == "subject-chief-0"
    assert {line.pod for line in cluster.lines} == {"subject-chief-0", "subject-chief-1"}


def test_the_benchmark_deletes_its_namespace(clock: Clock) -> None:
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
        paused = {"notice": 0.05, "save": 0.1, "commit": 0.05, "resume": 0.05, "program": PAUSE_S}
        assert parts == pytest.approx(paused, abs=0.001)


def test_steps_that_are_made_twice_are_lost(clock: Clock) -> None:
    assert [each.steps_lost for each in run(Pretended(clock, loses=15), 1)] == [15, 15, 15]


@pytest.mark.parametrize(
    ("how", "said"),
    [({"refuses": "no pod on b"}, "Worker from b was refused: no pod on b"), ({"mode": "recreate"}, "recreate")],
)
def test_a_refused_or_recreating_move_is_not_counted(clock: Clock, how: dict[str, str], said: str) -> None:
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
    found = job_request(TFJob.parse(made))
    assert (found.elastic, found.stoppable) == (False, True)


MOVES = [Move("Worker", 0.2, 12.0, 0), Move("PS", 0.5, 14.0, 0), Move("Worker", 0.4, 13.0, 5)]


def test_the_file_has_each_move_and_the_percentiles_by_type(tmp_path: Path) -> None:
    bench_moves.write(tmp_path / "new" / "moves.json", MOVES)
    found = json.loads((tmp_path / "new" / "moves.json").read_text())
    assert found["moves"][0] == {
        "type": "Worker",
        "downtime_s": 0.2,
        "prepare_s": 12.0,
        "steps_lost": 0,
        "training_lost_s": 0.0,
    }
    assert found["by_type"] == {
        "Worker": {"p50": 0.3, "p90": 0.38, "n": 2},
        "PS": {"p50": 0.5, "p90": 0.5, "n": 1},
    }
    assert bench_moves.results([]) == {"moves": [], "by_type": {}}


def test_the_table() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(bench_moves.table(MOVES))
    rows = [line.replace("│", " ").split() for line in console.export_text().splitlines()]
    assert ["Worker", "2", "0.30", "0.38", "0.40", "12.5", "0.0", "5"] in rows
    assert ["PS", "1", "0.50", "0.50", "0.50", "14.0", "0.0", "0"] in rows


def test_a_benchmark_that_fails_reports_the_problem_and_its_results_so_far(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def breaks(_: object, __: int, tell: Any, ___: int) -> None:
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
