"""Jobs that end in known ways, so that after any fault one can say what must have happened to each of them."""

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from conformance.manifest import replica, tfjob
from harness.api import Object

JOB = "training.kubeflow.org/job-name"
TYPE = "training.kubeflow.org/replica-type"
INDEX = "training.kubeflow.org/replica-index"


def replica_of(item: Object) -> tuple[str, str]:
    """(job, replica such as "worker-0") of a pod or service, by its labels."""
    labels = item["metadata"]["labels"]
    return labels[JOB], f"{labels[TYPE]}-{labels[INDEX]}"


@dataclass(frozen=True, slots=True)
class Case:
    """A TFJob and what must become of it: `pods` says how often each replica is started in all."""

    manifest: Object
    final: str  # Succeeded or Failed
    pods: dict[str, int]
    succeeded: dict[str, int] = field(default_factory=dict)  # of status.replicaStatuses; empty: not asked

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def left(self) -> set[str]:
        """The replicas whose pods and services the clean-up after the end leaves."""
        policy = self.manifest["spec"]["runPolicy"]["cleanPodPolicy"]
        return set() if policy == "All" else set(self.pods)


class Workload:
    """Cases by name, in four kinds, and the program that their pods run (for harness.kubelet).

    plain: two workers end well. chief: the chief does, its worker runs on. retry: worker-1 dies of a signal and is
    started again (ExitCode). broken: worker-1 fails for good. `hold`: pods stay Running until `release` is set.
    """

    def __init__(self, count: int, *, seed: int, longest_s: float = 1.5, hold: bool = False, prefix: str = "") -> None:
        self._prefix = prefix
        self._random = random.Random(seed)
        self._longest_s = longest_s
        self._started: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._changed = asyncio.Condition()
        self.release = asyncio.Event()
        if not hold:
            self.release.set()
        kinds = ("plain", "plain", "chief", "retry", "broken")
        self.cases = {case.name: case for case in (self._case(kinds[i % 5], i) for i in range(count))}

    def _case(self, kind: str, index: int) -> Case:
        name = f"{kind}-{self._prefix}{index:03d}"
        policy = {"cleanPodPolicy": self._random.choice(("None", "All"))}
        if kind == "chief":
            job = tfjob(name, policy=policy, Chief=1, PS=1, Worker=1)
            return Case(
                job,
                "Succeeded",
                {"chief-0": 1, "ps-0": 1, "worker-0": 1},
                {"Chief": 1, "PS": 1, "Worker": 1},
            )
        restart = "ExitCode" if kind == "retry" else "Never"
        job = tfjob(name, policy=policy, PS=1, Worker=replica(2, restart))
        pods = {"ps-0": 1, "worker-0": 1, "worker-1": 2 if kind == "retry" else 1}
        return Case(
            job,
            "Failed" if kind == "broken" else "Succeeded",
            pods,
            {} if kind == "broken" else {"PS": 1, "Worker": 2},
        )

    def runs(self, pod: Object) -> bool:
        """Whether the pod is one of these cases'."""
        return replica_of(pod)[0] in self.cases

    async def program(self, pod: Object) -> int | None:
        """What the container does: it starts to train when all replicas of its job run, as TensorFlow would."""
        job, replica = replica_of(pod)
        kind = job.partition("-")[0]
        async with self._changed:
            self._started[job][replica] += 1
            life = self._started[job][replica]
            self._changed.notify_all()
            await self._changed.wait_for(lambda: set(self._started[job]) >= set(self.cases[job].pods))
        await self.release.wait()
        await asyncio.sleep(self._random.uniform(0.1, self._longest_s))
        match kind, replica:
            case ("plain", "worker-0" | "worker-1") | ("chief", "chief-0"):
                return 0
            case "retry", "worker-1":
                return 137 if life == 1 else 0
            case "retry", "worker-0":  # ends after the second life of its peer began: the job must outlive the first
                async with self._changed:
                    await self._changed.wait_for(lambda: self._started[job]["worker-1"] > 1)
                await asyncio.sleep(0.5)
                return 0
            case "broken", "worker-1":
                return 1
        return None
