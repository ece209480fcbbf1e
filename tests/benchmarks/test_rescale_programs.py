"""bench-rescale by kinds of training programs, without a cluster."""

import ast
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

import bench_rescale
import rescale_programs
import trainee
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.planning.request import job_request
from rescale_programs import KINDS, Change, results, table

from .pretended_job import PAUSE_S, PREPARES_S, Clock, Pretended, Seen

NONE_LOST_S = PAUSE_S - 5 / 10
"""The pretended job makes five steps in the pause, for which it takes else half a second."""
EXAMPLES = Path(__file__).parents[2] / "trainer_images" / "digits"


class Silent(Seen):
    """A program that prints none of its steps."""

    def __init__(self, cluster: Pretended, namespace: str, pod: str) -> None:
        super().__init__(cluster, namespace, pod)
        self.seen = []


def measured(cluster: Pretended, name: str) -> list[Change]:
    done: list[Change] = []
    rescale_programs.measure(cluster, name, 1, done.append)  # type: ignore[arg-type]
    return done


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_has_its_example_with_these_options(name: str) -> None:
    kind = KINDS[name]
    made = kind.manifest("folder")
    command = made["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"]
    assert command[1] == f"/app/{kind.program}"
    tree = ast.parse((EXAMPLES / kind.program).read_text())
    known = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "parser.add_argument"
        and isinstance(node.args[0], ast.Constant)
    }
    assert {each.partition("=")[0] for each in command[2:]} <= known
    made["metadata"] |= {"namespace": "ns", "uid": "u", "resourceVersion": "1"}
    found = job_request(TFJob.parse(made))
    assert (found.elastic, found.stoppable) == (name != "keras-3", True)
    assert {type_: found.bounds(type_) for type_ in kind.sizes} == kind.sizes


def test_a_round_goes_up_and_down_or_moves_to_and_fro() -> None:
    assert KINDS["ps-own-loop"].round() == [("Worker", 3), ("PS", 2), ("Worker", 2), ("PS", 1)]
    assert KINDS["monitored-session"].round() == [("Worker", 2), ("Worker", 1)]
    assert KINDS["keras-3"].round() == [("Worker", 1), ("Worker", 1)]


def test_each_change_says_how_it_was_made_and_what_it_cost(clock: Clock) -> None:
    done = measured(Pretended(clock), "ps-own-loop")
    assert [each.change for each in done] == ["Worker 2->3", "PS 1->2", "Worker 3->2", "PS 2->1"]
    for each in done:
        assert (each.way, each.pause_s, each.lost_steps) == ("overlap, fork", PAUSE_S, 0)
        assert PREPARES_S <= each.first_step_s <= PREPARES_S + 1
        assert each.training_lost_s == pytest.approx(NONE_LOST_S, abs=0.1)


def test_a_program_that_stays_is_measured_by_its_own_clock(clock: Clock) -> None:
    done = measured(Pretended(clock, mode="live"), "ps-own-loop")
    assert {(each.way, each.pause_s, each.lost_steps) for each in done} == {("live", PAUSE_S, 0)}
    assert all(PREPARES_S <= each.first_step_s <= PREPARES_S + 1 for each in done)
    assert all(abs(each.training_lost_s or 0.0) <= PAUSE_S for each in done)


def test_pods_that_are_made_anew_have_no_interpreter_to_fork_from(clock: Clock) -> None:
    done = measured(Pretended(clock, mode="recreate", loses=15), "ps-own-loop")
    assert {(each.way, each.lost_steps) for each in done} == {("recreate", 15)}
    assert all(each.training_lost_s == pytest.approx(NONE_LOST_S + 15 / 10, abs=0.1) for each in done)


def test_a_job_of_one_size_goes_to_the_other_node_and_back(clock: Clock) -> None:
    cluster = Pretended(clock, nodes={"Worker": ["b"]}, mode="recreate", placed=False)
    done = measured(cluster, "keras-3")
    assert [each.change for each in done] == ["Worker to another node"] * 2
    written = [json.loads(words[-1].partition("=")[2]) for words in cluster.asked if "annotate" in words]
    assert [target["nodes"] for target in written] == [{"Worker": ["a"]}, {"Worker": ["b"]}]
    assert written[0]["replicas"] == written[0]["declared"] == {"Worker": 1}


