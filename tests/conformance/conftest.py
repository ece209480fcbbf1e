"""The places where cases run, and what upstream is known to do otherwise.

`lab`: a fresh namespace of a control plane whose operator watches all namespaces; where most cases run.
`offline`: a fresh namespace of a control plane without an operator; the case starts its own, when and how it wants.
`volcano`, `coscheduling`: a namespace whose operator was started with that gang scheduler's name, shared by its cases
(the job is named after the case).

The operators act as their ServiceAccounts, with the rights that their manifests give them.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.deviations import DEVIATIONS
from conformance.lab import Lab
from conformance.manifest import NAME
from harness import operators
from harness.api import Api, ApiError, tfjobs
from harness.controlplane import ControlPlane
from harness.shared import Facts

PATIENCE_S = {"ours": 90.0, "upstream": 120.0}
"""A busy machine takes its time. Upstream writes at most 20 objects a second (client-go's default), for all cases that
run side by side."""

DEVIATION_PATIENCE_S = 15.0
"""How long to wait for what will not come."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "case(id): the test is this case of the contract")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if mark := metafunc.definition.get_closest_marker("case"):
        metafunc.parametrize("case", mark.args, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seen: dict[str, str] = {}
    for item in items:
        if not isinstance(item, pytest.Function) or not item.path.is_relative_to(Path(__file__).parent):
            continue
        case = _case(item)
        if case in seen:
            raise pytest.UsageError(f"{item.nodeid} has no case id of its own (also: {seen[case]})")
        seen[case] = item.nodeid
        if config.getoption("--operator") == "upstream" and case in DEVIATIONS:
            known = DEVIATIONS[case]
            mark = pytest.mark.xfail(
                strict=True, raises=AssertionError, reason=f"{known.why} Upstream: {known.upstream}"
            )
            item.add_marker(mark)


def _case(item: pytest.Item) -> str:
    return item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else item.name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the operator said about the case's namespace (or said last)."""
    report = yield
    if report.when == "call" and report.failed and isinstance(item, pytest.Function):
        for lab in item.funcargs.values():
            if isinstance(lab, Lab) and lab.log.exists():
                lines = lab.log.read_text(errors="replace").splitlines()
                about = [line for line in lines if lab.namespace in line] or lines
                report.sections.append((f"operator log ({lab.log})", "\n".join(about[-30:])))
    return report


@pytest.fixture(autouse=True)
def case(request: pytest.FixtureRequest) -> str:
    """The case's id."""
    return _case(request.node)


@dataclass(frozen=True, slots=True)
class Place:
    """A control plane and what is known of the operator there."""

    kubeconfig: Path
    log: Path
    metrics_url: str
    namespace: str | None = None


@pytest.fixture(scope="session")
def arena(share: Callable[..., Facts], operator_name: operators.Name) -> Place:
    @contextlib.contextmanager
    def make(folder: Path) -> Iterator[Facts]:
        with ControlPlane(folder) as plane:
            operators.install(operator_name, plane.kubeconfig)
            identity = operators.service_account(operator_name, plane.kubeconfig)
            with operators.start(
                operator_name, plane.kubeconfig, folder / "operator", webhook=True, identity=identity
            ) as operator:
                yield {
                    "kubeconfig": str(plane.kubeconfig),
                    "log": str(operator.log),
                    "metrics_url": operator.metrics_url,
                }

    facts = share("arena", make)
    return Place(Path(facts["kubeconfig"]), Path(facts["log"]), facts["metrics_url"])


@pytest.fixture(scope="session")
def volcano_place(share: Callable[..., Facts], pod_groups: Path, operator_name: operators.Name) -> Place:
    return _gang_place("volcano", share, pod_groups, operator_name)


@pytest.fixture(scope="session")
def coscheduling_place(share: Callable[..., Facts], pod_groups: Path, operator_name: operators.Name) -> Place:
    return _gang_place("scheduler-plugins-scheduler", share, pod_groups, operator_name)


def _gang_place(scheduler: str, share: Callable[..., Facts], kubeconfig: Path, name: operators.Name) -> Place:
    """An operator for one gang scheduler, and the namespace that it keeps to."""

    @contextlib.contextmanager
    def make(folder: Path) -> Iterator[Facts]:
        namespace = f"{scheduler}-{os.getpid()}"
        operators.kubectl(kubeconfig, "create", "namespace", namespace)
        identity = operators.service_account(name, kubeconfig)
        with operators.start(
            name, kubeconfig, folder, namespace=namespace, gang_scheduler=scheduler, identity=identity
        ) as operator:
            yield {"namespace": namespace, "log": str(operator.log), "metrics_url": operator.metrics_url}

    facts = share(f"gang-{scheduler}", make, on=("control-plane", "pod-groups"))
    return Place(kubeconfig, Path(facts["log"]), facts["metrics_url"], facts["namespace"])


@pytest.fixture
def patience_s(case: str, operator_name: operators.Name) -> float:
    known = operator_name == "upstream" and case in DEVIATIONS
    return DEVIATION_PATIENCE_S if known else PATIENCE_S[operator_name]


@pytest.fixture
async def lab(arena: Place, operator_name: operators.Name, patience_s: float, tmp_path: Path) -> AsyncIterator[Lab]:
    async with _lab(arena, operator_name, patience_s, tmp_path) as made:
        yield made


@pytest.fixture
async def offline(
    kubeconfig: Path, operator_name: operators.Name, patience_s: float, tmp_path: Path
) -> AsyncIterator[Lab]:
    async with _lab(Place(kubeconfig, tmp_path / "none.log", ""), operator_name, patience_s, tmp_path) as made:
        yield made


@pytest.fixture
async def volcano(
    volcano_place: Place, case: str, operator_name: operators.Name, patience_s: float, tmp_path: Path
) -> AsyncIterator[Lab]:
    async with _lab(volcano_place, operator_name, patience_s, tmp_path, case.lower()) as made:
        yield made


@pytest.fixture
async def coscheduling(
    coscheduling_place: Place, case: str, operator_name: operators.Name, patience_s: float, tmp_path: Path
) -> AsyncIterator[Lab]:
    async with _lab(coscheduling_place, operator_name, patience_s, tmp_path, case.lower()) as made:
        yield made


@contextlib.asynccontextmanager
async def _lab(
    place: Place, operator: operators.Name, patience_s: float, folder: Path, job: str = NAME
) -> AsyncIterator[Lab]:
    async with Api(place.kubeconfig) as client:
        namespace = place.namespace or await client.new_namespace()
        made = Lab(
            client, place.kubeconfig, namespace, operator, patience_s, folder, place.log, place.metrics_url, name=job
        )
        yield made
        # Deleted, so that the operator has no more to do with them.
        for name in made.created:
            with contextlib.suppress(ApiError):
                await client.delete(f"{tfjobs(namespace)}/{name}")
