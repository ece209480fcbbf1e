"""The live benchmarks without a cluster: scenario files, what is read off objects, results, tables and plots."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console

import bench_deadline
import bench_dl2
import bench_kips
import bench_specon
from harness.api import Api
from harness.progress import Problem
from live import measure
from live.measure import allocated_cores, take_in
from live.results import Job, Run, Runs, changes, compared, losers, median_run, plot, read, table, write
from live.scenario import Arrival, ScenarioError, parse, read_all

BENCHMARKS = Path(bench_kips.__file__).parent
CPU = {"Chief": 50, "PS": 50, "Worker": 100}
JOB: dict[str, Any] = {"name": "a", "steps": 10, "cpu_m": CPU}


def run(operator: str, number: int = 1, *, scenario: str = "s", **jcts: float) -> Run:
    """A run whose jobs took so long and are due after 100 s; what took 900 s has not finished."""
    jobs = {name: Job(jct, jct < 900, deadline_s=100.0) for name, jct in jcts.items()}
    return Run(scenario, operator, number, jobs, max(jcts.values()), 0.5, 0.9)


def runs(*found: Run) -> Runs:
    made = Runs()
    for each in found:
        made.add(each)
    return made


def words(made: Runs, operators: tuple[str, ...]) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table("T", made, ["s"], operators))
    return console.export_text()


@pytest.mark.parametrize("folder", ["kips", "deadline", "specon", "dl2"])
def test_the_scenarios_of_the_benchmarks_are_read(folder: str) -> None:
    found = read_all(BENCHMARKS / "live" / folder)
    assert found
    for scenario in found.values():
        for job in scenario.jobs:
            manifest = job.manifest("ns", job.due_s({job.shape: 100.0}))
            assert manifest["metadata"]["name"] == job.name
            assert set(manifest["spec"]["tfReplicaSpecs"]) == {"Chief", "PS", "Worker"}


def test_kips_scenarios_are_those_that_were_measured_before() -> None:
    """Names, arrivals and steps that docs/benchmarks.md has figures of."""
    assert [(job.at_s, job.name, job.steps) for job in bench_kips.SCENARIOS["mixed"].jobs] == [
        (0, "long-small", 600),
        (5, "large", 800),
        (20, "short-a", 200),
        (40, "short-b", 200),
        (60, "middle", 400),
    ]
    assert bench_kips.SCENARIOS["deadlock"].jobs[1] == Arrival(
        2, "big-1", 500, worker=2, ps=2, cpu_m={"Chief": 60, "PS": 60, "Worker": 450}, max_worker=2
    )
    assert len(bench_kips.SCENARIOS["burst"].jobs) == 8


def test_deadlines_are_parts_of_the_time_alone_or_seconds() -> None:
    made = parse({"defaults": {"steps": 10, "cpu_m": CPU}, "jobs": [
        {"name": "a", "deadline": 0.7}, {"name": "b", "deadline_s": 60}, {"name": "c"},
    ]}, "f")  # fmt: skip
    a, b, c = made.jobs
    alone = {a.shape: 200.0}
    assert [job.due_s(alone) for job in made.jobs] == [140.0, 60.0, None]
    assert made.needs_alone == [a]
    assert a.shape == b.shape
    said = a.manifest("ns", a.due_s(alone))["metadata"]["annotations"]
    assert said["elastic.kubeflow.org/deadline"] == "140s"
    assert "elastic.kubeflow.org/deadline" not in c.manifest("ns", None)["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        ([], "an object is needed"),
        ({"jobs": [JOB], "period_ms": 0}, "period_ms: a whole number from 1 to 1000"),
        ({}, "jobs: a list"),
        ({"jobs": [{"name": "a"}]}, r"jobs\[0\]: name and steps"),
        ({"jobs": [{**JOB, "spets": 1}]}, "'spets' is not known"),
        ({"jobs": [{**JOB, "steps": "many"}]}, r"jobs\[0\].steps: a whole number"),
        ({"jobs": [{**JOB, "at_s": -1}]}, "at_s: a number"),
        ({"jobs": [{**JOB, "cpu_m": {"Chief": 1}}]}, "millicores of PS, Worker"),
        ({"jobs": [JOB, JOB]}, "two jobs are called a"),
        ({"jobs": [{**JOB, "deadline": 1, "deadline_s": 1}]}, "not both"),
        ({"jobs": [{**JOB, "limits": 1}]}, r"jobs\[0\].limits: true or false"),
        ({"jobs": [{**JOB, "at_most": 0}]}, r"jobs\[0\].at_most: more than 0 steps a second"),
        ({"jobs": [{**JOB, "at_most": "fast"}]}, r"jobs\[0\].at_most: a number"),
        ({"jobs": [{**JOB, "node": 3}]}, r"jobs\[0\].node: a whole number from 0 to 2"),
        ({"jobs": [JOB], "operators": ["kpis"]}, "operators: a list"),
        ({"jobs": [JOB], "config": {"nobody": {}}}, "'nobody' is not known"),
    ],
)
def test_wrong_files_are_told_with_their_place(raw: object, what: str) -> None:
    with pytest.raises(ScenarioError, match=what):
        parse(raw, "f")


@pytest.mark.parametrize("limits", [True, False])
def test_cpu_is_a_limit_unless_the_scenario_says_that_jobs_share(limits: bool) -> None:
    (job,) = parse({"jobs": [{**JOB, "limits": limits}]}, "f").jobs
    (container,) = job.manifest("ns")["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"] == "100m"
    assert container["resources"]["limits"].get("cpu") == ("100m" if limits else None)


def test_a_job_trains_as_fast_as_it_can_unless_the_scenario_bounds_it() -> None:
    free, bounded = parse({"jobs": [{**JOB, "name": "a"}, {**JOB, "name": "b", "at_most": 12.5}]}, "f").jobs
    arguments = [
        job.manifest("ns")["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]["containers"][0]["command"]
        for job in (free, bounded)
    ]
    assert "--at-most=12.5" in arguments[1]
    assert arguments[0] == [each for each in arguments[1] if not each.startswith("--at-most")]
    assert free.shape != bounded.shape


class Nodes:
    """An API server whose nodes have taints, and whose pods are bound one each time that somebody looks."""

    def __init__(self, *bound: str) -> None:
        self.taints: dict[str, object] = {}
        self.bound, self.looked = bound, 0

    async def merge(self, path: str, patch: dict[str, Any]) -> None:
        self.taints[path.rpartition("/")[2]] = patch["spec"]["taints"]

    async def items(self, _collection: str, **_params: str) -> tuple[list[dict[str, Any]], str]:
        self.looked += 1
        specs = [{"nodeName": name} if k < self.looked else {} for k, name in enumerate(self.bound)]
        return [{"spec": spec} for spec in specs], "1"


def test_while_a_job_is_placed_the_other_nodes_take_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SEEN_S", 0.0)
    server = Nodes()

    async def place() -> dict[str, object]:
        async with measure._only(cast("Api", server), ["a", "b", "c"], 1):
            return dict(server.taints)

    assert asyncio.run(place()) == {"a": [measure.TAINT], "b": None, "c": [measure.TAINT]}
    assert server.taints == {"a": None, "b": None, "c": None}


def test_a_job_is_placed_when_all_its_pods_are_bound_to_the_node() -> None:
    (job,) = parse({"jobs": [{**JOB, "node": 0}]}, "f").jobs
    server = Nodes("a", "a", "a")
    asyncio.run(measure._bound(cast("Api", server), "ns", job.manifest("ns"), "a"))
    assert server.looked == 3


def test_a_job_that_starts_elsewhere_ends_the_benchmark() -> None:
    (job,) = parse({"jobs": [{**JOB, "node": 0}]}, "f").jobs
    with pytest.raises(Problem, match="3 pods on a"):
        asyncio.run(measure._bound(cast("Api", Nodes("a", "b", "a")), "ns", job.manifest("ns"), "a"))


def test_a_jobs_end_and_rescales_are_read_from_its_object() -> None:
    jobs, done = {name: Job(0.0, False) for name in ("a", "b")}, {"b": 3.0}

    def item(name: str, kind: str, rescales: int) -> dict[str, Any]:
        state = json.dumps({"rescales": rescales})
        conditions = [{"type": kind, "status": "True", "message": "why"}, {"type": "Running", "status": "False"}]
        annotations = {"elastic.kubeflow.org/state": state}
        return {"metadata": {"name": name, "annotations": annotations}, "status": {"conditions": conditions}}

    take_in(item("a", "Failed", 2), jobs, done, 7.0)
    take_in(item("b", "Succeeded", 0), jobs, done, 9.0)
    assert (done, jobs["a"].failed, jobs["a"].rescales, jobs["b"].failed) == ({"a": 7.0, "b": 3.0}, "why", 2, "")


def test_allocated_cores_are_the_requests_of_all_containers() -> None:
    containers = [{"resources": {"requests": {"cpu": cpu}}} for cpu in ("250m", "1")]
    assert allocated_cores({"spec": {"containers": [*containers, {}]}}) == 1.25


def test_results_are_kept_and_added_to(tmp_path: Path) -> None:
    path = tmp_path / "bench" / "r.json"
    assert read(path) == Runs()
    before = runs(run("go", a=120, b=900), run("kips", 2, a=80, b=90))
    before.alone = {"shape": 110.0}
    write(path, before)
    assert read(path) == before
    raw = json.loads(path.read_text())["runs"][0]
    assert (raw["scenario"], raw["operator"], raw["run"], raw["met"]) == ("s", "go", 1, 0)
    assert [(j["name"], j["deadline_s"], j["finished_s"], j["met"]) for j in raw["jobs"]] == [
        ("a", 100.0, 120, False),
        ("b", 100.0, None, False),
    ]


def test_kips_json_keeps_its_names(tmp_path: Path) -> None:
    path = tmp_path / "kips.json"
    made = runs(run("go", a=120))
    bench_kips.write(path, made)
    raw = json.loads(path.read_text())["runs"][0]
    assert (raw["mode"], raw["jct_mean_s"], raw["jobs"]["a"]["jct_s"]) == ("go", 120, 120)
    assert bench_kips.read(path) == made
    for job in raw["jobs"].values():  # as files of before have it
        del job["deadline_s"], job["failed"]
    del raw["allocated_cpu_used"], raw["run"]
    path.write_text(json.dumps({"runs": [raw]}))
    assert bench_kips.read(path).of("s", "go")[0].jobs["a"].jct_s == 120


def test_losers_are_named_with_what_they_lose() -> None:
    go = [run("go", 1, a=100, b=100, c=100), run("go", 2, a=100, b=100, c=100)]
    ours = [run("kips", 1, a=50, b=120, c=101), run("kips", 2, a=50, b=140, c=103)]
    assert losers(ours, go) == {"b": pytest.approx(0.3)}
    assert changes(ours, go) == pytest.approx((564 / 600) - 1)
    assert changes(ours, []) is None
    text = words(runs(*go, *ours), ("go", "kips"))
    assert "slower: b +30%" in text
    assert "2/6" in text.replace(" ", "")


def test_best_and_worst_job_are_told_beside_mean_and_makespan() -> None:
    go = [run("go", 1, a=100, b=100), run("go", 2, a=100, b=200)]
    said = compared([run("specon", 1, a=60, b=165)], go)
    assert said == "best job -40.0% (a), mean -10.0%, makespan +10.0%, worst job +10.0% (b)"
    with pytest.raises(ValueError, match="no job"):
        compared([run("specon", 1, c=60)], go)


def test_the_specon_benchmark_compares_what_was_recorded(tmp_path: Path) -> None:
    names = [job.name for job in bench_specon.SCENARIOS["uneven"].jobs]
    made = Runs()
    for mode, jct in (("go", 200.0), ("specon", 150.0)):
        for k in (1, 2, 3):
            made.add(Run("uneven", mode, k, {name: Job(jct, True) for name in names}, jct, 0.9))
    write(tmp_path / "specon.json", made)
    shown = CliRunner().invoke(bench_specon.main, ["--output", str(tmp_path / "specon.json")])
    assert shown.exit_code == 0, shown.output
    assert "specon beside go: best job -25.0%" in shown.output
    assert "uneven: goals" in shown.output


def test_goals_of_deadline_are_judged_by_each_run() -> None:
    made = Runs()
    for mode, met in (("go", 3), ("deadline", 5)):
        jobs = {f"j{k}": Job(50.0 if k < met else 150.0, True, deadline_s=100.0) for k in range(6)}
        made.add(Run("scarce", mode, 1, jobs, 200.0, 0.9, 0.95))
    assert [met for _, _, met in bench_deadline.goals(made, "scarce")] == [True, True, True]
    late = {f"j{k}": Job(50.0 if k < 4 else 150.0, True, deadline_s=100.0) for k in range(6)}
    made.add(Run("scarce", "deadline", 2, late, 200.0, 0.9, 0.87))
    assert [met for _, _, met in bench_deadline.goals(made, "scarce")] == [False, False, True]
    assert bench_deadline.goals(made, "sufficient") == ()


def test_goals_of_specon_name_what_was_missed() -> None:
    made = Runs()
    for mode, jcts in (("go", (100.0, 100.0)), ("specon", (60.0, 116.0))):
        made.add(Run("uneven", mode, 1, {f"j{k}": Job(s, True) for k, s in enumerate(jcts)}, 90.0, 0.9))
    assert [met for _, _, met in bench_specon.goals(made, "uneven")] == [True, True, False, False]


def test_goals_of_dl2_need_all_operators_and_what_was_learned() -> None:
    noted = {"updates": [{"outcome": "refused"}, {"outcome": "accepted"}], "decision_s": [0.002, 0.004]}
    made = runs(run("drf", scenario="mixed", a=100, b=300), run("dl2", scenario="mixed", a=90, b=200))
    assert bench_dl2.goals(made, "mixed", noted) == ()
    made.add(run("optimus", scenario="mixed", a=95, b=180))
    found = {what: met for what, _, met in bench_dl2.goals(made, "mixed", noted)}
    assert found["mean JCT <= drf's"]
    assert not found["mean JCT <= optimus's"]
    assert found["an update from live experience is accepted"]
    assert found["mean decision of each call < 50 ms"]
    assert not {what: met for what, _, met in bench_dl2.goals(made, "mixed", {**noted, "updates": []})}[
        "an update from live experience is accepted"
    ]


def test_notes_of_dl2_are_kept_beside_later_runs(tmp_path: Path) -> None:
    output = tmp_path / "dl2.json"
    assert bench_dl2.noted(output) == {"updates": [], "decision_s": []}
    output.write_text(json.dumps({"runs": [], "updates": [{"outcome": "accepted"}], "decision_s": [0.01]}))
    bench_dl2.save(output, runs(run("drf", a=1.0)))
    assert bench_dl2.noted(output) == {"updates": [{"outcome": "accepted"}], "decision_s": [0.01]}
    assert read(output).of("s", "drf")


def test_goals_of_kips_need_all_scenarios() -> None:
    made = Runs()
    for name in bench_kips.SCENARIOS:
        assert bench_kips.goals(made) == ()
        made.add(Run(name, "go", 1, {"a": Job(100.0, True), "b": Job(100.0, True)}, 100.0, 0.9))
        made.add(Run(name, "kips", 1, {"a": Job(10.0, True), "b": Job(106.0, True)}, 100.0, 0.9))
    found = bench_kips.goals(made)
    assert [met for _, _, met in found] == [False, True, False]
    assert "b +6%" in found[2][1]


def test_unfinished_jobs_are_named_and_their_time_is_a_lower_bound() -> None:
    bad = run("kips", a=900, b=900)
    bad.jobs["b"].failed = "OOM"
    text = words(runs(run("go", a=100, b=90), bad), ("go", "kips"))
    assert "a, b (failed)" in text
    assert ">900" in text


def test_the_plot_has_a_bar_for_each_job_of_the_middle_run() -> None:
    made = runs(run("go", a=150, b=80), *(run("deadline", k, a=60 + k, b=900 if k == 3 else 95) for k in (1, 2, 3)))
    text = plot(made, ["s"], ("go", "deadline"))
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}rect")) == 1 + 4
    assert len(root.findall(f"{space}path")) == 4
    assert "deadline (run 2 of 3)" in text
    assert median_run(made.of("s", "deadline")).run == 2


def test_a_recorded_benchmark_is_shown_without_a_cluster(tmp_path: Path) -> None:
    """All runs are there, so nothing is measured: the table and the plot are made anew."""
    made = Runs()
    for name, scenario in bench_deadline.SCENARIOS.items():
        for mode in scenario.operators:
            for k in (1, 2, 3):
                jobs = {
                    job.name: Job(50.0 if mode == "deadline" else 150.0, True, deadline_s=100.0)
                    for job in scenario.jobs
                }
                made.add(Run(name, mode, k, jobs, 200.0, 0.5, 0.9))
    path = tmp_path / "deadline.json"
    write(path, made)
    shown = CliRunner().invoke(bench_deadline.main, ["--output", str(path)])
    assert shown.exit_code == 0, shown.output
    assert ElementTree.parse(path.with_suffix(".svg")).getroot().tag.endswith("svg")
    assert read(path) == made
    unknown = CliRunner().invoke(bench_deadline.main, ["--operators", "kpis"])
    assert unknown.exit_code == 2
    assert "unknown: kpis" in unknown.output


def test_a_name_cannot_break_the_plot() -> None:
    made = runs(Run("<s>", "go", 1, {"<a&b>": Job(0.0, False)}, 1.0, 0.1))
    assert ElementTree.fromstring(plot(made, ["<s>"], ("go",))) is not None
