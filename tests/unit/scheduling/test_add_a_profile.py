"""What docs/add-a-profile.md says works as it stands there: in a plan, in the simulator, and live; with all that the
tests ask of a profile of this repository."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube.configuration import LiveConfiguration
from elastic_tfjob.controller.model.annotations import TARGET_ANNOTATION
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.quantities import CpuAsked
from elastic_tfjob.controller.model.settings import Configuration
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning.round import ObservedJob, PlannedRound, describe_all, plan_round
from elastic_tfjob.scheduling.profiles import PROFILES, build, parse_profile
from elastic_tfjob.scheduling.reasons import WORDS
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import NOTHING_LEARNED
from unit.build import Recorder

from ..build import NOW, pod
from ..simulation.build import finishes, simulate, work
from ..test_scheduler import World, tfjob
from ..test_snapshot import node as live_node
from .build import job, node, plan, sizes, workers
from .invariants import violations

PAGE = Path(__file__).resolve().parents[3] / "docs" / "add-a-profile.md"


def blocks() -> list[str]:
    """The page's module, its test, and the lines of the module in this repository."""
    found: list[str] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return found


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The page's module with the lines that it needs in this repository."""
    source, _, lines = blocks()
    (with_code,) = re.findall(r"^(why = .+)  #", lines, re.MULTILINE)
    source, replaced = re.subn(r"why = .+$", with_code, source, flags=re.MULTILINE)
    assert replaced == 1
    made: dict[str, Any] = {"__name__": "small_first"}
    exec(source, made)
    tables: dict[str, Any] = {"PROFILES": PROFILES, "WORDS": WORDS}
    for table, name, value in re.findall(r'^([A-Z]+) = \{\.\.\., "(.+?)": (.+)\}  #', lines, re.MULTILINE):
        monkeypatch.setitem(tables[table], name, eval(value, made))
    return made


def test_the_profile_of_the_page_decides() -> None:
    jobs = [
        job("wide", workers(4), at=0),
        job("small", workers(1), at=1),
        job("large", workers(9), at=2, on={"Worker": ("n",) * 9}),
    ]
    decided = plan("small-first", [node("n", gpus=10)], jobs)
    assert violations(decided) == []
    assert sizes(decided) == {"small": 1, "wide": 4}
    assert sizes(plan("small-first", [node("n", gpus=10)], jobs, most=9)) == {"small": 1, "large": 9}


def test_the_profiles_reasons_have_codes_and_words() -> None:
    """As test_reasons asks of each profile; the page's second block has the words."""
    jobs = [job("wide", workers(4), at=0), job("large", workers(9), at=2, on={"Worker": ("n",) * 9})]
    decided = plan("small-first", [node("n", gpus=10)], jobs)
    assert {key: target.why.code for key, target in decided.changes.items()} == {"large": "large", "wide": "fits"}
    assert str(decided.changes["large"].why) == "has more than 8 replicas, and others wait"
    assert decided.waiting["large"].code == "short"


def test_the_profiles_parameters_have_bounds_and_its_needs_follow_them() -> None:
    with pytest.raises(ValueError, match=r"small-first\.most.*greater than or equal to 1"):
        parse_profile("small-first", {"most": 0})
    assert build("small-first", parse_profile("small-first", {"oracle": True})).needs == {
        *("stop", "resize", "samples", "oracle"),
    }


def test_the_test_of_the_page_passes() -> None:
    made: dict[str, Any] = {}
    exec(blocks()[1], made)
    (test,) = (made[name] for name in made if name.startswith("test_"))
    test()


def test_a_job_that_can_shrink_is_not_stopped() -> None:
    jobs = [job("small", workers(1), at=1), job("large", workers(9, low=3), at=2, on={"Worker": ("n",) * 9})]
    decided = plan("small-first", [node("n", gpus=9)], jobs)
    assert violations(decided) == []
    assert sizes(decided) == {"small": 1, "large": 3}
    assert str(decided.changes["large"].why) == "Worker 9 -> 3: has more than 8 replicas, and others wait"


def test_the_profile_runs_in_the_simulator() -> None:
    outcome = simulate("small-first", [work("wide", 0, 10, gpus=2), work("small", 0, 5)], gpus=2)
    assert finishes(outcome) == {"small": 5, "wide": 15}


# Live


