"""Jobs on fake nodes, and the operator that schedules them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import yaml

from conformance.manifest import tfjob
from harness import kwok, operators
from harness.api import CORE, Api, Object, tfjobs
from harness.controlplane import ControlPlane

from .running import running

PREFIX = "elastic.kubeflow.org/"
NAME = "elastic-tfjob-operator"
HOME = "kubeflow"
CONFIG_MAPS = f"{CORE}/namespaces/{HOME}/configmaps"


def job(name: str, *, cpu: str = "1", annotations: dict[str, str] | None = None, **replicas: int) -> Object:
    """A TFJob on fake nodes; `annotations` without their prefix."""
    types = {kind: {"replicas": count, "template": kwok.pod_template(cpu)} for kind, count in replicas.items()}
    made = tfjob(name, **types)
    made["metadata"]["annotations"] = {
        PREFIX + key: text for key, text in (annotations or {"placement": "auto"}).items()
    }
    return made


async def configure(api: Api, **content: Any) -> None:
    """Write the operator's ConfigMap."""
    body = {"metadata": {"name": NAME}, "data": {"config.yaml": yaml.safe_dump(content)}}
    known = {item["metadata"]["name"] for item in (await api.items(CONFIG_MAPS))[0]}
    await (api.merge(f"{CONFIG_MAPS}/{NAME}", body) if NAME in known else api.create(CONFIG_MAPS, body))


def target_of(found: Object) -> Any:
    """What the loop wrote, or None."""
    text = (found["metadata"].get("annotations") or {}).get(f"{PREFIX}target")
    return json.loads(text) if text else None


def state_of(found: Object) -> dict[str, Any]:
    """What the operator says of a job, if anything."""
    return dict(json.loads((found["metadata"].get("annotations") or {}).get(f"{PREFIX}state", "{}")))


@contextlib.asynccontextmanager
async def operator_with_its_rights(
    plane: ControlPlane, folder: Path, *more: str, **environment: str
) -> AsyncIterator[operators.Operator]:
    """Our operator as its manifests run it: with its ConfigMap, and no more rights than they give."""
    identity = await asyncio.to_thread(operators.service_account, "ours", plane.kubeconfig)
    arguments = [f"--config-map={HOME}/{NAME}", *more]
    options: dict[str, Any] = {"arguments": arguments, "identity": identity, "environment": environment}
    async with running("ours", plane.kubeconfig, folder, **options) as operator:
        yield operator


async def target_when(api: Api, name: str, what: Callable[[Any], bool], within_s: float = 120) -> Any:
    """The job's target once `what` holds for it."""

    def holds(found: Object) -> bool:
        target = target_of(found)
        return target is not None and what(target)

    return target_of(await api.seen(tfjobs("default"), holds, name=name, within_s=within_s))
