"""Before the operator acts: is somebody else in charge of TFJobs here?"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import structlog

from elastic_tfjob.api.tfjob import GROUP, PLURAL
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import Invalid

__all__ = ["find_rivals"]

log = structlog.get_logger(__name__)

_LABEL: Final = "control-plane=kubeflow-training-operator"
# What the names of its webhooks end in. Others look at TFJobs, too, and take none for their own: Kueue, policies.
_WEBHOOK: Final = ".training-operator.kubeflow.org"
# Where its manifests put it.
_NAMESPACE: Final = "kubeflow"
# So many Deployments that only look like one are looked at. Anybody may make any number, each of over a megabyte.
_TOLD: Final = 10


async def find_rivals(api: ApiClient, *, own: str = "") -> list[str]:
    """What runs here that also takes TFJobs for its own: a sentence each, with what to do about it.

    Looks for a Go training-operator that is available and has not excluded TFJobs, and for its admission webhook on
    TFJobs, which refuses every job once the operator behind it is gone. Without the right to look, nothing is found.

    Anybody may label a Deployment in a namespace of his own. So only those count that are where an administrator put
    something: in `kubeflow`, in the `own` namespace of this operator, and where webhooks of the Go operator lead.
    """
    webhooks = await _items(api, "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations")
    trusted = sorted({_NAMESPACE, own, *_webhooks_lead_to(webhooks)} - {""})
    deployments = [
        item
        for namespace in trusted
        for item in await _items(api, f"/apis/apps/v1/namespaces/{namespace}/deployments", labelSelector=_LABEL)
    ]
    await _tell_of_others(api, trusted)
    return [*_deployments(deployments), *_webhooks(webhooks)]


async def _tell_of_others(api: ApiClient, trusted: Collection[str]) -> None:
    """Nothing that is in these Deployments, which are anybody's, keeps the operator from starting."""
    try:
        elsewhere = ",".join(f"metadata.namespace!={namespace}" for namespace in trusted)
        path = "/apis/apps/v1/deployments"
        found = await _items(api, path, labelSelector=_LABEL, fieldSelector=elsewhere, limit=str(_TOLD))
        names = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in _at_work(found)]
    except Exception as error:
        log.warning("cannot look for other training-operators", error=f"{type(error).__name__}: {error}"[:200])
        return
    for namespace, name in names:
        log.warning(
            "looks like a training-operator, but anybody may have made it there: if it is one, scale it to 0",
            namespace=namespace,
            deployment=name,
        )


async def _items(api: ApiClient, path: str, **selectors: str) -> list[dict[str, Any]]:
    try:
        return (await api.get(path, most_bytes=None, **selectors))["items"] or []
    except Invalid as error:
        if error.status != 403:
            raise
        return []


def _at_work(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for item in items:
        available = (item.get("status") or {}).get("availableReplicas")
        if available and _runs_tfjobs(item["spec"]["template"]["spec"]["containers"]):
            yield item


def _deployments(items: list[dict[str, Any]]) -> Iterator[str]:
    for item in _at_work(items):
        name, namespace = item["metadata"]["name"], item["metadata"]["namespace"]
        yield (
            f"Deployment {namespace}/{name} is a training-operator that reconciles TFJobs: scale it to 0 "
            f"(kubectl -n {namespace} scale deployment {name} --replicas=0), or let it keep its other kinds with "
            "--enable-scheme=<kind> for each of them"
        )


def _runs_tfjobs(containers: list[dict[str, Any]]) -> bool:
    """Without --enable-scheme it reconciles every kind it knows."""
    words = " ".join(word for item in containers for word in (*(item.get("command") or ()), *(item.get("args") or ())))
    schemes = [scheme.lower() for part in words.split("enable-scheme")[1:] for scheme in part.strip("= ").split()[:1]]
    return not schemes or "tfjob" in schemes


def _its(item: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The Go operator's own among the webhooks of a configuration."""
    return (webhook for webhook in item.get("webhooks") or () if webhook["name"].endswith(_WEBHOOK))


def _webhooks_lead_to(items: list[dict[str, Any]]) -> set[str]:
    """The namespaces of the services behind them, of whatever kind of job they are."""
    services = (webhook.get("clientConfig", {}).get("service") for item in items for webhook in _its(item))
    return {service["namespace"] for service in services if service}


def _webhooks(items: list[dict[str, Any]]) -> Iterator[str]:
    for item in items:
        for webhook in _its(item):
            for rule in webhook.get("rules") or ():
                if GROUP in rule.get("apiGroups", ()) and PLURAL in rule.get("resources", ()):
                    name = item["metadata"]["name"]
                    yield (
                        f"ValidatingWebhookConfiguration {name} sends TFJobs to {webhook['name']}: remove that webhook "
                        "from it (the CRD of elastic-tfjob validates by itself), or every new TFJob is refused once "
                        "its server is gone"
                    )
