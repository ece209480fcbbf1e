"""`export-trace`: TFJobs as a workload that `simulate` reads."""

from pathlib import Path
from typing import Any

import pytest

from elastic_tfjob.commands.files import as_csv
from elastic_tfjob.controller.query.rows.jobs import see
from elastic_tfjob.controller.query.rows.trace import trace_rows
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import CHIEF, PS, WORKER
from elastic_tfjob.simulation.formats import parse_csv
from elastic_tfjob.simulation.workload import WorkloadJob
from unit.query.build import RUNS, job, running, tfjob, waiting

ENDED = {**RUNS, "Succeeded": "2026-01-02T04:01:00Z"}
STEPS = {"max-workers": "4", "min-workers": "1", "checkpoint-dir": "/c", "total-steps": "1000"}


def ended(name: str = "e", **more: Any) -> dict[str, Any]:
    raw = tfjob(name, conditions=ENDED, **more)
    raw["status"]["completionTime"] = "2026-01-02T04:01:00Z"
    return raw


def at(raw: dict[str, Any], created: str) -> dict[str, Any]:
    raw["metadata"]["creationTimestamp"] = created
    return raw


def exported(*raws: dict[str, Any]) -> tuple[dict[str, WorkloadJob], dict[str, str]]:
    """What `simulate` reads of what was written, and what was left out."""
    rows, left_out = trace_rows(see(job(raw)) for raw in raws)
    jobs = parse_csv(as_csv(rows), "t.csv")[0].jobs if rows else ()
    return {each.key: each for each in jobs}, left_out


def test_a_job_that_has_ended_is_read_with_sizes_bounds_and_times() -> None:
    deadline = {"deadline": "2h", "model": "digits", "loanable": "true", "estimated-duration": "90m"}
    late = at(ended("late", annotations={**STEPS, **deadline}), "2026-01-02T02:00:00Z")
    jobs, left_out = exported(ended(), late)
    assert not left_out
    first, second = jobs["ns/late"], jobs["ns/e"]
    assert (first.submit_s, second.submit_s) == (0, 3600)
    assert (first.duration_s, first.deadline_s, first.estimated_s) == (3600, 7200, 5400)
    assert (first.model, first.loanable, second.loanable) == ("digits", True, False)
    groups = {group.type: group for group in first.groups}
    assert {name: (g.minimum, g.count, g.maximum) for name, g in groups.items()} == {
        WORKER: (1, 2, 4),
        PS: (1, 1, 1),
        CHIEF: (1, 1, 1),
    }
    # What the sidecar asks for is part of a pod.
    assert all(group.request.cpu_millicores >= 1000 for group in first.groups)


def test_durations_are_those_of_the_declared_size_where_its_speed_was_seen() -> None:
    state = {"phase": "Stable", "generation": 1, "replicas": {"Chief": 1, "PS": 1, "Worker": 4}}
    known = {**state, "speeds": {"1/2": 2.0, "1/4": 5.0}, "step": 1000, "total_steps": 1000}
    jobs, _ = exported(ended(state=known, annotations=STEPS))
    assert jobs["ns/e"].duration_s == 500
    jobs, _ = exported(ended(state={**known, "speeds": {"1/4": 5.0}}, annotations=STEPS))
    assert jobs["ns/e"].duration_s == 3600
    lent = {
        **known,
        "speed_conditions": {"1/2": [9000, 1000, 0]},
    }  # with more CPU than a worker of the declared size requests
    jobs, _ = exported(ended(state=lent, annotations=STEPS))
    assert jobs["ns/e"].duration_s == 3600


def test_a_job_that_runs_goes_by_its_speed_now_and_one_that_waits_by_what_is_said() -> None:
    jobs, left_out = exported(running("r"), waiting("w", annotations={"estimated-duration": "10m"}), waiting("x"))
    assert (jobs["ns/r"].duration_s, jobs["ns/w"].duration_s) == (200, 600)
    assert left_out == {"ns/x": "it has not ended, and its duration is unknown"}


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (tfjob(conditions={**RUNS, "Failed": "2026-01-02T04:00:00Z"}), "it failed"),
        (at(ended(), "yesterday"), "no creation time"),
        (ended(tfReplicaSpecs={"Chief": {"replicas": 1, "template": {"spec": {"containers": []}}}}), ""),
    ],
)
def test_jobs_that_cannot_be_exported_are_left_out_and_named(raw: dict[str, Any], why: str) -> None:
    jobs, left_out = exported(raw, ended("fine"))
    assert set(jobs) == {"ns/fine"}
    (said,) = left_out.values()
    assert why in said


def test_memory_and_cpu_survive(tmp_path: Path) -> None:
    jobs, _ = exported(ended(cpu="250m"))
    worker = next(group for group in jobs["ns/e"].groups if group.type == WORKER)
    assert worker.request == Resources(worker.request.cpu_millicores, worker.request.memory_bytes, 0)
    assert 250 <= worker.request.cpu_millicores < 400
