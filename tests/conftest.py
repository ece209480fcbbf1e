"""A control plane for tests: a real kube-apiserver and etcd without nodes, shared by all processes of a run.

`kubeconfig` (session), `api` (a client) and `namespace` (a fresh one) are what most tests need. The TFJob CRD is
installed and no operator runs: a test starts its own with `operators.start(..., namespace=namespace)`, which keeps to
that namespace. Tests that stop the API server, or whose operator sees all namespaces, make their own control plane with
`ControlPlane(tmp_path)`.
"""

import contextlib
import gc
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import settings

from harness import effort, operators
from harness.api import Api
from harness.controlplane import ControlPlane
from harness.shared import Facts, Shared, run_folder
from harness.told import pytest_runtest_logreport  # noqa: F401 - a hook

WAITS = ("conformance", "integration", "pod")
"""Folders of tests that mostly wait."""
SPREAD = 0.85
"""The part of the run in which they begin."""


def pytest_configure(config: pytest.Config) -> None:
    """Property tests have the same examples in each run, so that a change is judged by what it changes;
    HYPOTHESIS_PROFILE=default looks for new ones. They are judged by what they find, not by how fast a busy machine
    is."""
    effort.configure(config)
    settings.register_profile("steady", derandomize=True)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
    settings.register_profile("here", deadline=None, max_examples=effort.effort(40, 100))
    settings.load_profile("here")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Thousands of tests are collected, and what they are made of stays to the end: the garbage collector need not look
    through it again and again, neither now nor later."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests, those that mostly wait (for a control plane, an operator, a program) are
    spread among those that compute: all at once would leave the cores without work. The last ones compute, so that at
    the end no process is alone with a long one."""
    if not hasattr(config, "workerinput"):
        return
    here = Path(__file__).parent
    waits = [item.path.is_relative_to(here) and item.path.relative_to(here).parts[0] in WAITS for item in items]
    total, seen = {True: waits.count(True), False: waits.count(False)}, {True: 0, False: 0}
    order: list[float] = []
    for wait in waits:
        order.append(seen[wait] / total[wait] * (SPREAD if wait else 1.0))
        seen[wait] += 1
    items[:] = [items[k] for k in sorted(range(len(items)), key=order.__getitem__)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--operator",
        choices=get_args(operators.Name),
        default="ours",
        help="the operator that tests/conformance runs against: ours, or upstream (the Go training-operator v1.8.1)",
    )


@pytest.fixture(scope="session")
def operator_name(request: pytest.FixtureRequest) -> operators.Name:
    """The operator under test, as --operator says."""
    name: operators.Name = request.config.getoption("--operator")
    return name


@pytest.fixture(scope="session")
def share(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Facts]]:
    """`share(name, make, on)`: what `make(folder)` yields, made once for all processes of this run (harness.shared)."""
    with contextlib.closing(Shared(run_folder(request, tmp_path_factory))) as things:
        yield things.get


@pytest.fixture(scope="session")
def kubeconfig(share: Callable[..., Facts], operator_name: operators.Name) -> Path:
    """An administrator's kubeconfig for the control plane on which every test starts its own operator."""

    @contextlib.contextmanager
    def make(folder: Path) -> Iterator[Facts]:
        with ControlPlane(folder) as plane:
            operators.install(operator_name, plane.kubeconfig)
            yield {"kubeconfig": str(plane.kubeconfig)}

    return Path(share("control-plane", make)["kubeconfig"])


@pytest.fixture(scope="session")
def pod_groups(share: Callable[..., Facts], kubeconfig: Path) -> Path:
    """The kubeconfig of a control plane that knows both kinds of PodGroup."""

    @contextlib.contextmanager
    def make(_: Path) -> Iterator[Facts]:
        # Once for both schedulers: two `kubectl apply` at the same time both find nothing, and the later one fails.
        operators.kubectl(kubeconfig, "apply", "-f", str(Path(__file__).parent / "conformance" / "podgroups.yaml"))
        for group in ("scheduling.volcano.sh/v1beta1", "scheduling.x-k8s.io/v1alpha1"):
            operators.wait_served(kubeconfig, f"/apis/{group}/podgroups")
        yield {}

    share("pod-groups", make, on=("control-plane",))
    return kubeconfig


@pytest.fixture
async def api(kubeconfig: Path) -> AsyncIterator[Api]:
    """A client of the control plane, as administrator."""
    async with Api(kubeconfig) as client:
        yield client


@pytest.fixture
async def namespace(api: Api) -> str:
    """The name of a new namespace."""
    return await api.new_namespace()
