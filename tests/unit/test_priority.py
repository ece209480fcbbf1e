"""Which priority a job has: none that its pods would not have, too."""

from dataclasses import replace
from typing import Any

import pytest

from elastic_tfjob.controller.planning.round import assemble
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.profiles import PROFILES, build, parse_profile

from .build import NOW, job
from .test_snapshot import NODES, PREFIX, described, elastic_job, look

CRITICAL = "system-node-critical"
_EARLY, _LATER = "2026-01-02T03:00:00Z", "2026-01-02T03:02:00Z"
PRIORITIES = {CRITICAL: 2_000_001_000, "high": 100, "low": -5}


def types(**classes: tuple[int, str]) -> dict[str, Any]:
    """Replicas and PriorityClass by type."""
    containers = [{"name": "tensorflow", "image": "i", "resources": {"requests": {"cpu": "1500m"}}}]
    return {
        name: {
            "replicas": count,
            "template": {"spec": {"containers": containers, **({"priorityClassName": named} if named else {})}},
        }
        for name, (count, named) in classes.items()
    }


def of(classes: dict[str, tuple[int, str]], annotations: dict[str, str] | None = None, policy: str = "") -> int:
    said = {PREFIX + name: text for name, text in {"placement": "auto", **(annotations or {})}.items()}
    run = {"runPolicy": {"schedulingPolicy": {"priorityClass": policy}}} if policy else {}
    found = job(types(**classes), annotations=said, **run)
    return described(found, priorities=PRIORITIES).spec.priority


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ({"Worker": (2, "high")}, 100),
        ({"Worker": (2, "unknown")}, 0),
        ({"Worker": (2, ""), "Evaluator": (0, CRITICAL)}, 0),
        ({"Worker": (2, "high"), "Evaluator": (0, "low")}, 100),
        ({"Worker": (9, ""), "Evaluator": (1, CRITICAL)}, 0),
        ({"Worker": (2, "high"), "PS": (1, CRITICAL)}, 100),
        ({"Worker": (2, "high"), "PS": (1, "low")}, -5),
        ({"Evaluator": (0, CRITICAL)}, 0),
    ],
)
def test_the_least_of_the_types_that_have_pods_counts(classes: dict[str, tuple[int, str]], expected: int) -> None:
    assert of(classes) == expected


def test_a_type_that_may_grow_counts() -> None:
    classes = {"Worker": (2, "high"), "PS": (0, "low")}
    bounds = {"checkpoint-dir": "/c", "max-ps": "2"}
    assert of(classes, bounds) == -5
    assert of(classes, {"checkpoint-dir": "/c"}) == 100


def test_a_pod_without_a_class_has_the_default_one() -> None:
    spec = described(elastic_job(), priorities={"": 50, "high": 100}).spec
    assert spec.priority == 50


def test_the_class_of_the_gang_is_no_priority_of_pods() -> None:
    assert of({"Worker": (2, "")}, policy=CRITICAL) == 0


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "fixed"])
def test_no_job_comes_first_by_a_class_that_its_pods_do_not_have(profile: str) -> None:
    """Both fill the cluster; all orders take the same one, whatever the later one writes."""

    def starts(critical: bool) -> list[str]:
        said, extra = {PREFIX + "placement": "auto"}, {"Evaluator": (0, CRITICAL)} if critical else {}
        good = replace(job(types(Worker=(4, "")), annotations=said), name="a-good", uid="g", created=_EARLY)
        late = replace(job(types(Worker=(4, ""), **extra), annotations=said), name="late", uid="l", created=_LATER)
        found = [look(each, priorities=PRIORITIES) for each in (good, late)]
        settings = {"lend": "none"} if profile == "aryl" else {}
        plan = schedule(
            assemble(found, NODES, [], NOW.timestamp()),
            replace(build(profile, parse_profile(profile, settings)), repack=False),
        )
        return sorted(key for key, change in plan.changes.items() if any(change.replicas.values()))

    assert len(starts(critical=False)) == 1
    assert starts(critical=True) == starts(critical=False)
