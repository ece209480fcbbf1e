"""Who counts as another controller of TFJobs: nobody that any user could have made."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import Invalid
from elastic_tfjob.controller.kube.startup import find_rivals


class Api:
    """Has one Deployment with these arguments in each of these namespaces, and webhooks that lead to others; None: it
    may not be asked."""

    def __init__(self, *namespaces: str, leads_to: str | None = "", arguments: Sequence[Any] = ()) -> None:
        container: dict[str, Any] = {"name": "c", "image": "registry.k8s.io/pause", "args": [*arguments]}
        spec = {"template": {"spec": {"containers": [container]}}}
        self._deployments: list[dict[str, Any]] = [
            {"metadata": {"name": "d", "namespace": name}, "spec": spec, "status": {"availableReplicas": 1}}
            for name in namespaces
        ]
        self._leads_to = leads_to

    async def get(self, path: str, *, most_bytes: int | None = None, **options: str) -> dict[str, Any]:
        if path.endswith("deployments"):
            assert options["labelSelector"] == "control-plane=kubeflow-training-operator"
            if "limit" not in options:
                where = path.split("/")[-2]
                return {"items": [each for each in self._deployments if each["metadata"]["namespace"] == where]}
            trusted = options["fieldSelector"].replace("metadata.namespace!=", "").split(",")
            found = [each for each in self._deployments if each["metadata"]["namespace"] not in trusted]
            return {"items": found[: int(options["limit"])]}
        if self._leads_to is None:
            raise Invalid("GET", 403, "Forbidden", "no")
        service = {"name": "s", "namespace": self._leads_to}
        config: dict[str, Any] = {"service": service} if self._leads_to else {"url": "https://127.0.0.1:1/"}
        webhook: dict[str, Any] = {
            "name": "validator.pytorchjob.training-operator.kubeflow.org",
            "clientConfig": config,
            "rules": [],
        }
        others = {"name": "validator.kueue.x-k8s.io", "clientConfig": {"service": {"namespace": "tenant"}}}
        return {"items": [{"metadata": {"name": "v"}, "webhooks": [webhook, others]}]}


@pytest.mark.parametrize(
    ("namespace", "leads_to", "counts"),
    [
        ("kubeflow", "", True),
        ("kubeflow", None, True),
        ("operators", "", True),
        ("training", "training", True),
        ("training", "kubeflow", False),
        ("tenant", "", False),
        ("tenant", None, False),
    ],
)
async def test_a_deployment_counts_where_only_an_administrator_writes(
    namespace: str, leads_to: str | None, counts: bool
) -> None:
    with capture_logs() as logs:
        found = await find_rivals(cast("ApiClient", Api(namespace, leads_to=leads_to)), own="operators")
    assert [f"{namespace}/d" in each for each in found] == [True] * counts
    assert [(each["log_level"], each["namespace"]) for each in logs] == [("warning", namespace)] * (not counts)


async def test_many_that_only_look_like_one_are_not_all_told() -> None:
    with capture_logs() as logs:
        assert await find_rivals(cast("ApiClient", Api(*(f"t{k}" for k in range(1000))))) == []
    assert len(logs) == 10


@pytest.mark.parametrize("arguments", [["--enable-scheme=\n"], ["--enable-scheme", "= \t="], ["--enable-scheme"], [7]])
async def test_no_pod_of_a_tenant_keeps_the_operator_from_starting(arguments: list[Any]) -> None:
    assert await find_rivals(cast("ApiClient", Api("tenant", arguments=arguments))) == []


@pytest.mark.parametrize(
    ("arguments", "runs_tfjobs"),
    [
        ([], True),
        (["--enable-scheme=TFJob"], True),
        (["--enable-scheme=pytorchjob", "--enable-scheme", "tfjob"], True),
        (["--enable-scheme=pytorchjob"], False),
        (["--enable-scheme=\n"], True),
    ],
)
async def test_a_rivals_kinds_are_read_from_its_arguments(arguments: list[str], runs_tfjobs: bool) -> None:
    assert len(await find_rivals(cast("ApiClient", Api("kubeflow", arguments=arguments)))) == runs_tfjobs
