"""Nodes that are lost and added while a simulation runs: timelines worked out by hand."""

import math
from typing import Any

import pytest

from elastic_tfjob.api.scenario import parse_scenario
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Node, ReplicaGroup
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.event_queue import NodeChange
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.scenario import node_changes
from elastic_tfjob.simulation.speed_models.base import LINEAR
from elastic_tfjob.simulation.speed_models.cpu import CPU_SHARE, PS_CPU
from elastic_tfjob.simulation.workload import WorkloadJob

from .build import finishes, no_violation, simulate, work

COSTS = Costs(restart_s=((math.inf, 2),), migrate_s=100, rescale_s=100, checkpoint_interval_s=3)


def lost(at: float, name: str = "node-0") -> NodeChange:
    return NodeChange(at, name)


def there(at: float, name: str = "node-0", gpus: int = 1, cpus: float = 0) -> NodeChange:
    (node,) = uniform_cluster(1, gpus, cpus, 0)
    return NodeChange(at, name, Node(name, node.capacity, node.free))


@pytest.mark.parametrize("profile", ["fixed", "fifo", "srtf", "las", "drf", "kips"])
def test_a_job_goes_on_elsewhere_from_its_last_checkpoint(profile: str) -> None:
    """Of 4 s that it ran, 1 is lost: from 4 on it restarts for 2 and needs 7 more. It did not move of its own will."""
    outcome = simulate(
        profile, [work("a", 0, 10)], nodes=2, costs=COSTS, node_changes=[lost(4)], check=no_violation, trace=True
    )
    (record,) = outcome.records
    assert finishes(outcome) == {"a": 13}
    assert (record.lost_nodes, record.lost_steps, record.migrations, record.preemptions) == (1, 1, 0, 0)
    assert [(i.node, i.start_s, i.end_s) for i in outcome.intervals] == [("node-0", 0, 4), ("node-1", 4, 13)]


@pytest.mark.parametrize("profile", ["fifo", "kips"])
def test_a_job_without_room_elsewhere_waits_for_its_node(profile: str) -> None:
    """The node is away from 4 to 20; then a restart of 2, and 7 s of work."""
    outcome = simulate(profile, [work("a", 0, 10)], costs=COSTS, node_changes=[lost(4), there(20)], check=no_violation)
    assert finishes(outcome) == {"a": 29}
    assert outcome.records[0].executed_s == 29


def test_a_node_that_never_comes_back_ends_the_run() -> None:
    outcome = simulate("las", [work("a", 0, 10)], node_changes=[lost(4)], parameters={"interval_s": 60})
    assert finishes(outcome) == {"a": None}


def test_an_elastic_job_goes_on_with_what_is_left() -> None:
    """2 workers do 4 of 20 s of work in 2 s, of which 1 is lost, as the checkpoint is made after 3; one goes on."""
    jobs = [work("a", 0, 20, gpus=1, low=1, high=2)]
    costs = Costs(restart_s=((math.inf, 2),), checkpoint_interval_s=1.5)
    outcome = simulate(
        "drf", jobs, nodes=2, costs=costs, speed_model=LINEAR, node_changes=[lost(2)], check=no_violation
    )
    assert finishes(outcome) == {"a": 2 + 2 + 17}
    assert outcome.records[0].lost_steps == 1


def test_a_job_that_waits_starts_on_an_added_node() -> None:
    jobs = [work("a", 0, 10), work("b", 0, 10)]
    outcome = simulate("fifo", jobs, node_changes=[there(3, "node-9")], check=no_violation)
    assert finishes(outcome) == {"a": 10, "b": 13}


def test_accelerators_of_an_added_node_have_their_own_speed() -> None:
    fast = Node("fast", Resources(accelerators=1), Resources(accelerators=1), accelerator_speed=2.0)
    jobs = [work("a", 0, 10), work("b", 0, 10)]
    outcome = simulate("fifo", jobs, node_changes=[NodeChange(3, "fast", fast)])
    assert finishes(outcome) == {"a": 10, "b": 8}


def test_containers_share_what_is_left() -> None:
    """1 CPU each on two nodes; a loses its node at 2 and goes beside b, both at half speed: 3 left, and 2."""
    jobs = [work("a", 0, 5, cpu=100, cpu_demand=1.0), work("b", 0, 4, cpu=100, cpu_demand=1.0)]
    outcome = simulate(
        "fixed",
        jobs,
        nodes=2,
        gpus=2,
        cpus=1,
        speed_model=CPU_SHARE,
        parameters={"place": "spread"},
        node_changes=[lost(2)],
    )
    assert finishes(outcome) == {"a": 7, "b": 6}