def live_job(name: str, size: int, **annotations: Any) -> dict[str, Any]:
    """A TFJob of workers of one core, which can be stopped."""
    made = tfjob(name, checkpoint_dir="/c", inject="none", **annotations)
    made["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = size
    return made


def live_round(*jobs: dict[str, Any], running: Mapping[str, int] | None = None, **parameters: Any) -> PlannedRound:
    """One round of the live loop on a node of ten cores, where jobs have so many `running` workers: what it writes."""
    configuration = Configuration(profile="small-first", profiles={"small-first": parameters})
    nodes = {"n": live_node("n", "10")}
    seen = {}
    for raw in jobs:
        found = TFJob.parse(raw)
        pods = (
            replace(
                pod("worker", index, owner=found.uid),
                name=f"{found.name}-worker-{index}",
                uid=f"{found.name}-{index}",
                job=found.name,
                node="n",
                requests=Resources(1000, pods=1),
                cpu=CpuAsked(1000, 0),
            )
            for index in range((running or {}).get(found.name, 0))
        )
        seen[found.namespace, found.name] = ObservedJob(found, tuple(pods), {}, None, {})
    described = describe_all(seen, nodes, NOW, False, {}, cordoned={})
    assert [each.error for each in described.values() if each.error is not None] == []
    return plan_round(
        {"/".join(key): each.found for key, each in described.items()},
        nodes,
        [],
        replace(build(configuration.profile, configuration.parameters), repack=False),
        now_s=NOW.timestamp(),
        previous=None,
        history=NOTHING_LEARNED,
    )


def running(size: int) -> dict[str, Any]:
    """What the operator has written of a job that runs with so many workers."""
    return {
        "target": {
            "generation": 0,
            "replicas": {"Worker": size},
            "nodes": {"Worker": ["n"] * size},
            "declared": {"Worker": size},
        },
        "state": {"phase": "Stable", "generation": 0, "replicas": {"Worker": size}, "nodes": {"Worker": ["n"] * size}},
    }


def written(raw: dict[str, Any], target: Target) -> dict[str, Any]:
    """The job with a target that the loop has written."""
    metadata = raw["metadata"]
    return {
        **raw,
        "metadata": {**metadata, "annotations": {**metadata["annotations"], TARGET_ANNOTATION: target.to_json()}},
    }


def test_the_profile_decides_live() -> None:
    """As in a plan; but who takes the place of one that stops gets it once that one is gone."""
    large, wide, small = live_job("large", 9, **running(9)), live_job("wide", 4), live_job("small", 1)
    first = live_round(large, wide, small, running={"large": 9})
    assert (first.failed, set(first.targets)) == ({}, {"ns/large", "ns/wide", "ns/small"})
    assert first.targets["ns/small"].replicas == {"Worker": 1}
    stopped = first.targets["ns/large"]
    assert (stopped.replicas, stopped.generation) == ({}, 1)
    assert "has more than 8 replicas, and others wait" in str(stopped.reason)
    assert first.targets["ns/wide"].replicas == {}

    state = {"phase": "Waiting", "generation": 1, "replicas": {}, "since": "2026-01-02T03:04:05Z"}
    gone = written(live_job("large", 9, state=state), stopped)
    small = written(small, first.targets["ns/small"])
    second = live_round(gone, written(wide, first.targets["ns/wide"]), small, running={"small": 1})
    assert second.targets["ns/wide"].nodes == {"Worker": ("n",) * 4}
    assert second.targets["ns/wide"].generation == 0


def test_live_its_parameters_hold_and_what_has_not_changed_is_not_decided_again() -> None:
    large, wide = live_job("large", 9, **running(9)), live_job("wide", 4)
    first = live_round(large, wide, running={"large": 9}, most=9)
    assert {key: target.replicas for key, target in first.targets.items()} == {"ns/wide": {}}
    assert str(first.targets["ns/wide"].reason) == "needs 4 CPU, 1 free"
    assert live_round(large, written(wide, first.targets["ns/wide"]), running={"large": 9}, most=9).targets == {}


async def test_the_live_loop_follows_it() -> None:
    world = World([live_job("wide", 4), live_job("small", 1)], configuration=read_configuration("{most: 3}"))
    async with world.running():
        await world.until(lambda: set(world.server.targets) == {"wide", "small"})
    assert {name: target.replicas for name, target in world.server.targets.items()} == {
        "wide": {"Worker": 4},
        "small": {"Worker": 1},
    }
    assert world.events == []


def configured(parameters: str) -> tuple[list[Configuration], list[Event]]:
    """What the operator takes of a ConfigMap that chooses the profile, and what it says of it."""
    told, taken = Recorder(), list[Configuration]()
    nobody: Any = None  # the API server is not asked
    live = LiveConfiguration(nobody, "ns/name", told, taken.append)  # type: ignore[arg-type]
    assert live.informer is not None
    metadata = {"namespace": "ns", "name": "name", "uid": "u", "resourceVersion": "1"}
    text = f"profile: small-first\nprofiles: {{small-first: {parameters}}}"
    live.informer.seen({"metadata": metadata, "data": {"config.yaml": text}})
    return taken, told.events


def read_configuration(parameters: str) -> Configuration:
    (found,), events = configured(parameters)
    assert events == []
    return found


def test_a_config_map_may_choose_it() -> None:
    found = read_configuration("{most: 3}")
    assert (found.profile, found.parameters.model_dump()["most"]) == ("small-first", 3)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("{most: 0}", "small-first.most"),
        ("{fewest: 1}", "small-first.fewest"),
        ("{oracle: true}", "profiles.small-first.oracle: only a simulation knows the true values"),
        ("{place: count}", "profiles.small-first.place: count is allowed in simulations only"),
        ("{lend: offered}", "profiles.small-first.lend: borrowing needs pools, and none is configured"),
    ],
)
def test_a_config_map_that_asks_it_for_what_a_live_cluster_lacks_is_refused(parameters: str, said: str) -> None:
    taken, (event,) = configured(parameters)
    assert taken == []
    assert (event.type, event.reason) == ("Warning", "InvalidConfiguration")
    assert said in event.message
    assert event.message.endswith("Still in use: profile fixed.")


def test_a_profile_that_cannot_do_without_it_is_refused(
    module: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its parameters say, if the page's `needs("stop")` is `needs("stop", "oracle")`."""
    parameters = module["SmallFirstParameters"]
    stages = parameters.stages
    monkeypatch.setattr(parameters, "stages", lambda self: replace(stages(self), needs=stages(self).needs | {"oracle"}))
    taken, (event,) = configured("{most: 3}")
    assert taken == []
    assert "profiles.small-first: only a simulation knows the true values" in event.message


def test_every_module_that_the_page_names_exists() -> None:
    root = PAGE.parents[1] / "operator" / "elastic_tfjob"
    found = re.findall(r"`((?:scheduling|speed)/[a-z_/]*(?:\.py)?)`", PAGE.read_text())
    assert len(found) > 10
    for name in found:
        assert (root / name).exists(), name
