"""Before the operator acts: is somebody else in charge of TFJobs here?"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from elastic_tfjob.api.tfjob import GROUP, PLURAL
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import Invalid

__all__ = ["find_rivals"]

_LABEL: Final = "control-plane=kubeflow-training-operator"
# What the names of its webhooks end in. Others look at TFJobs, too, and take none for their own: Kueue, policies.
_WEBHOOK: Final = ".training-operator.kubeflow.org"


async def find_rivals(api: ApiClient) -> list[str]:
    """What runs here that also takes TFJobs for its own: a sentence each, with what to do about it.

    Looks for a Go training-operator that is available and has not excluded TFJobs, and for its admission webhook on
    TFJobs, which refuses every job once the operator behind it is gone. Without the right to look, nothing is found.
    """
    found: list[str] = []
    for path, selector, describe in (
        ("/apis/apps/v1/deployments", _LABEL, _deployments),
        ("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", "", _webhooks),
    ):
        try:
            found += describe(await api.get(path, labelSelector=selector))
        except Invalid as error:
            if error.status != 403:
                raise
    return found


def _deployments(answer: Mapping[str, Any]) -> Iterator[str]:
    for item in answer["items"] or ():
        if not (item.get("status") or {}).get("availableReplicas"):
            continue
        if _runs_tfjobs(item["spec"]["template"]["spec"]["containers"]):
            name, namespace = item["metadata"]["name"], item["metadata"]["namespace"]
            yield (
                f"Deployment {namespace}/{name} is a training-operator that reconciles TFJobs: scale it to 0 "
                f"(kubectl -n {namespace} scale deployment {name} --replicas=0), or let it keep its other kinds with "
                "--enable-scheme=<kind> for each of them"
            )


def _runs_tfjobs(containers: list[dict[str, Any]]) -> bool:
    """Without --enable-scheme it reconciles every kind it knows."""
    words = " ".join(word for item in containers for word in (*(item.get("command") or ()), *(item.get("args") or ())))
    schemes = [part.strip("= ").split()[0].lower() for part in words.split("enable-scheme")[1:] if part.strip("= ")]
    return not schemes or "tfjob" in schemes


def _webhooks(answer: Mapping[str, Any]) -> Iterator[str]:
    for item in answer["items"] or ():
        for webhook in item.get("webhooks") or ():
            if not webhook["name"].endswith(_WEBHOOK):
                continue
            for rule in webhook.get("rules") or ():
                if GROUP in rule.get("apiGroups", ()) and PLURAL in rule.get("resources", ()):
                    name = item["metadata"]["name"]
                    yield (
                        f"ValidatingWebhookConfiguration {name} sends TFJobs to {webhook['name']}: remove that webhook "
                        "from it (the CRD of elastic-tfjob validates by itself), or every new TFJob is refused once "
                        "its server is gone"
                    )