def test_a_program_that_prints_no_steps_is_measured_by_the_jobs_state(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainee, "Lines", Silent)
    done = measured(Pretended(clock, nodes={"Worker": ["b"]}), "keras-worker")
    assert [each.change for each in done] == ["Worker 1->2", "Worker 2->1"]
    assert {(each.way, each.pause_s, each.lost_steps) for each in done} == {("overlap, fork", PAUSE_S, 0)}
    assert all(PREPARES_S <= each.first_step_s <= PREPARES_S + 1 for each in done)
    assert all(each.training_lost_s == pytest.approx(NONE_LOST_S, abs=0.6) for each in done)


def test_a_change_that_is_refused_says_why(clock: Clock) -> None:
    with pytest.raises(AssertionError, match="Worker 2->3 was refused: no room"):
        measured(Pretended(clock, refuses="no room"), "ps-own-loop")


CHANGES = [
    Change("Worker 1->2", "recreate", "", 20.0, 80, 31.0, 25.0),
    Change("Worker 2->1", "recreate", "", 10.0, 0, 30.0, 13.0),
    Change("Worker 1->2", "overlap", "exec", 0.5, None, 15.0, None),
]


def test_the_file_has_each_change_and_the_figures_by_way() -> None:
    found = results("own-checkpoints", CHANGES)
    assert found["program"] == "own_checkpoints_digits.py"
    assert found["changes"][2]["start"] == "exec"
    assert found["ways"]["recreate"] == {
        "n": 2,
        "pause_s": {"p50": 15.0, "p90": 19.0},
        "first_step_s": {"p50": 30.5, "p90": 30.9},
        "lost_steps": [0, 80],
        "training_lost_s": {"p50": 19.0, "p90": 23.8},
    }
    assert found["ways"]["overlap, exec"]["lost_steps"] == []
    assert "training_lost_s" not in found["ways"]["overlap, exec"]
    said = "Worker 1->2 by overlap, exec: 0.50 s, ? steps lost, first step after 15.0 s, ? s of training lost"
    assert str(CHANGES[2]) == said


def test_the_table() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table({"own-checkpoints": results("own-checkpoints", CHANGES)}))
    rows = [line.replace("│", " ").split() for line in console.export_text().splitlines()]
    own = ["own-checkpoints", "own_checkpoints_digits.py"]
    assert [*own, "recreate", "2", "15.00", "19.00", "19.0", "0", "to", "80", "30.5"] in rows
    assert [*own, "overlap,", "exec", "1", "0.50", "0.50", "15.0"] in rows


def test_programs_are_measured_instead_of_modes_and_kept_beside_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(_: object, name: str, times: int, tell: Any) -> None:
        assert times == 3
        tell(CHANGES[0])
        if name == "mirrored":
            raise AssertionError("no step")

    output = tmp_path / "rescale.json"
    bench_rescale.merge(output, ("modes", "overlap", "digits"), {"n": 1})
    monkeypatch.setattr(rescale_programs, "measure", measure)
    monkeypatch.setattr(bench_rescale, "ready", lambda: None)
    monkeypatch.setattr(bench_rescale, "operator", lambda *_: io.StringIO())
    arguments = ["--program", "mirrored,own-checkpoints", "--rescales", "3", "--output", str(output)]
    result = CliRunner().invoke(bench_rescale.main, arguments)
    assert result.exit_code == 0, result.output
    assert "✗ no step" in result.output
    assert "own-checkpoints: 1/6, Worker 1->2 by recreate: 20.00 s, 80 steps lost" in result.output
    found = json.loads(output.read_text())
    assert found["modes"] == {"overlap": {"digits": {"n": 1}}}
    assert found["programs"].keys() == {"mirrored", "own-checkpoints"}


def test_unknown_kinds_are_refused_and_all_may_be_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = CliRunner().invoke(bench_rescale.main, ["--program", "keras-4"])
    assert refused.exit_code == 2
    assert "unknown: keras-4" in refused.output
    named: list[str] = []
    monkeypatch.setattr(bench_rescale, "measure_programs", lambda programs, *_: named.extend(programs))
    CliRunner().invoke(bench_rescale.main, ["--program", "all"])
    assert named == list(KINDS)