def test_with_speed_that_follows_cpu_its_program_starts_anew() -> None:
    """A worker and a PS of 1 CPU each, on two nodes; starting costs 5 s of CPU: it trains from 5 on. Node 0 is lost at
    10, its replica is placed on node 2 and all start from nothing until 15; then the restart's 2 s, and the rest."""
    groups = (ReplicaGroup(PS, Resources(1000), 1, 1, 1), ReplicaGroup(WORKER, Resources(1000), 1, 1, 1))
    job = WorkloadJob("a", 0, groups, total_steps=1000.0, model="digits")
    costs = Costs(restart_s=((math.inf, 2),), boot_cpu_s=5)
    calm, robbed = (
        simulate("fixed", [job], nodes=3, cpus=1, gpus=0, speed_model=PS_CPU, costs=costs, node_changes=changes)
        for changes in ([], [lost(10)])
    )
    undisturbed = finishes(calm)["a"]
    assert undisturbed is not None
    assert finishes(robbed)["a"] == pytest.approx(undisturbed + 7)
    assert robbed.records[0].lost_nodes == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([lost(1), lost(2)], "node 'node-0' does not exist, so it cannot be lost at 2 s"),
        ([there(1)], "node 'node-0' already exists at 1 s"),
        ([lost(1, "node-7")], "node 'node-7' does not exist, so it cannot be lost at 1 s"),
    ],
)
def test_a_script_that_cannot_be_is_refused(changes: list[NodeChange], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        simulate("fifo", [work("a", 0, 1)], node_changes=changes)


KIND: dict[str, Any] = {"name": "k", "workers": {"count": 1, "gpus": 1}, "duration_s": 100}


def test_a_scenario_says_what_happens_to_nodes() -> None:
    nodes = [{"node": "node-0", "lost_s": 5, "back_s": 9}, {"node": "node-2", "added_s": 7}]
    scenario = parse_scenario({"jobs": 1, "mix": [KIND], "nodes": nodes})
    cluster = uniform_cluster(2, 1, 4, 8)
    changes = node_changes(scenario, cluster)
    assert [(change.at_s, change.name, change.node is not None) for change in changes] == [
        (5, "node-0", False),
        (9, "node-0", True),
        (7, "node-2", True),
    ]
    assert changes[1].node == cluster[0]
    assert changes[2].node is not None
    assert changes[2].node.capacity == cluster[0].capacity
    unknown = parse_scenario({"jobs": 1, "mix": [KIND], "nodes": [{"node": "node-5", "lost_s": 5}]})
    with pytest.raises(ValueError, match="node 'node-5' does not exist"):
        node_changes(unknown, cluster)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({}, "give added_s or lost_s"),
        ({"back_s": 3}, "give added_s or lost_s"),
        ({"added_s": 1, "back_s": 3}, "back_s needs lost_s"),
        ({"lost_s": 3, "back_s": 3}, "must be in rising order"),
        ({"lost_s": -1}, "greater than or equal to 0"),
    ],
)
def test_a_history_that_makes_no_sense_is_refused(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_scenario({"jobs": 1, "mix": [KIND], "nodes": [{"node": "n", **entry}]})


# -- Nodes that are drained before they go -----------------------------------------------------------------------------

EACH = Resources(1000)


def trains(n: int, low: int, ps: int = 1) -> WorkloadJob:
    """A PS and workers of 1 CPU each: they train from the moment at which their programs have started."""
    groups = (ReplicaGroup(PS, EACH, ps, ps, ps), ReplicaGroup(WORKER, EACH, n, low, n))
    return WorkloadJob("a", 0, groups, total_steps=20000.0, model="digits")


@pytest.mark.parametrize(
    ("notice_s", "low", "cpus", "met"),
    [
        (0, 1, 1, {}),
        (120, 1, 1, {"moved": 1}),
        (20, 1, 1, {"shrunk": 1}),
        (20, 2, 1, {"saved": 1}),
        (120, 1, 0, {"shrunk": 1}),
        (120, 2, 0, {"saved": 1}),
    ],
)
def test_with_a_notice_no_step_is_lost(notice_s: float, low: int, cpus: float, met: dict[str, int]) -> None:
    """The PS and two workers on three nodes, perhaps with a free one: what happens to the second worker, whose node
    is lost at 200. Without a notice it loses the steps since its checkpoint."""
    costs = Costs(restart_s=((math.inf, 2),), checkpoint_interval_s=70, boot_cpu_s=10, boot_kept_cpu_s=1)
    nodes = [Node(f"node-{k}", EACH, EACH) for k in range(3 + bool(cpus))]
    change = NodeChange(200, "node-2", notice_s=notice_s)
    chosen = build("elastic", parse_profile("elastic", {"lend": "none"}))
    later = there(700, "node-2", 0, 1)
    inputs = SimulationInput([trains(2, low)], nodes, PS_CPU, costs, node_changes=[change, later])
    outcome = Simulation(inputs, chosen, check=no_violation).run()
    (record,) = outcome.records
    assert dict(outcome.interruptions) == met
    assert (record.lost_steps > 0) == (not notice_s)
    assert record.finish_s is not None


def test_a_notice_in_a_scenario() -> None:
    text = {"jobs": 1, "mix": [{"name": "a", "workers": {"count": 1}, "duration_s": 1}]}
    scenario = parse_scenario({**text, "nodes": [{"node": "node-0", "lost_s": 50, "notice_s": 30}]})
    assert node_changes(scenario, uniform_cluster(1, 1, 0, 0)) == (NodeChange(50, "node-0", notice_s=30),)
    with pytest.raises(ValueError, match="notice_s needs lost_s"):
        parse_scenario({**text, "nodes": [{"node": "node-0", "added_s": 50, "notice_s": 30}]})
