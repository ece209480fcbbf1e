"""The informers that decisions are made from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from elastic_tfjob.api.tfjob import CONTROLLER_NAME, GROUP, JOB_NAME_LABEL, OPERATOR_NAME_LABEL, PLURAL, VERSION
from elastic_tfjob.controller.job.gang import group_version
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.objects.dependents import Budget, PodGroup, Service
from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.objects.parsing import Key
from elastic_tfjob.controller.objects.pod import Pod

__all__ = ["Caches", "jobs_path"]

# Pods of a job change state together: one look at all of them instead of one for each.
_SETTLE_S: Final = 0.05
_SELECTOR: Final = f"{OPERATOR_NAME_LABEL}={CONTROLLER_NAME}"


def jobs_path(namespace: str = "") -> str:
    """Collection of TFJobs of one namespace, or of all."""
    one = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"/apis/{GROUP}/{VERSION}{one}/{PLURAL}"


@dataclass(frozen=True, slots=True)
class Caches:
    """The informers that decisions are made from. `pod_groups` is None without a gang scheduler, `budgets` where
    there are none to follow."""

    jobs: Informer[Job]
    pods: Informer[Pod]
    services: Informer[Service]
    pod_groups: Informer[PodGroup] | None = None
    budgets: Informer[Budget] | None = None

    def failed_pods(self) -> list[tuple[Job, Pod]]:
        """The pods that failed, each with the job that it is of. May be called in a thread."""
        failed = [pod for pod in self.pods if pod.failure is not None]
        return [(job, pod) for pod in failed for job in self.jobs.of_job(pod.key) if job.uid == pod.owner]

    async def look_up_pods(self, job: Job) -> None:
        """Take in the pods of a job as they are now."""
        path = f"/api/v1/namespaces/{quote(job.namespace, safe='')}/pods"
        await self.pods.look_up(path, f"{_SELECTOR},{JOB_NAME_LABEL}={job.name}", job.key)

    @classmethod
    def of(
        cls,
        api: ApiClient,
        *,
        namespace: str,
        gang_scheduler: str,
        look_at: Callable[[Key, float], None],
        job_touched: Callable[[Key], None],
        pods_touched: Callable[[Key], None],
    ) -> "Caches":
        """Informers of one namespace, or of all. `look_at` has a job looked at, after so many seconds; the others hear
        of each change of jobs and pods, those included that are no reason to look."""
        place = f"/namespaces/{namespace}" if namespace else ""

        def at_once(key: Key) -> None:
            look_at(key, 0.0)

        def settle(key: Key) -> None:
            look_at(key, _SETTLE_S)

        groups = None
        if gang_scheduler:
            groups = Informer(api, f"/apis/{group_version(gang_scheduler)}{place}/podgroups", PodGroup.parse, at_once)
        return cls(
            jobs=Informer(api, jobs_path(namespace), Job.parse, at_once, touched=job_touched),
            pods=Informer(api, f"/api/v1{place}/pods", Pod.parse, settle, selector=_SELECTOR, touched=pods_touched),
            services=Informer(
                api, f"/api/v1{place}/services", Service.parse, settle, selector=_SELECTOR, metadata_only=True
            ),
            pod_groups=groups,
            budgets=Informer(
                api,
                f"/apis/policy/v1{place}/poddisruptionbudgets",
                Budget.parse,
                settle,
                selector=_SELECTOR,
                metadata_only=True,
            ),
        )
