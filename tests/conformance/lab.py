"""One TFJob under an operator, with the test in the place of kubelet and user.

What a test expects is written as a view of the world (see `Lab.view`) and compared whole:
`await lab.expect(pods="worker-0", conditions="Created Running")` polls until it holds or fails with the difference.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conformance.manifest import NAME, Object, counts, labels, owner, tfjob
from harness import operators
from harness.api import Api, ApiError, events, pods, services, tfjobs

POLL_S = 0.1

Look = Callable[[Mapping[str, Any]], Awaitable[object]]


@dataclass(slots=True)
class Lab:
    """`patience_s`: how long something expected may take; `kubeconfig`, `folder`: for an operator of the test's own."""

    api: Api
    kubeconfig: Path
    namespace: str
    operator: operators.Name
    patience_s: float
    folder: Path
    log: Path
    metrics_url: str | None = None
    name: str = NAME
    created: list[str] = field(default_factory=list)

    def named(self, name: str) -> "Lab":
        """The same place, another job."""
        return replace(self, name=name)

    # -- the user

    @property
    def path(self) -> str:
        return f"{tfjobs(self.namespace)}/{self.name}"

    async def submit(self, job: Object) -> Object:
        self.created.append(job["metadata"]["name"])
        return await self.api.create(tfjobs(self.namespace), job)

    async def change(self, spec: Object) -> None:
        """Merge `spec` into the job's spec."""
        await self.api.merge(self.path, {"spec": spec})

    async def scale(self, kind: str, replicas: int) -> None:
        await self.change({"tfReplicaSpecs": {kind: {"replicas": replicas}}})

    async def delete_pod(self, pod: str) -> None:
        await self.api.delete(f"{pods(self.namespace)}/{self.name}-{pod}")

    async def let_go(self, *which: str) -> None:
        """Take the finalizers off these pods."""
        for pod in _split(which):
            await self.api.merge(f"{pods(self.namespace)}/{self.name}-{pod}", {"metadata": {"finalizers": None}})

    # -- the kubelet

    async def run(self, *which: str, restarts: int = 0) -> None:
        """These pods run; their container has been restarted so often."""
        for pod in _split(which):
            state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
            await self.set_status(pod, "Running", tensorflow=(state, restarts))

    async def succeed(self, *which: str) -> None:
        for pod in _split(which):
            await self.exit(pod, "Succeeded", tensorflow=0)

    async def fail(self, *which: str, code: int = 1) -> None:
        for pod in _split(which):
            await self.exit(pod, "Failed", tensorflow=code)

    async def exit(self, pod: str, phase: str, **codes: int) -> None:
        """The pod ends in `phase`, its containers with these codes (one not named has no status)."""
        ended: dict[str, tuple[Object, int]] = {
            name: ({"terminated": {"exitCode": code}}, 0) for name, code in codes.items()
        }
        await self.set_status(pod, phase, None, **ended)

    async def set_status(
        self, pod: str, phase: str, more: Object | None = None, **containers: tuple[Object, int]
    ) -> None:
        """Write a pod's phase, and of each container the state and the number of restarts; `more` is merged in."""
        statuses = [
            {
                "name": name,
                "image": "",
                "imageID": "",
                "ready": "running" in state,
                "restartCount": restarts,
                "state": state,
            }
            for name, (state, restarts) in containers.items()
        ]
        status = {"phase": phase, "containerStatuses": statuses, **(more or {})}
        await self.api.merge(f"{pods(self.namespace)}/{self.name}-{pod}/status", {"status": status})

    async def nudge(self) -> None:
        """Change a pod in a way that means nothing: an operator without a timer looks at the job only on changes."""
        patch = {"metadata": {"annotations": {"nudged": str(time.time())}}}
        for pod in (await self.pod_list())[:1]:
            with contextlib.suppress(ApiError):  # it may have gone meanwhile
                await self.api.merge(f"{pods(self.namespace)}/{pod['metadata']['name']}", patch)

    # -- what was made

    async def job(self) -> Object:
        return await self.api.get(self.path)

    async def pod(self, pod: str) -> Object:
        return await self.api.get(f"{pods(self.namespace)}/{self.name}-{pod}")

    async def uid(self, pod: str) -> str:
        return str((await self.pod(pod))["metadata"]["uid"])

    async def service(self, service: str) -> Object:
        return await self.api.get(f"{services(self.namespace)}/{self.name}-{service}")

    async def pod_list(self) -> list[Object]:
        return (await self.api.items(pods(self.namespace), labelSelector=self._selector))[0]

    async def service_list(self) -> list[Object]:
        return (await self.api.items(services(self.namespace), labelSelector=self._selector))[0]

    async def tf_config(self, pod: str) -> str | None:
        """TF_CONFIG of the pod's container `tensorflow`."""
        for item in (await self.pod(pod))["spec"]["containers"]:
            if item["name"] == "tensorflow":
                return next((e["value"] for e in item.get("env", []) if e["name"] == "TF_CONFIG"), None)
        raise AssertionError(f"{pod} has no container named tensorflow")

    async def event_list(self) -> list[tuple[str, str, str]]:
        """(type, reason, message) of the job's events."""
        found, _ = await self.api.items(events(self.namespace))
        mine = [e for e in found if e["involvedObject"].get("name") == self.name]
        return [(e["type"], e["reason"], e["message"]) for e in mine]

    async def expect_event(self, kind: str, reason: str, message: str) -> None:
        await self.until(self._has_event, {"event": (kind, reason, message)})

    async def _has_event(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        found = await self.event_list()
        return {"event": wanted["event"] if wanted["event"] in found else found}

    async def expect_counts(self, **wanted: float) -> None:
        """training_operator_jobs_<name>_total of this namespace come to be so, and stay so: what is counted is so a
        moment after the status that it follows from."""
        await self.until(self._counts, wanted)
        await asyncio.sleep(1)
        await self.until(self._counts, wanted)

    async def _counts(self, wanted: Mapping[str, Any]) -> dict[str, float] | str:
        """By name; 0 where there is no such sample."""
        assert self.metrics_url
        text = await asyncio.to_thread(operators.page, self.metrics_url)
        if text is None:
            return f"no metrics at {self.metrics_url}"
        found = {f"training_operator_jobs_{name}_total": 0.0 for name in wanted}
        ours = {"job_namespace": self.namespace, "framework": "tensorflow"}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in found and sample.labels == ours:
                    found[sample.name] = sample.value
        return dict(zip(wanted, found.values(), strict=True))

    # -- expectations

    async def view(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The parts of the world that `wanted` has keys for.

        pods, services   short names, sorted: "ps-0 worker-0"
        conditions       in order, False ones marked: "Created Running=False Succeeded"
        last             (type, reason, message) of the last condition
        replicas         status.replicaStatuses without the selector
        started, completed   whether startTime, completionTime are set
        deleting         whether it is being deleted, and waits for a finalizer
        gone             whether the job no longer exists
        """
        found: dict[str, Any] = {}
        if "pods" in wanted:
            found["pods"] = self._short(await self.pod_list())
        if "services" in wanted:
            found["services"] = self._short(await self.service_list())
        if wanted.keys() - {"pods", "services"}:
            found |= await self._job_view()
        return {key: found[key] for key in wanted}

    async def expect(self, **wanted: Any) -> None:
        """Wait until the world looks like this."""
        await self.until(self.view, wanted)

    async def stays(self, seconds: float = 1.0, **wanted: Any) -> None:
        """The world looks like this, and goes on so for a while."""
        await self.expect(**wanted)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert await self.view(wanted) == wanted
            await asyncio.sleep(POLL_S)

    async def expect_replaced(self, pod: str, uid: str) -> None:
        """The pod is another one than `uid`, and Pending."""

        async def look(wanted: Mapping[str, Any]) -> dict[str, Any]:
            try:
                now = await self.pod(pod)
            except ApiError as error:
                return {"replaced": error.reason}
            return {"replaced": now["metadata"]["uid"] != uid and now["status"]["phase"] == "Pending"}

        await self.until(look, {"replaced": True})

    async def expect_terminating(self, pod: str) -> None:
        """The pod is being deleted, and waits for a finalizer."""

        async def look(_: Mapping[str, Any]) -> dict[str, Any]:
            return {"terminating": "deletionTimestamp" in (await self.pod(pod))["metadata"]}

        await self.until(look, {"terminating": True})

    async def noticed(self) -> None:
        """The operator has seen all changes of jobs until now, which reach it in their order: it has made the pod of a
        job that came after them. What becomes of pods reaches it on another way, and may be there before."""
        later = self.named(f"later-{len(self.created)}")
        await later.submit(tfjob(later.name, Worker=1))
        await later.expect(pods="worker-0")

    async def until(self, look: Look, wanted: Mapping[str, Any]) -> None:
        """Wait until `look(wanted)` is `wanted`."""
        end = time.monotonic() + self.patience_s
        while (found := await look(wanted)) != wanted and time.monotonic() < end:
            await asyncio.sleep(POLL_S)
        assert found == wanted

    async def _job_view(self) -> dict[str, Any]:
        try:
            job = await self.job()
        except ApiError as error:
            if error.status != 404:
                raise
            return {
                "gone": True,
                "deleting": None,
                "conditions": None,
                "last": None,
                "replicas": None,
                "started": None,
                "completed": None,
            }
        status = job.get("status") or {}
        conditions = status.get("conditions") or []
        last = conditions[-1] if conditions else None
        return {
            "gone": False,
            "deleting": "deletionTimestamp" in job["metadata"],
            "conditions": " ".join(
                c["type"] + ("" if c["status"] == "True" else f"={c['status']}") for c in conditions
            ),
            "last": last and (last["type"], last["reason"], last["message"]),
            "replicas": counts(status),
            "started": "startTime" in status,
            "completed": "completionTime" in status,
        }

    # -- an operator of the test's own

    @contextlib.contextmanager
    def operated(self, by: operators.Name | None = None, **options: Any) -> Iterator[operators.Operator]:
        """An operator acts on this namespace while the block lasts."""
        operator = operators.start(
            by or self.operator, self.kubeconfig, self.folder, namespace=self.namespace, **options
        )
        self.log, self.metrics_url = operator.log, operator.metrics_url
        with operator:
            yield operator

    async def given(self, job: Object, which: str) -> Object:
        """The job, and pods and services of it as an operator would have made them, without one having seen them."""
        made = await self.submit(job)
        for short in which.split():
            kind, index = short.rsplit("-", 1)
            metadata = {
                "name": f"{self.name}-{short}",
                "labels": labels(self.name, kind, int(index)),
                "ownerReferences": [owner(made)],
            }
            template = next(t for key, t in made["spec"]["tfReplicaSpecs"].items() if key.lower() == kind)["template"]
            await self.api.create(pods(self.namespace), {"metadata": metadata, "spec": template["spec"]})
            headless = {
                "clusterIP": "None",
                "selector": metadata["labels"],
                "ports": [{"name": "tfjob-port", "port": 2222}],
            }
            await self.api.create(services(self.namespace), {"metadata": metadata, "spec": headless})
        return made

    @property
    def _selector(self) -> str:
        return f"training.kubeflow.org/job-name={self.name}"

    def _short(self, items: list[Object]) -> str:
        return " ".join(sorted(item["metadata"]["name"].removeprefix(f"{self.name}-") for item in items))


def _split(which: tuple[str, ...]) -> list[str]:
    return " ".join(which).split()


def case(identity: str) -> pytest.MarkDecorator:
    """The test is this case of the contract."""
    return pytest.mark.case(identity)


def cases(arguments: str, rows: Mapping[str, Any]) -> pytest.MarkDecorator:
    """The test is a table of cases: by case id, the values of the arguments."""
    return pytest.mark.parametrize(arguments, list(rows.values()), ids=list(rows))
