"""Servers that a resize or move leaves behind: they end soon, but not before their values are saved."""

from dataclasses import replace

import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.target import Target
from unit.pretend import Cluster, started

BOUNDS = {f"{PREFIX}checkpoint-dir": "/c", f"{PREFIX}min-workers": "1", f"{PREFIX}max-ps": "4", f"{PREFIX}min-ps": "1"}


def _started(live: bool = False, restart: str = "OnFailure", **types: int) -> Cluster:
    cluster = started(types={"Chief": 1, "PS": 1, "Worker": 2, **types}, annotations=dict(BOUNDS), restart=restart)
    cluster.launchers["j-chief-0"].gives = True
    if live:
        cluster.modes = ("live", "overlap", "spare")
    return cluster


def _move(cluster: Cluster, generation: int, **nodes: str) -> None:
    where = {name: (nodes.get(name, "any"),) * count for name, count in cluster.types.items()}
    target = Target(generation, dict(cluster.types), where, {}, "nearer", dict(cluster.types))
    cluster.annotations[f"{PREFIX}target"] = target.to_json()


def _ending(cluster: Cluster) -> dict[str, Pod]:
    return {name: pod for name, pod in cluster.pods.items() if pod.terminating}


def _first_ending(cluster: Cluster, rounds: int = 30) -> dict[str, Pod]:
    for _ in range(rounds):
        cluster.reconcile()
        if found := _ending(cluster):
            return found
        cluster.tick()
    raise AssertionError(f"no pod ends: {cluster.state}")


def test_an_evaluator_keeps_its_grace_period() -> None:
    cluster = _started(live=True, Evaluator=1)
    cluster.launchers["j-chief-0"].gives = False
    _move(cluster, 1, Evaluator="other")
    assert _first_ending(cluster)["j-evaluator-0"].grace_s == 30


def test_workers_without_parameter_servers_keep_theirs() -> None:
    cluster = started(types={"Worker": 3}, annotations=dict(BOUNDS))
    cluster.target(1, Worker=2)
    assert _first_ending(cluster)["j-worker-2"].grace_s == 30


def test_all_servers_move_while_values_are_saved() -> None:
    """Only the chief's pod stays, so no other one tells of the generation before."""
    cluster = _started(Worker=1)
    _move(cluster, 1, PS="other", Worker="other")
    for _ in range(30):
        cluster.reconcile()
        assert not (cluster.launchers["j-chief-0"].handing_over and cluster.pods["j-ps-0"].terminating)
        cluster.tick()
    assert cluster.state.phase == "Switching"


def test_a_new_operator_hears_the_chief_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = _started(PS=2)
    cluster.target(1, PS=1)
    cluster.until("Switching")
    cluster.run(20)
    cluster.listens_since = cluster.now
    everybody = cluster.reports
    with monkeypatch.context() as patched:
        patched.setattr(cluster, "reports", lambda: {"j-chief-0": everybody()["j-chief-0"]})
        cluster.reconcile()
    for _ in range(3):
        cluster.tick()
        cluster.reconcile()
        assert cluster.state.phase == "Switching"
        assert not _ending(cluster)
        assert cluster.running["ps-0"] == 0, "the old server runs on"


@pytest.mark.parametrize("moves", [False, True])
def test_the_chief_ends_first_when_the_new_program_hangs(moves: bool) -> None:
    cluster = _started(PS=2)
    cluster.hangs = {1}
    if moves:
        _move(cluster, 1, PS="other")
    else:
        cluster.target(1, PS=1)
    cluster.until("Switching")
    assert set(_first_ending(cluster, 900)) == {"j-chief-0"}


def test_the_chief_ends_first_when_a_server_that_moved_before_moves_again_and_fails() -> None:
    """The server with the values is in neither size by its index."""
    cluster = _started(restart="Never")
    _move(cluster, 1, PS="other")
    cluster.run(60)
    cluster.launchers["j-chief-0"].handing_over = False
    cluster.run(10)
    assert cluster.state.indexes == {"PS": (1,)}
    cluster.launchers["j-chief-0"].gives, cluster.hangs = True, {2}
    _move(cluster, 2)
    cluster.until("Switching")
    cluster.tick()
    cluster.pods["j-ps-0"] = replace(cluster.pods["j-ps-0"], phase="Failed", exit_code=1)
    assert set(_first_ending(cluster)) == {"j-chief-0"}


@pytest.mark.parametrize("after", [3, 12, 16, 25])
def test_a_worker_comes_back_while_a_slow_node_ends_its_pod(after: int) -> None:
    cluster = _started(live=True)
    cluster.target(1, Worker=1)
    _first_ending(cluster)
    left, launcher, begun = cluster.pods["j-worker-1"], cluster.launchers["j-worker-1"], cluster.now

    def tick() -> None:
        cluster.tick()
        if (cluster.now - begun).total_seconds() < 28:
            cluster.pods["j-worker-1"], cluster.launchers["j-worker-1"] = left, launcher

    for _ in range(after):
        tick()
        cluster.reconcile()
    cluster.target(2, Worker=2)
    for _ in range(60):
        cluster.reconcile()
        tick()
    assert (cluster.state.refused, cluster.state.replicas["Worker"]) == (None, 2)


def test_a_pod_that_is_kept_after_its_end_is_named() -> None:
    """By a finalizer, for example."""
    cluster = _started(live=True)
    cluster.target(1, Worker=1)
    left = _first_ending(cluster)["j-worker-1"]
    launcher = cluster.launchers["j-worker-1"]
    cluster.target(2, Worker=2)
    for _ in range(400):
        cluster.reconcile()
        cluster.tick()
        cluster.pods["j-worker-1"] = replace(left, phase="Failed", exit_code=143)
        cluster.launchers["j-worker-1"] = launcher
        if cluster.state.refused is not None:
            break
    assert cluster.state.refused is not None
    assert "worker-1 (its old pod has not ended)" in str(cluster.state.refused.reason)


def test_an_added_server_that_ends_is_not_used() -> None:
    cluster = _started(PS=2)
    cluster.launchers["j-worker-0"].waits = True
    cluster.target(1, PS=3)
    cluster.run(6)
    prepared = cluster.launchers["j-ps-2"].prepared
    assert prepared is not None
    assert prepared.state == "ready"
    drained, launcher = cluster.pods["j-ps-2"], cluster.launchers["j-ps-2"]
    cluster.launchers["j-worker-0"].waits = False
    for _ in range(8):
        cluster.pods["j-ps-2"] = replace(drained, terminating=True, ends_at="2026-01-02T03:05:00Z")
        cluster.launchers["j-ps-2"] = launcher
        cluster.reconcile()
        assert cluster.state.phase == "Preparing"
        cluster.tick()
