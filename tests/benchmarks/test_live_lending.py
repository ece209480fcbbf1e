"""The live benchmark of loans without a cluster: its scenario, the service's curve, what is seen, figures and goals."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

import bench_aryl
import bench_elastic
from elastic_tfjob.controller.model.settings import Configuration
from harness import cluster
from harness.cluster import CONFIGS
from harness.load import Request
from live import beside_service
from live.lending import Chief, Figures, Seen, figures, goals, lost_s, percentile
from live.results import Job, Run
from live.results import judged as judged_goals
from live.scenario import ScenarioError
from live.service import SAMPLE, Service, generator, read_service

POOL = "elastic.kubeflow.org/pool"
SERVICE = {"curve": [[0, 0], [10, 0], [20, 20]], "per_replica": 8, "max_replicas": 2}
BEGIN = 1_700_000_000.0
FIGURES = Figures(
    queue_s={"a": 10.0, "b": 20.0},
    requests=100,
    failed=0,
    unserved=0,
    slow=0,
    latency_p50_s=0.01,
    latency_p99_s=0.1,
    recall_s=[5.0, 12.0],
    recalls_open=0,
    loaned_s=100.0,
    pending_s=[3.0],
    preempted={"a": 1},
    untold=0,
    lost_s=[4.0],
    errors=[],
)


def stamp(at: float) -> str:
    return f"2023-11-14T22:13:{20 + int(at - BEGIN):02d}Z"


def tfjob(name: str, *, at: float = BEGIN, namespace: str = "bench") -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace, "creationTimestamp": stamp(at)}
    return {"metadata": meta, "spec": {"tfReplicaSpecs": {"Chief": {}, "Worker": {}}}}


def job_pod(job: str, kind: str, uid: str, *, phase: str = "Running") -> dict[str, Any]:
    labels = {"training.kubeflow.org/job-name": job, "training.kubeflow.org/replica-type": kind}
    meta = {"name": f"{job}-{kind}-0", "namespace": "bench", "uid": uid, "labels": labels}
    return {"metadata": meta, "status": {"phase": phase}}


def server_pod(uid: str, *, node: str = "", ready: bool = False) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready)}]
    meta = {"name": uid, "namespace": "serving", "uid": uid}
    return {"metadata": meta, "spec": {"nodeName": node}, "status": {"conditions": conditions}}


def node(stage: str) -> dict[str, Any]:
    loan = {"elastic.kubeflow.org/loan": f'{{"stage": "{stage}"}}'} if stage else {}
    return {"metadata": {"name": "n", "annotations": loan}}


def stopped(job: str, name: str = "e", **more: Any) -> dict[str, Any]:
    about = {"kind": "TFJob", "name": job, "namespace": "bench"}
    return {"metadata": {"name": name}, "involvedObject": about, "reason": "Stopped", "message": "", **more}


def seen() -> Seen:
    return Seen("serving", BEGIN)


@pytest.mark.parametrize("mode", ["aryl", "aryl-alone"])
def test_the_configurations_of_the_scenarios_are_valid(mode: str) -> None:
    for scenario, _ in bench_aryl.SCENARIOS.values():
        found = Configuration.model_validate({"profile": mode, **scenario.config[mode]})
        assert found.profile == "aryl"
        assert bool(found.pools) == (mode == bench_aryl.LENDS)


def test_jobs_are_held_to_their_nodes_where_nothing_is_lent() -> None:
    (scenario, _) = bench_aryl.SCENARIOS["day"]
    for mode in bench_aryl.OPERATORS:
        for job in beside_service.placed(scenario, lends=mode == bench_aryl.LENDS).jobs:
            made = job.manifest("ns")
            loanable = made["metadata"]["annotations"].get("elastic.kubeflow.org/loanable") == "true"
            for replicas in made["spec"]["tfReplicaSpecs"].values():
                pod = replicas["template"]["spec"]
                assert (pod.get("nodeSelector") == {POOL: "training"}) == (mode != "aryl")
                assert ("priorityClassName" in pod) == (mode == "aryl" and loanable)
                assert "--report-every=5" in pod["containers"][0]["command"]


def test_some_job_is_bound_to_the_nodes_for_training() -> None:
    jobs = bench_aryl.SCENARIOS["day"][0].jobs
    assert {"loanable" in job.annotations for job in jobs} == {True, False}


def test_the_cluster_has_the_nodes_of_the_pools() -> None:
    nodes = yaml.safe_load(CONFIGS["loans"].read_text())["nodes"]
    pools = [each["labels"][POOL] for each in nodes if each["role"] == "worker"]
    assert pools == ["training", "training", "inference", "inference"]


@pytest.mark.parametrize(("cores", "offered_m"), [(2, 375), (64, 375), (1, 125)])
def test_workers_that_lend_offer_the_same_on_each_machine(
    cores: int, offered_m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert cluster._config("loans", stock=False).count(f"cpu={1000 * cores - offered_m}m") == 1


def test_the_sample_is_on_the_pool_and_ready_when_it_says_so() -> None:
    deployment, service, budget = yaml.safe_load_all(SAMPLE.read_text())
    pod, labels = deployment["spec"]["template"]["spec"], deployment["spec"]["template"]["metadata"]["labels"]
    assert pod["nodeSelector"] == {POOL: "inference"}
    assert pod["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/healthz"
    assert labels == service["spec"]["selector"] == budget["spec"]["selector"]["matchLabels"]


def test_replicas_follow_the_rate_of_the_moment() -> None:
    service = read_service(SERVICE, "f")
    assert [service.replicas(at) for at in (0, 10, 10.1, 14, 14.1, 20, 100)] == [0, 0, 1, 1, 2, 2, 2]


def test_the_generator_is_no_pod_of_the_pool() -> None:
    made = generator(Service(((0.0, 1.0), (5.0, 1.0)), 1.0, 1), "image")
    assert "node-role.kubernetes.io/control-plane" in made["spec"]["nodeSelector"]
    assert made["spec"]["containers"][0]["command"][-1] == "--curve=[[0.0,1.0],[5.0,1.0]]"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"curve": [[0, 1]]}, "points"),
        ({"curve": [[0, 1], [5]]}, "points"),
        ({"curve": [[0, 1], [5, 1e9]]}, "points"),
        ({"curve": [[0, 1], [5, True]]}, "points"),
        ({"curve": [[1, 1], [5, 1]]}, "from 0 on"),
        ({"curve": [[0, 1], [0, 1]]}, "rising"),
        ({"per_replica": 0}, "above 0"),
        ({"max_replicas": 1.5}, "whole number"),
        ({"replicas": 1}, "an object"),
    ],
)
def test_a_wrong_service_is_told(change: dict[str, Any], what: str) -> None:
    with pytest.raises(ScenarioError, match=what):
        read_service({**SERVICE, **change}, "f")


def test_a_job_has_queued_until_a_pod_of_each_of_its_types_runs() -> None:
    found = seen()
    found.tfjob(tfjob("a"), BEGIN + 1)
    found.pod(job_pod("a", "chief", "1"), BEGIN + 5)
    found.pod(job_pod("a", "worker", "2", phase="Pending"), BEGIN + 6)
    found.pod(job_pod("a", "worker", "2"), BEGIN + 9)
    found.tfjob(tfjob("waits"), BEGIN + 2)
    assert figures(found, [], BEGIN + 30).queue_s == {"a": 8.0, "waits": 28.0}


def test_jobs_of_an_earlier_run_are_left_out() -> None:
    found = seen()
    found.tfjob(tfjob("old", at=BEGIN - 5, namespace="before"), BEGIN)
    found.pod({**job_pod("old", "chief", "1"), "metadata": {"namespace": "before", "uid": "1"}}, BEGIN)
    assert (found.jobs, found.chiefs) == ({}, {})


def test_replicas_without_a_node_and_requests_while_one_is_up() -> None:
    found = seen()
    found.tfjob(tfjob("a"), BEGIN)
    found.pod(server_pod("s"), BEGIN)
    found.pod(server_pod("never"), BEGIN + 1)
    found.pod(server_pod("s", node="n"), BEGIN + 7)
    found.pod(server_pod("s", node="n", ready=True), BEGIN + 10)
    found.pod(server_pod("s", node="n"), BEGIN + 20)
    found.pod(server_pod("s", node="n"), BEGIN + 21, gone=True)
    at = {"before": 9, "spreads": 11, "up": 15, "after": 20}
    wrong = [Request(BEGIN + each, 0.1, name) for name, each in at.items()]
    made = figures(found, [*wrong, Request(BEGIN + 15, 3.0), Request(BEGIN + 15, 0.2)], BEGIN + 30)
    assert (made.pending_s, made.requests, made.failed, made.unserved, made.slow) == ([7.0, 29.0], 6, 1, 3, 1)
    assert (made.errors, made.latency_p50_s, made.latency_p99_s) == (["up"], 0.2, 3.0)


def test_recalls_last_until_the_node_has_come_back() -> None:
    found = seen()
    found.tfjob(tfjob("a"), BEGIN)
    for at, stage in ((0, ""), (5, "loaned"), (20, "recalled"), (21, "recalled"), (29, "returned"), (40, "loaned")):
        found.node(node(stage), BEGIN + at)
    found.node(node("recalled"), BEGIN + 50)
    made = figures(found, [], BEGIN + 60)
    assert (made.recall_s, made.recalls_open, made.loaned_s) == ([9.0, 10.0], 1, 25.0)


def test_a_stop_is_a_chief_that_comes_again_and_is_told_by_an_event() -> None:
    found = seen()
    for job in ("told", "untold"):
        found.tfjob(tfjob(job), BEGIN)
        for uid, at in (("1", 3), ("2", 30), ("3", 60)):
            found.pod(job_pod(job, "chief", job + uid), BEGIN + at)
    for event in (stopped("told", count=1), stopped("told", count=2), stopped("untold", count=None)):
        found.event(event)
    found.event({**stopped("untold", "other"), "reason": "Resumed"})
    made = figures(found, [], BEGIN + 90)
    assert (made.preempted, made.untold) == ({"told": 2, "untold": 2}, 1)
    for name, mode, untold in (("moved", "overlap", 1), ("made anew", "recreate", 0)):
        found.event({**stopped("untold", name), "reason": "Rescaling", "message": f"Worker 1 -> 2 ({mode}): why"})
        assert figures(found, [], BEGIN + 90).untold == untold


def chief(*lines: tuple[float, int, int]) -> Chief:
    return Chief("a", "a-chief-0", "bench", BEGIN, [(BEGIN + at, step, resumed) for at, step, resumed in lines])


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (chief((10, 5, 0), (20, 10, 0)), [chief((40, 15, 10))], 0.0),
        (chief((10, 5, 0), (20, 10, 0)), [chief((40, 15, 12))], 0.0),
        (chief((10, 5, 0), (20, 10, 0), (26, 15, 0)), [chief((40, 15, 12))], 6.0),
        (chief((10, 5, 0), (20, 10, 0)), [chief((40, 5, 0))], 20.0),
        (chief((10, 5, 0)), [chief()], None),
        (chief((10, 5, 0), (20, 10, 0)), [chief(), chief((40, 15, 10))], 0.0),
        (chief(), [chief()], 0.0),
    ],
)
def test_a_stop_costs_the_training_since_the_last_checkpoint(
    before: Chief, after: list[Chief], lost: float | None
) -> None:
    assert lost_s(before, after) == lost


def test_percentiles_are_values_that_were_measured() -> None:
    assert [percentile([3, 1, 2, 4], part) for part in (0.5, 0.75, 0.99)] == [2, 3, 4]
    assert percentile([], 0.99) is None


def judged(**change: Any) -> dict[str, bool]:
    slow = replace(FIGURES, queue_s={"a": 40.0, "b": 60.0})
    jcts = {"aryl": 100.0, "go": 160.0, "aryl-alone": 151.0}
    found = {"aryl": [replace(FIGURES, **change)], "go": [slow], "aryl-alone": [slow]}
    return {goal: met for goal, _, met in goals(found, jcts, "aryl", ["go", "aryl-alone"])}


def test_goals_that_are_reached() -> None:
    assert len(judged()) == 9
    assert all(judged().values())


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"recall_s": []}, "recall"),
        ({"recall_s": [21.0]}, "recall"),
        ({"failed": 1}, "failed"),
        ({"pending_s": [20.1]}, "without a node"),
        ({"untold": 1}, "told"),
        ({"lost_s": [31.0]}, "lost"),
        ({"lost_s": [1.0, None]}, "lost"),
    ],
)
def test_a_goal_that_is_missed(change: dict[str, Any], word: str) -> None:
    assert [word in goal for goal, met in judged(**change).items() if not met] == [True]


def test_a_ratio_below_the_goal_is_missed() -> None:
    missed = [goal for goal, met in judged(queue_s={"a": 34.0, "b": 34.0}).items() if not met]
    assert missed == ["queue against go >= 1.5x", "queue against aryl-alone >= 1.5x"]


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    results, path = beside_service.Results(), tmp_path / "bench" / "aryl.json"
    for mode in bench_aryl.OPERATORS:
        results.add(Run("day", mode, 1, {"a": Job(50.0, True)}, 60.0, 0.5, 0.9), FIGURES)
    assert bench_aryl.reached(beside_service.Results(), "day") == ()
    beside_service.write(path, results)
    again = beside_service.read(path)
    assert (again.runs, again.loans) == (results.runs, results.loans)
    assert beside_service.table(again, "day", bench_aryl.OPERATORS).row_count == 3
    assert judged_goals("day", bench_aryl.reached(again, "day")).row_count == 9


def test_curves_of_the_scenarios_end_with_nobody_asking() -> None:
    for _, service in (*bench_aryl.SCENARIOS.values(), *bench_elastic.SCENARIOS.values()):
        assert service.replicas(service.curve[-1][0]) == 0
        assert max(service.replicas(at) for at, _ in service.curve) == service.max_replicas
        assert all(a < b for (a, _), (b, _) in pairwise(service.curve))


@pytest.mark.parametrize("mode", bench_elastic.OPERATORS[1:])
def test_the_configurations_of_the_mix_are_valid(mode: str) -> None:
    for scenario, _ in bench_elastic.SCENARIOS.values():
        found = Configuration.model_validate({"profile": mode, **scenario.config.get(mode, {})})
        assert bool(found.pools) == (mode in bench_elastic.LENDING)


def test_the_mix_has_all_kinds_of_jobs() -> None:
    for scenario, _ in bench_elastic.SCENARIOS.values():
        jobs = scenario.jobs
        assert len(jobs) >= 10
        assert any(job.deadline for job in jobs)
        assert any(job.worker > 1 for job in jobs)
        assert {"loanable" in job.annotations for job in jobs} == {True, False}


def mix_run(operator: str, **jct_s: float) -> Run:
    return Run("mix", operator, 1, {name: Job(each, True, deadline_s=80.0) for name, each in jct_s.items()}, 90.0, 0.5)


@pytest.mark.parametrize(
    ("run", "loans", "missed"),
    [
        (mix_run("elastic", a=50.0, b=40.0), FIGURES, set()),
        (mix_run("elastic", a=60.0, b=70.0), FIGURES, {"mean JCT"}),
        (mix_run("elastic", a=10.0, b=81.0), FIGURES, {"all deadlines"}),
        (mix_run("elastic", a=10.0, b=40.0), replace(FIGURES, preempted={"a": 2}), {"stops"}),
        (mix_run("elastic", a=10.0, b=40.0), replace(FIGURES, recall_s=[21.0]), {"recall"}),
        (mix_run("elastic", a=10.0, b=40.0), replace(FIGURES, recalls_open=1), {"recall"}),
        (mix_run("elastic", a=10.0, b=40.0), replace(FIGURES, recall_s=[]), {"recall"}),
    ],
)
def test_goals_of_the_mix(run: Run, loans: Figures, missed: set[str]) -> None:
    found = bench_elastic.goals({"go": [mix_run("go", a=90.0, b=100.0)], "elastic": [run]}, [loans])
    assert {goal for goal, _, met in found if not met} == {
        goal for goal, _, _ in found if any(goal.startswith(word) for word in missed)
    }


def test_a_job_that_is_slower_than_under_go_is_named() -> None:
    found = bench_elastic.goals(
        {"go": [mix_run("go", a=30.0, b=200.0)], "elastic": [mix_run("elastic", a=40.0, b=40.0)]}, [FIGURES]
    )
    assert [(measured, met) for goal, measured, met in found if goal.startswith("no job")] == [("a +33%", False)]
