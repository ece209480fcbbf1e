"""Scenarios on a real kind cluster with the operator deployed: `make e2e`, and all of them `make e2e-all`.

A test gets `jobs`: a namespace of its own, and kubectl in it. The cluster stays when the tests are done. Two processes
play them: those marked `beside` with each other, first, and each of the others alone. With MONKEY=1 there is one
process, two replicas of the operator run, and the one that leads is killed every 30 s.
"""

import contextlib
import fcntl
import json
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.cluster import Cluster
from harness.deploy import DEPLOYMENT, NAMESPACE, deploy, operator_log, wait_ready
from harness.jobs import Jobs
from harness.progress import CommandFailed
from harness.shared import Facts, Shared, run_folder
from harness.told import pytest_runtest_logreport  # noqa: F401 - a hook

KILL_EVERY_S = 30
OTHERS_S = 2400.0
"""The scenarios of another process take no longer once this one has played all of its own."""
SPARED = threading.Event()
"""Set while no leader is killed."""
LEFT_OUT = pytest.StashKey[list[str]]()
"""Scenarios that the command line leaves out."""
KILLS = pytest.StashKey[str]()
"""How many leaders were killed, in words."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "last: runs after all others, to judge what they left")
    config.addinivalue_line(
        "markers", "beside: leaves operator and nodes as they are, so that others may be played too"
    )
    config.addinivalue_line("markers", "one_leader: what it tests needs an operator that leads for longer than 30 s")


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Those that `make e2e-all` plays, and this run does not."""
    for item in items:
        if not _marked(item, "people"):
            item.config.stash.setdefault(LEFT_OUT, []).append(item.nodeid)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (_marked(item, "last"), not _marked(item, "beside")))


def _marked(item: pytest.Item, name: str) -> bool:
    return item.get_closest_marker(name) is not None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if KILLS in config.stash:
        terminalreporter.write_line(config.stash[KILLS])


@pytest.fixture(scope="session")
def common(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run have in common."""
    return run_folder(request, tmp_path_factory)


@pytest.fixture(scope="session")
def deployment(common: Path, pytestconfig: pytest.Config) -> Iterator[Facts]:
    """The cluster with the operator of today's sources, for all processes of this run; `begun`: when it was ready."""

    @contextlib.contextmanager
    def make(_: Path) -> Iterator[Facts]:
        deployed = deploy()
        with killing_leaders(deployed, pytestconfig) if os.environ.get("MONKEY") == "1" else contextlib.nullcontext():
            begun = datetime.now(UTC).isoformat()
            yield {"begun": begun, "name": deployed.name, "kubeconfig": str(deployed.kubeconfig)}

    with contextlib.closing(Shared(common)) as things:
        yield things.get("deployment", make)


@pytest.fixture(scope="session")
def cluster(deployment: Facts) -> Cluster:
    return Cluster(deployment["name"], Path(deployment["kubeconfig"]))


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
def begun(deployment: Facts) -> datetime:
    """When the operator of today's sources was ready: what is older in logs may be another one's."""
    return datetime.fromisoformat(deployment["begun"])


@pytest.fixture(autouse=True)
def turn(request: pytest.FixtureRequest, common: Path) -> Iterator[None]:
    """A scenario's turn: that of one marked `beside` is also others', that of one marked `last` comes after all."""
    played = common / "played"
    played.touch()
    last = _marked(request.node, "last")
    if last:
        before = sum(not _marked(item, "last") for item in request.session.items)
        ends = time.monotonic() + OTHERS_S
        while played.stat().st_size < before:
            assert time.monotonic() < ends, f"of {before} scenarios {played.stat().st_size} were played"
            time.sleep(1)
    with (common / "turn").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH if _marked(request.node, "beside") else fcntl.LOCK_EX)
        yield
    if not last:
        with played.open("a") as file:
            file.write(".")


@pytest.fixture(autouse=True)
def leader_lives(request: pytest.FixtureRequest) -> Iterator[None]:
    """Under MONKEY=1 the leader is not killed in a test that is marked so."""
    if _marked(request.node, "one_leader"):
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
