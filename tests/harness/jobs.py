"""TFJobs of the e2e scenarios, seen and handled with kubectl in a namespace of their own."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from harness.cluster import Cluster
from harness.progress import CommandFailed

Object = dict[str, Any]

TRAINER = "localhost/elastic-tfjob/trainer:dev"

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The securityContext that the Pod Security standard `restricted` asks of each container."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """A namespace of a test, and what it does with jobs there."""

    cluster: Cluster
    namespace: str

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl(f"--namespace={self.namespace}", *args, stdin=stdin)

    def apply(self, manifest: Object | str) -> None:
        self.kubectl("apply", "-f", "-", stdin=manifest if isinstance(manifest, str) else yaml.safe_dump(manifest))

    def get(self, *what: str) -> Object:
        found: Object = json.loads(self.kubectl("get", *what, "-o", "json"))
        return found

    def pods(self, name: str) -> dict[str, Object]:
        """The pods of job `name`, by their names."""
        found = self.get("pods", f"--selector=training.kubeflow.org/job-name={name}")["items"]
        return {pod["metadata"]["name"]: pod for pod in found}

    def conditions(self, name: str) -> list[str]:
        """The job's condition types that are True, in their order."""
        status = self.get("tfjob", name).get("status", {})
        return [c["type"] for c in status.get("conditions", []) if c["status"] == "True"]

    def wait_for(self, name: str, condition: str, seconds: float = 240) -> None:
        """Wait for a condition of the job; an end that was not asked for fails at once."""

        def reached() -> bool:
            now = self.conditions(name)
            if condition != "Failed" and "Failed" in now:
                raise AssertionError(f"the job failed:\n{self.describe(name)}")
            return condition in now

        until(reached, seconds, lambda: f"{name} is not {condition}:\n{self.describe(name)}")

    def wait_for_words(self, name: str, *words: str, seconds: float = 120) -> str:
        """Wait until `describe` has all these words, as of events, which are written a moment after what they tell of;
        returns all that it says."""
        told = ""

        def reached() -> bool:
            nonlocal told
            told = self.describe(name)
            return all(word in told for word in words)

        until(reached, seconds, lambda: f"{name} does not tell {words}:\n{told}")
        return told

    def restrict(self) -> None:
        """Have the namespace enforce the Pod Security standard `restricted`; the API server does a moment later."""
        self.cluster.kubectl("label", "namespace", self.namespace, "pod-security.kubernetes.io/enforce=restricted")
        container = {"name": "trial", "image": TRAINER}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trial"}, "spec": {"containers": [container]}}

        def refused() -> bool:
            try:
                self.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
            except CommandFailed as error:
                return "violates PodSecurity" in str(error)
            return False

        until(refused, 60, lambda: f"{self.namespace} admits all pods")

    def describe(self, name: str) -> str:
        return self.kubectl("describe", "tfjob", name) + self.kubectl("get", "pods", "-o", "wide")


def until(reached: Callable[[], bool], seconds: float, problem: Callable[[], str], *, every_s: float = 1.0) -> None:
    """Wait until `reached()`; after `seconds` fail with what `problem()` says. A look that the API server did not
    answer is none."""
    deadline = time.monotonic() + seconds
    while not _answered(reached):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:.0f} s {problem()}")
        time.sleep(every_s)


UNANSWERED = (
    "TLS handshake timeout",
    "connect: connection refused",
    "connection reset by peer",
    "i/o timeout",
    "request timed out",
    "unexpected EOF",
)


def _answered(reached: Callable[[], bool]) -> bool:
    try:
        return reached()
    except CommandFailed as failed:
        if any(words in str(failed) for words in UNANSWERED):
            return False
        raise


UNTIL_TOLD = "until [ -e /tmp/over ]; do sleep 1; done"
"""For `sleepers`: ends when the test says so (`end`), however long a busy machine takes to get there."""


def end(jobs: Jobs, pod: str) -> None:
    """Let the container of a pod that runs UNTIL_TOLD end well."""
    jobs.kubectl("exec", pod, "--container=tensorflow", "--", "touch", "/tmp/over")


def sleepers(name: str, command: str = "sleep 600", **replicas: int) -> Object:
    """A TFJob whose replicas run a shell command instead of training; `replicas` by type, e.g. Worker=2."""
    template = {
        "spec": {
            "containers": [
                {
                    "name": "tensorflow",
                    "image": TRAINER,
                    # As PID 1 a shell would let SIGTERM pass.
                    "command": ["sh", "-c", f"trap 'exit 143' TERM; {command} & wait $!"],
                    "resources": {"requests": {"cpu": "10m"}},
                }
            ]
        }
    }
    types = {
        kind: {"replicas": count, "restartPolicy": "OnFailure", "template": template}
        for kind, count in replicas.items()
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name},
        "spec": {"runPolicy": {"cleanPodPolicy": "Running"}, "tfReplicaSpecs": types},
    }
