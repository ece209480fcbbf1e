"""Scenarios on a real kind cluster with the operator deployed: `make e2e`.

A test gets `jobs`: a namespace of its own, and kubectl in it. The cluster stays when the tests are done. With MONKEY=1
two replicas of the operator run, and the one that leads is killed every 30 s.
"""

import contextlib
import json
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pytest

from harness.cluster import Cluster
from harness.deploy import DEPLOYMENT, NAMESPACE, deploy, operator_log, wait_ready
from harness.jobs import Jobs
from harness.progress import CommandFailed
from harness.told import pytest_runtest_logreport  # noqa: F401 - a hook

KILL_EVERY_S = 30
SPARED = threading.Event()
"""Set while no leader is killed."""
LEFT_OUT = pytest.StashKey[list[str]]()
"""Scenarios that the command line leaves out."""
KILLS = pytest.StashKey[str]()
"""How many leaders were killed, in words."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "last: runs after all others, to judge what they left")
    config.addinivalue_line("markers", "one_leader: what it tests needs an operator that leads for longer than 30 s")


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Those that `make e2e` plays, and this run does not."""
    for item in items:
        if item.get_closest_marker("people") is None:
            item.config.stash.setdefault(LEFT_OUT, []).append(item.nodeid)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if KILLS in config.stash:
        terminalreporter.write_line(config.stash[KILLS])


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    deployed = deploy()
    with killing_leaders(deployed, pytestconfig) if os.environ.get("MONKEY") == "1" else contextlib.nullcontext():
        yield deployed


@contextlib.contextmanager
def killing_leaders(cluster: Cluster, config: pytest.Config) -> Iterator[None]:
    """Two replicas, of which the leader gets SIGKILL every 30 s: its lease is not given back, so the other one leads
    when it has run out."""
    cluster.kubectl("-n", NAMESPACE, "scale", DEPLOYMENT, "--replicas=2")
    wait_ready(cluster)
    over = threading.Event()
    killed: list[bool] = []
    killer = threading.Thread(target=_kill_leaders, args=(cluster, over, killed), daemon=True)
    killer.start()
    try:
        yield
        config.stash[KILLS] = f"{sum(killed)} leaders were killed; {len(killed)} should have been, one every 30 s"
        # Half of them at least: for up to 15 s after a kill nobody leads.
        assert sum(killed) >= len(killed) // 2, config.stash[KILLS]
    finally:
        over.set()
        killer.join(timeout=60)
        cluster.kubectl("-n", NAMESPACE, "scale", DEPLOYMENT, "--replicas=1")
        wait_ready(cluster)


def _kill_leaders(cluster: Cluster, over: threading.Event, killed: list[bool]) -> None:
    """`killed`: each time that a leader should be killed, whether one was."""
    lease = "lease/elastic-tfjob-operator"
    while not over.wait(KILL_EVERY_S):
        if SPARED.is_set():
            continue
        killed.append(False)
        with contextlib.suppress(CommandFailed):  # nobody leads at the moment
            held = json.loads(cluster.kubectl("-n", NAMESPACE, "get", lease, "-o", "json"))["spec"]
            pod = held.get("holderIdentity", "").rpartition("_")[0]
            if pod:
                cluster.kill_pod(NAMESPACE, pod)
                killed[-1] = True
                # Or kubelet would wait longer each time before it starts the container again.
                cluster.kubectl("-n", NAMESPACE, "delete", "pod", pod, "--wait=false")


@pytest.fixture(scope="session", autouse=True)
def begun(cluster: Cluster) -> datetime:
    """When the operator of today's sources was ready: what is older in logs may be another one's."""
    return datetime.now(UTC)


@pytest.fixture(autouse=True)
def leader_lives(request: pytest.FixtureRequest) -> Iterator[None]:
    """Under MONKEY=1 the leader is not killed in a test that is marked so."""
    if request.node.get_closest_marker("one_leader") is not None:
        SPARED.set()
    yield
    SPARED.clear()


@pytest.fixture
def jobs(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Jobs]:
    namespace = "e2e-" + uuid.uuid4().hex[:8]
    cluster.kubectl("create", "namespace", namespace)
    yield Jobs(cluster, namespace)
    if request.session.testsfailed:
        with contextlib.suppress(CommandFailed):  # a new one is about to start
            print(operator_log(cluster, tail=40))
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")
