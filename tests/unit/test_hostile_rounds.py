"""A round of any profile ends, and serves the others, whatever one job asks for."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.objects.cluster import Node
from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.schedule.scheduled_job import scheduled_job
from elastic_tfjob.controller.schedule.snapshot import assemble
from elastic_tfjob.controller.schedule.targets import decide
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.profiles import PROFILES, build, parse_profile
from elastic_tfjob.speed.utilisation import speedup

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NODES = {
    name: Node.parse(
        {
            "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
            "spec": {},
            "status": {
                "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )
    for name in ("n0", "n1", "n2")
}
DECIDING = [name for name in PROFILES if name != "fixed"]

NOBODY = {"checkpoint-dir": "/c", "min-workers": "0", "max-workers": "2"}
HOSTILE: dict[str, tuple[dict[str, str], dict[str, int], dict[str, str]]] = {
    "no-workers-declared": ({"checkpoint-dir": "/c"}, {"Worker": 0}, {"cpu": "100m"}),
    "no-room-and-nobody-will-do": (NOBODY, {"Worker": 1}, {"cpu": "9"}),
    "nobody-asked-for": ({**NOBODY, "target-workers": "0"}, {"Worker": 1}, {"cpu": "1"}),
    "more-memory-than-64-bits": ({"checkpoint-dir": "/c", "max-workers": "4"}, {"Worker": 2}, {"memory": "8Ei"}),
    "more-storage-than-64-bits": ({"max-workers": "1900"}, {"Worker": 2}, {"ephemeral-storage": "8Ei"}),
    "no-worker-type": ({"checkpoint-dir": "/c", "max-ps": "3"}, {"Chief": 1, "PS": 1}, {"cpu": "1"}),
}

HEAD_OF_LINE = ("fifo", "sjf")
"""Under these the first job that does not fit holds the others back: what they are for."""
FIT_NOWHERE = ("no-room-and-nobody-will-do", "more-memory-than-64-bits", "more-storage-than-64-bits")


def job(name: str, annotations: dict[str, str], types: dict[str, int], requests: dict[str, str]) -> Job:
    container = {"name": "tensorflow", "image": "i", "command": ["a"], "resources": {"requests": requests}}
    template = {"spec": {"containers": [container]}}
    metadata: dict[str, Any] = {
        "namespace": "ns",
        "name": name,
        "uid": name,
        "resourceVersion": "1",
        "annotations": {f"{PREFIX}{key}": value for key, value in annotations.items()},
        "creationTimestamp": "2026-01-02T03:04:00Z",
    }
    replicas = {type_: {"replicas": count, "template": template} for type_, count in types.items()}
    return Job.parse({"metadata": metadata, "spec": {"tfReplicaSpecs": replicas}, "status": {}})


@pytest.mark.timeout(120)
@pytest.mark.parametrize("profile", DECIDING)
@pytest.mark.parametrize("asks", HOSTILE)
def test_the_round_ends_and_the_other_job_starts(profile: str, asks: str) -> None:
    found = {
        f"ns/{made.name}": scheduled_job(made, (), nodes=NODES, now=NOW, all_jobs=True, reports={})
        for made in (
            job("a-hostile", *HOSTILE[asks]),
            job("good", {"checkpoint-dir": "/c", "max-workers": "3"}, {"PS": 1, "Worker": 1}, {"cpu": "1"}),
        )
    }
    settings = {"lend": "none"} if profile == "aryl" else {}
    built = replace(build(profile, parse_profile(profile, settings)), repack=False)
    plan = schedule(assemble(found.values(), NODES, [], NOW.timestamp()), built)
    if profile not in HEAD_OF_LINE or asks not in FIT_NOWHERE:
        assert sum(plan.changes["ns/good"].replicas.values()) >= 2
    decide(plan, {key: each for key, each in found.items() if each.job is not None})


def test_a_type_that_would_get_no_cpu_tells_no_speed() -> None:
    assert speedup({"Worker": 0.9}, {"Worker": 0.0}) == 1
