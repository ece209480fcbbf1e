"""One decision at a time: an observation in, actions, status and events out.

The behaviour that upstream also has is proven against both operators in tests/conformance; here are the cases that need
no API server, the order of things, and what holds for every observation.
"""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from conformance.manifest import counts
from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.job.decision import (
    AdoptService,
    Count,
    Create,
    Decision,
    DeleteJob,
    DeleteOwned,
    DeletePod,
    Event,
    ReconcileSettings,
    UpdatePodGroup,
)
from elastic_tfjob.controller.model.command import COMMAND_ANNOTATION, STOP_COMMAND
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.pod import EXPORTER, INSTALL, Pod
from elastic_tfjob.controller.model.status import format_time
from harness.hostile_text import NO_TIMES
from unit.build import NOW, condition, decide, job, pod, pod_group, replicas, service, services, shown

STOPPED = {COMMAND_ANNOTATION: STOP_COMMAND}
EARLIER = "2026-01-01T00:00:00Z"
RUNNING = [condition("Created"), condition("Running")]
SELECTOR = "training.kubeflow.org/job-name=j,training.kubeflow.org/replica-type=worker"


def created(decision: Decision) -> list[str]:
    return [
        f"{action.body['kind']}/{action.body['metadata']['name']}"
        for action in decision.actions
        if isinstance(action, Create)
    ]


def bodies(decision: Decision) -> list[dict[str, Any]]:
    """What is created, in order."""
    return [action.body for action in decision.actions if isinstance(action, Create)]


def test_a_new_job() -> None:
    """Everything is created in one pass, and the first status says so."""
    decision = decide(job({"PS": 1, "Worker": 2}))
    assert sorted(created(decision)) == [
        *(f"Pod/j-{name}" for name in ("ps-0", "worker-0", "worker-1")),
        *(f"Service/j-{name}" for name in ("ps-0", "worker-0", "worker-1")),
    ]
    assert decision.status == {
        "conditions": [{**condition("Created"), "message": "TFJob j is created."}],
        "replicaStatuses": {"PS": {}, "Worker": {"selector": SELECTOR}},
        "startTime": "2026-01-02T03:04:05Z",
    }
    assert decision.counts == (Count("created"),)


def test_nothing_to_do() -> None:
    """An unchanged world gives an empty decision."""
    look = partial(decide, pods=(pod("Worker", 0),), services=services({"Worker": 1}))
    first = look(job())
    settled = look(job(status=first.status), later_s=60)
    assert settled == Decision()


class TestSelector:
    """The selector by which the subresource `scale` names the workers' pods."""

    def test_it_selects_exactly_the_workers(self) -> None:
        decision = decide(job({"Chief": 1, "PS": 1, "Worker": 2, "Evaluator": 1}))
        assert decision.status is not None
        (of_type,) = (kind for kind, found in decision.status["replicaStatuses"].items() if "selector" in found)
        assert of_type == "Worker"
        selector = decision.status["replicaStatuses"]["Worker"]["selector"]
        wanted = dict(each.split("=") for each in selector.split(","))
        selected = [
            body["metadata"]["name"]
            for body in bodies(decision)
            if body["kind"] == "Pod" and wanted.items() <= body["metadata"]["labels"].items()
        ]
        assert selected == ["j-worker-0", "j-worker-1"]

    def test_a_job_without_workers_has_none(self) -> None:
        decision = decide(job({"Chief": 1, "PS": 1}))
        assert decision.status is not None
        assert decision.status["replicaStatuses"] == {"Chief": {}, "PS": {}}

    @pytest.mark.parametrize("selector", [SELECTOR, "", "x" * 1000])
    def test_a_finished_job_is_not_written_for_it(self, selector: str) -> None:
        """It keeps what it has: no selector, if it finished under an operator that wrote none."""
        worker = {"succeeded": 1, "selector": selector}
        status = {"conditions": [condition("Created"), condition("Succeeded")], "replicaStatuses": {"Worker": worker}}
        assert decide(job(status=status), pods=(pod("Worker", 0, "Succeeded", exit_code=0),)).status is None

    def test_a_job_that_succeeds_keeps_it(self) -> None:
        ended = decide(job(status={"conditions": RUNNING}), pods=(pod("Worker", 0, "Succeeded", exit_code=0),)).status
        assert ended is not None
        assert ended["replicaStatuses"] == {"Worker": {"succeeded": 1, "selector": SELECTOR}}

    def test_another_selector_is_replaced(self) -> None:
        """Whoever may write the status could have it name other pods."""
        status = {"conditions": RUNNING, "replicaStatuses": {"Worker": {"active": 1, "selector": "app=other"}}}
        written = decide(job(status=status), pods=(pod("Worker", 0),), services=services({"Worker": 1})).status
        assert written is not None
        assert written["replicaStatuses"]["Worker"]["selector"] == SELECTOR


@pytest.mark.parametrize("managed_by", ["kueue.x-k8s.io/multikueue", ""])
def test_managed_by_another(managed_by: str) -> None:
    """Not even a status is written."""
    assert decide(job(runPolicy={"managedBy": managed_by})) == Decision()


def test_invalid_without_admission() -> None:
    """Where the CRD has no rules, an event says what admission would have, and nothing is created."""
    worker = {"replicas": 1, "template": {"spec": {"containers": [{"name": "main", "image": ""}]}}}
    decision = decide(job({"Worker": worker}))
    path = "spec.tfReplicaSpecs[Worker].template.spec.containers"
    assert decision == Decision(
        events=(
            Event(
                "Warning",
                "TFJobFailedValidation",
                f"{path}: Required value: must have at least one container with name tensorflow; "
                f"{path}[0].image: Required value: must be required",
            ),
        )
    )


class TestFinishing:
    """The verdict is stored first, then pods are deleted."""

    def test_verdict_before_deletion(self) -> None:
        """Worker 0 is done: the status says so, running PS count as succeeded, and nothing is deleted yet."""
        found = job({"PS": 1, "Worker": 1}, runPolicy={"cleanPodPolicy": "All"}, status={"conditions": RUNNING})
        decision = decide(
            found,
            pods=(pod("PS", 0), pod("Worker", 0, "Succeeded", exit_code=0)),
            services=services({"PS": 1, "Worker": 1}),
        )
        assert decision.actions == ()
        assert decision.status is not None
        assert shown(decision.status)[-2:] == [
            ("Running", "False", "TFJobRunning"),
            ("Succeeded", "True", "TFJobSucceeded"),
        ]
        assert counts(decision.status) == {"PS": {"succeeded": 1}, "Worker": {"succeeded": 1}}
        assert decision.status["completionTime"] == "2026-01-02T03:04:05Z"
        assert decision.again_at == NOW

    @pytest.mark.parametrize(
        ("policy", "deleted"),
        [
            (None, []),
            ("None", []),
            ("Running", ["j-ps-0", "j-worker-1"]),
            ("All", ["j-ps-0", "j-worker-0", "j-worker-1"]),
        ],
    )
    def test_clean_pod_policy(self, policy: str | None, deleted: list[str]) -> None:
        """Running means Running or Pending; services go with their pods."""
        found = job(
            {"PS": 1, "Worker": 2},
            runPolicy={"cleanPodPolicy": policy} if policy else {},
            status={"conditions": [*RUNNING[:1], condition("Succeeded")]},
        )
        decision = decide(
            found,
            pods=(pod("PS", 0), pod("Worker", 0, "Succeeded", exit_code=0), pod("Worker", 1, "Pending")),
            services=services({"PS": 1, "Worker": 2}),
        )
        assert [action.name for action in decision.actions if isinstance(action, DeletePod)] == deleted
        assert [action.name for action in decision.actions if isinstance(action, DeleteOwned)] == deleted

    def test_deleted_pods_stay_deleted(self) -> None:
        """A finished job is frozen."""
        found = job(status={"conditions": [condition("Created"), condition("Failed")]})
        assert decide(found) == Decision()

    @pytest.mark.parametrize(("later_s", "gone"), [(0, False), (2.9, False), (3, True)])
    def test_time_to_live(self, later_s: float, gone: bool) -> None:
        """The job is deleted when its time is over, and looked at again exactly then."""
        found = job(
            runPolicy={"ttlSecondsAfterFinished": 3},
            status={
                "conditions": [condition("Created"), condition("Succeeded")],
                "completionTime": "2026-01-02T03:04:05Z",
            },
        )
        decision = decide(found, later_s=later_s)
        assert decision.actions == ((DeleteJob(),) if gone else ())
        assert (decision.again_at is None) == gone


class TestLimits:
    """Reasons to fail that are not a pod's failure."""

    def test_deadline_is_a_timer(self) -> None:
        """The pass before the deadline names the moment of the next one: no other event is needed (trainer#3358)."""
        found = job(
            runPolicy={"activeDeadlineSeconds": 10},
            status={"conditions": RUNNING, "startTime": "2026-01-02T03:04:00Z"},
        )
        look = partial(decide, found, pods=(pod("Worker", 0),), services=services({"Worker": 1}))
        early = look()
        assert early.again_at is not None
        assert (early.again_at - NOW).total_seconds() == 5
        late = look(later_s=5)
        assert late.status is not None
        assert shown(late.status)[-1] == ("Failed", "True", "TFJobFailed")
        assert "longer than specified deadline" in late.status["conditions"][-1]["message"]

    def test_the_deadline_starts_with_the_job(self) -> None:
        """A deadline of 0 fails a job on its second pass, not before it has started."""
        found = job(runPolicy={"activeDeadlineSeconds": 0})
        first = decide(found)
        assert first.status is not None
        assert shown(first.status) == [("Created", "True", "TFJobCreated")]
        assert first.again_at == NOW

    @pytest.mark.parametrize(
        ("policy", "phase", "restarts", "limit", "failed"),
        [
            pytest.param("OnFailure", "Running", 3, 3, True, id="reached"),
            pytest.param("OnFailure", "Running", 2, 3, False, id="below"),
            pytest.param("OnFailure", "Running", 0, 0, False, id="zero-and-none"),
            pytest.param("OnFailure", "Running", 1, 0, True, id="zero-and-one"),
            pytest.param("OnFailure", "Pending", 3, 3, False, id="only-running-pods"),
            pytest.param("Never", "Running", 3, 3, False, id="never-is-not-counted"),
        ],
    )
    def test_backoff_limit(self, policy: str, phase: str, restarts: int, limit: int, failed: bool) -> None:
        """Restarts of the containers of running pods, over all types whose policy restarts."""
        found = job({"Worker": replicas(1, policy)}, runPolicy={"backoffLimit": limit})
        decision = decide(found, pods=(pod("Worker", 0, phase, restarts=restarts),), services=services({"Worker": 1}))
        assert decision.status is not None
        assert (("Failed", "True", "TFJobFailed") in shown(decision.status)) == failed

    @pytest.mark.parametrize(("stop", "failed"), [({COMMAND_ANNOTATION: STOP_COMMAND}, False), ({}, True)])
    def test_a_pod_that_we_ended_is_no_retry(self, stop: dict[str, str], failed: bool) -> None:
        """Removed by an edit, or by a suspension that was short."""
        found = job({"Worker": replicas(1, "Never")}, runPolicy={"backoffLimit": 0})
        ended = pod("Worker", 0, "Failed", exit_code=143, terminating=True, annotations=stop)
        status = decide(found, pods=(ended,), services=services({"Worker": 1})).status
        assert status is not None
        assert (("Failed", "True", "TFJobFailed") in shown(status)) == failed


class TestLauncherThatCannotBeInstalled:
    """The container that installs it is ours, so its end is no failure of the job."""

    @staticmethod
    def failed(ended_s: float) -> Pod:
        finished = {"exitCode": 1, "finishedAt": format_time(NOW - timedelta(seconds=ended_s))}
        inits = [{"name": INSTALL, "restartCount": 0, "state": {"terminated": finished}}]
        return pod("Worker", 0, "Failed", status={"initContainerStatuses": inits})

    @pytest.mark.parametrize("policy", ["Never", "ExitCode", "OnFailure"])
    def test_a_pod_whose_launcher_cannot_be_installed_is_recreated_after_a_while(self, policy: str) -> None:
        found = job({"Worker": replicas(1, policy)}, runPolicy={"backoffLimit": 0})
        for ended_s, deleted in ((3.0, []), (10.0, ["j-worker-0"])):
            decision = decide(found, pods=(self.failed(ended_s),), services=services({"Worker": 1}))
            assert [each.name for each in decision.actions if isinstance(each, DeletePod)] == deleted
            assert decision.status is not None
            assert "Failed" not in [type_ for type_, *_ in shown(decision.status)]
            assert [event.reason for event in decision.events] == ["LauncherNotInstalled"] * len(deleted)
            assert (decision.again_at is None) == bool(deleted)

    def test_an_init_container_of_the_users_is_the_users(self) -> None:
        inits = [{"name": "own", "restartCount": 0, "state": {"terminated": {"exitCode": 1}}}]
        own = pod("Worker", 0, "Failed", status={"initContainerStatuses": inits})
        found = job({"Worker": replicas(1, "Never")})
        status = decide(found, pods=(own,), services=services({"Worker": 1})).status
        assert status is not None
        assert ("Failed", "True", "TFJobFailed") in shown(status)


class TestAnExporterThatIsYetToEnd:
    """Kubelet says that a pod runs until it has ended the exporter, seconds after the program has ended with 0."""

    @staticmethod
    def chief(exit_code: int = 0, **spec: Any) -> Pod:
        exporter = {"name": EXPORTER, "restartPolicy": "Always"}
        whole = {"restartPolicy": "Never", "nodeName": "n", "containers": [{"name": "tensorflow"}]}
        return pod("Chief", 0, exit_code=exit_code, spec={**whole, "initContainers": [exporter], **spec})

    @staticmethod
    def decided(chief: Pod) -> Decision:
        found = job({"Chief": replicas(1, "Never"), "PS": replicas(1, "Never")})
        return decide(found, pods=(chief, pod("PS", 0)), services=services({"Chief": 1, "PS": 1}))

    @pytest.mark.parametrize("policy", ["Never", "OnFailure"])
    def test_a_job_succeeds_before_its_exporter_has_ended(self, policy: str) -> None:
        chief = self.chief(restartPolicy=policy)
        status = self.decided(chief).status
        assert status is not None
        assert ("Succeeded", "True", "TFJobSucceeded") in shown(status)
        assert not chief.ended, "it has its node until kubelet says so"

    def test_the_others_are_deleted_and_it_is_kept(self) -> None:
        finished = job(
            {"Chief": replicas(1, "Never"), "PS": replicas(1, "Never")},
            status={"conditions": [condition("Succeeded")]},
            runPolicy={"cleanPodPolicy": "Running"},
        )
        decision = decide(finished, pods=(self.chief(), pod("PS", 0)), services=services({"Chief": 1, "PS": 1}))
        assert [each.name for each in decision.actions if isinstance(each, DeletePod)] == ["j-ps-0"]

    @pytest.mark.parametrize(
        "chief",
        [
            chief(exit_code=1),
            chief(restartPolicy="Always"),
            chief(initContainers=[]),
            chief(containers=[{"name": "tensorflow"}, {"name": "another"}]),
        ],
        ids=["failed", "restarts", "no exporter", "another container runs"],
    )
    def test_a_chief_that_failed_or_restarts_or_runs_another_container_has_not_succeeded(self, chief: Pod) -> None:
        assert chief.phase == "Running"
        status = self.decided(chief).status
        assert status is not None
        assert "Succeeded" not in [type_ for type_, *_ in shown(status)]


class TestRestart:
    """Failed pods that get another try."""

    @pytest.mark.parametrize(
        ("policy", "exit_code", "verdict"),
        [
            ("OnFailure", 1, "Restarting"),
            ("Always", 1, "Restarting"),
            ("ExitCode", 130, "Restarting"),
            ("ExitCode", None, "Restarting"),
            ("ExitCode", 1, "Failed"),
            ("ExitCode", 127, "Failed"),
            ("ExitCode", 0, "Failed"),
            ("Never", 130, "Failed"),
        ],
    )
    def test_policy(self, policy: str, exit_code: int | None, verdict: str) -> None:
        """A retried pod is deleted, to be created anew by the next pass."""
        found = job({"Worker": replicas(1, policy)}, status={"conditions": RUNNING})
        failed = pod("Worker", 0, "Failed", exit_code=exit_code)
        decision = decide(found, pods=(failed,), services=services({"Worker": 1}))
        assert decision.status is not None
        assert shown(decision.status)[-1] == (verdict, "True", f"TFJob{verdict}")
        restarts = verdict == "Restarting"
        assert decision.actions == ((DeletePod(failed.name, failed.uid),) if restarts else ())
        assert decision.counts == ((Count("restarted"),) if restarts else (Count("failed"),))

    def test_counted_once(self) -> None:
        """While the failed pod is still there, being deleted, the restart is neither repeated nor counted again."""
        found = job(
            {"Worker": replicas(1, "OnFailure")}, status={"conditions": [condition("Created"), condition("Restarting")]}
        )
        decision = decide(found, pods=(pod("Worker", 0, "Failed", terminating=True),), services=services({"Worker": 1}))
        assert (decision.actions, decision.counts) == ((), ())
        assert decision.status is not None
        assert shown(decision.status)[-1] == ("Restarting", "True", "TFJobRestarting")

    def test_dynamic_workers_may_fail(self) -> None:
        """A failed worker does not fail a job with dynamic workers; a failed PS does."""
        found = job({"PS": 1, "Worker": 2}, enableDynamicWorker=True)
        look = partial(decide, found, services=services({"PS": 1, "Worker": 2}))
        workers = (pod("Worker", 0), pod("Worker", 1, "Failed", exit_code=1))
        lives = look(pods=(pod("PS", 0), *workers))
        assert lives.status is not None
        assert shown(lives.status)[-1][0] == "Running"
        dies = look(pods=(pod("PS", 0, "Failed", exit_code=1), *workers))
        assert dies.status is not None
        assert shown(dies.status)[-1][0] == "Failed"


class TestTerminating:
    """Running pods that are being deleted."""

    def test_a_pod_that_another_client_deletes_has_failed(self) -> None:
        """Upstream's rule: a pod that is drained away has failed."""
        decision = decide(job(), pods=(pod("Worker", 0, terminating=True),), services=services({"Worker": 1}))
        assert decision.status is not None
        assert counts(decision.status) == {"Worker": {"failed": 1}}
        assert shown(decision.status)[-1][0] == "Failed"

    def test_a_pod_that_the_operator_deletes_has_not_failed(self) -> None:
        """A pod with our note on it has not failed, and its place is not filled before it is gone."""
        leaving = pod("Worker", 0, terminating=True, annotations=STOPPED)
        decision = decide(job(), pods=(leaving,), services=services({"Worker": 1}))
        assert decision.actions == ()
        assert decision.status is not None
        assert shown(decision.status) == [("Created", "True", "TFJobCreated")]

    def test_scale_down(self) -> None:
        """Replicas out of range are removed with a note, and their end does not fail the job."""
        found = job({"Worker": 1}, status={"conditions": RUNNING})
        extra = pod("Worker", 1)
        decision = decide(found, pods=(pod("Worker", 0), extra), services=services({"Worker": 2}))
        assert decision.actions == (
            DeletePod(extra.name, extra.uid, mark=True),
            DeleteOwned("Service", "j-worker-1", "j-worker-1-svc-uid"),
        )
        leaving = pod("Worker", 1, terminating=True, annotations=STOPPED)
        after = decide(found, pods=(pod("Worker", 0), leaving), services=services({"Worker": 1}))
        assert after.status is not None
        assert counts(after.status) == {"Worker": {"active": 1}}


class TestSuspend:
    """Suspend removes everything, resume starts anew."""

    def test_suspend(self) -> None:
        """All pods and services go, whatever cleanPodPolicy says; the start time stays."""
        found = job(
            runPolicy={"suspend": True},
            status={
                "conditions": RUNNING,
                "replicaStatuses": {"Worker": {"active": 1}},
                "startTime": "2026-01-01T00:00:00Z",
            },
        )
        decision = decide(found, pods=(pod("Worker", 0),), services=services({"Worker": 1}))
        assert decision.actions == (
            DeletePod("j-worker-0", "j-worker-0-uid", mark=True),
            DeleteOwned("Service", "j-worker-0", "j-worker-0-svc-uid"),
        )
        assert decision.status is not None
        assert shown(decision.status) == [
            ("Created", "True", "TFJobCreated"),
            ("Running", "False", "TFJobSuspended"),
            ("Suspended", "True", "TFJobSuspended"),
        ]
        assert counts(decision.status) == {"Worker": {}}
        assert decision.status["startTime"] == EARLIER

    def test_resume_while_old_pods_end(self) -> None:
        """A quick resume waits for the old pods, and does not take their end for a failure."""
        found = job(
            status={"conditions": [condition("Created"), condition("Suspended")], "startTime": "2026-01-01T00:00:00Z"}
        )
        leaving = pod("Worker", 0, terminating=True, annotations=STOPPED)
        decision = decide(found, pods=(leaving,))
        assert created(decision) == ["Service/j-worker-0"]
        assert decision.status is not None
        assert shown(decision.status) == [("Created", "True", "TFJobCreated"), ("Suspended", "False", "TFJobResumed")]
        assert decision.status["startTime"] == "2026-01-02T03:04:05Z"


class TestOwnership:
    """Names are not enough: the owner's uid decides."""

    def test_pods_of_an_earlier_job_of_the_same_name_are_waited_for(self) -> None:
        """Its pods are no replicas of this job, and their names are waited for."""
        left = pod("Worker", 0, owner="earlier", terminating=True)
        decision = decide(job({"Worker": 2}), pods=(left,), services=(service("Worker", 1, owner="earlier"),))
        assert created(decision) == ["Pod/j-worker-1", "Service/j-worker-0"]
        assert decision.status is not None
        assert counts(decision.status) == {"Worker": {}}

    def test_orphan_service(self) -> None:
        """A service with the right labels and no controller is adopted, not doubled."""
        decision = decide(job(), pods=(pod("Worker", 0),), services=(service("Worker", 0, owner=""),))
        assert decision.actions == (AdoptService("j-worker-0", "j-worker-0-svc-uid"),)


class TestGang:
    """PodGroups."""

    VOLCANO = ReconcileSettings(gang_scheduler="Volcano")
    PLUGINS = ReconcileSettings(gang_scheduler="my-scheduler")

    def test_volcano_first_the_group(self) -> None:
        """No pod is created before Volcano has admitted the gang."""
        worker = replicas(
            2, containers=[{"name": "tensorflow", "image": "t", "resources": {"requests": {"cpu": "500m"}}}]
        )
        decision = decide(job({"Worker": worker, "PS": 1}), settings=self.VOLCANO)
        (action,) = decision.actions
        assert isinstance(action, Create)
        assert action.body["apiVersion"] == "scheduling.volcano.sh/v1beta1"
        assert action.body["spec"] == {"minMember": 3, "queue": "default", "minResources": {"cpu": "1"}}
        assert decision.status is not None
        assert decision.status["lastReconcileTime"] == "2026-01-02T03:04:05Z"

    def test_volcano_admitted(self) -> None:
        """Then the pods are its members."""
        group = pod_group(phase="Inqueue", minMember=1, queue="moved-here", minResources={})
        decision = decide(job(), settings=self.VOLCANO, pod_group=group)
        (body, *_) = bodies(decision)
        assert body["spec"]["schedulerName"] == "volcano"
        assert body["metadata"]["annotations"] == {
            "scheduling.k8s.io/group-name": "j",
            "volcano.sh/task-spec": "worker",
        }

    def test_scheduler_plugins(self) -> None:
        """Group and pods are created together; a scheduler that the user named stays, with a warning."""
        decision = decide(job({"Worker": replicas(1, schedulerName="mine")}), settings=self.PLUGINS)
        group, worker, _ = bodies(decision)
        assert group["spec"] == {"minMember": 1, "minResources": {}}
        assert worker["spec"]["schedulerName"] == "mine"
        assert worker["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "j"
        assert [event.reason for event in decision.events] == ["SetPodTemplateSchedulerName"]

    def test_changed_and_removed(self) -> None:
        """A changed job changes its group; a finished one deletes it."""
        policy = {"schedulingPolicy": {"minAvailable": 2, "queue": "q", "scheduleTimeoutSeconds": 9}}
        group = pod_group(minMember=1, minResources={})
        running = decide(job({"Worker": 3}, runPolicy=policy), settings=self.PLUGINS, pod_group=group)
        assert running.actions[0] == UpdatePodGroup(
            "j", {"minMember": 2, "minResources": {}, "scheduleTimeoutSeconds": 9}
        )
        finished = job(status={"conditions": [condition("Created"), condition("Failed")]})
        assert decide(finished, settings=self.PLUGINS, pod_group=group).actions == (
            DeleteOwned("PodGroup", "j", "group-uid"),
        )

    def test_min_resources_of_the_first_members(self) -> None:
        """The first `minAvailable` pods by priority; limits stand in for requests that are not given."""

        def with_resources(count: int, resources: dict[str, Any], priority: str) -> dict[str, Any]:
            container = {"name": "tensorflow", "image": "t", "resources": resources}
            return replicas(count, containers=[container], priorityClassName=priority)

        found = job(
            {
                "PS": with_resources(2, {"requests": {"cpu": "1500m", "memory": "1Gi"}}, "high"),
                "Worker": with_resources(4, {"limits": {"cpu": 2}}, "low"),
            },
            runPolicy={"schedulingPolicy": {"minAvailable": 3}},
        )
        decision = decide(found, settings=self.PLUGINS, priorities={"high": 10, "low": 1})
        assert bodies(decision)[0]["spec"]["minResources"] == {"cpu": "5", "memory": "2147483648"}


def test_troubles_are_told() -> None:
    """Why a pod does not run shows on the job: its container's state, else its newest condition."""
    waiting = pod(
        "Worker",
        0,
        "Pending",
        status={
            "containerStatuses": [
                {"name": "tensorflow", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
            ]
        },
    )
    unplaced = pod(
        "Worker",
        1,
        "Pending",
        status={
            "containerStatuses": [],
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/3 nodes",
                    "lastTransitionTime": "2026-01-02T03:04:05Z",
                }
            ],
        },
    )
    decision = decide(job({"Worker": 2}), pods=(waiting, unplaced), services=services({"Worker": 2}))
    assert decision.events == (
        Event(
            "Warning", "ImagePullBackOff", "Error pod j-worker-0 container tensorflow waiting message: no such image"
        ),
        Event("Warning", "Unschedulable", "Error pod j-worker-1 condition message: 0/3 nodes"),
    )


def test_numbers_beyond_the_calendar() -> None:
    """A deadline or time to live of 30,000 years is as none, and a start time that is none begins anew."""
    look = partial(decide, pods=(pod("Worker", 0),), services=services({"Worker": 1}))
    policy = {"activeDeadlineSeconds": 999_999_999_999, "ttlSecondsAfterFinished": 2**31 - 1}
    running = look(job(runPolicy=policy, status={"startTime": "9000-01-01T00:00:00Z"}))
    assert running.again_at is not None
    status = {"conditions": [condition("Created"), condition("Succeeded")], "completionTime": "9990-01-01T00:00:00Z"}
    assert decide(job(runPolicy=policy, status=status)).actions == ()
    for no_time in NO_TIMES:
        found = look(job(runPolicy={"activeDeadlineSeconds": 10**12}, status={"startTime": no_time}))
        assert found.status is not None
        assert shown(found.status)[-1][0] == "Running"


class TestMarked:
    """Pods with our note on them that nobody deleted: the operator was killed between the two."""

    @pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
    def test_a_marked_pod_is_deleted_and_recreated(self, phase: str) -> None:
        """Its end would count for nothing, so it must not stay."""
        marked = pod("Worker", 0, phase, exit_code=0 if phase == "Succeeded" else 1, annotations=STOPPED)
        found = job({"Worker": 2}, successPolicy="AllWorkers")
        decision = decide(found, pods=(marked, pod("Worker", 1)), services=services({"Worker": 2}))
        assert [action.name for action in decision.actions if isinstance(action, DeletePod)] == ["j-worker-0"]
        assert created(decide(found, pods=(pod("Worker", 1),), services=services({"Worker": 2}))) == ["Pod/j-worker-0"]


# What holds for every observation.

PODS = st.lists(
    st.builds(
        pod,
        st.sampled_from(["Chief", "PS", "Worker"]),
        st.integers(0, 3),
        st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
        exit_code=st.sampled_from([None, 0, 1, 137]),
        terminating=st.booleans(),
        restarts=st.integers(0, 3),
    ),
    max_size=6,
    unique_by=lambda found: found.name,
)
JOBS = st.builds(
    job,
    st.dictionaries(
        st.sampled_from(["Chief", "PS", "Worker", "Evaluator"]),
        st.builds(replicas, st.integers(0, 3), st.sampled_from([None, "Never", "OnFailure", "Always", "ExitCode"])),
    ),
    runPolicy=st.fixed_dictionaries(
        {},
        optional={
            "suspend": st.booleans(),
            "cleanPodPolicy": st.sampled_from(["None", "Running", "All"]),
            "backoffLimit": st.integers(0, 3),
            "activeDeadlineSeconds": st.integers(0, 100),
            "ttlSecondsAfterFinished": st.integers(0, 100),
        },
    ),
    enableDynamicWorker=st.booleans(),
    successPolicy=st.sampled_from(["", "AllWorkers"]),
)


def stored(found: TFJob, decision: Decision) -> TFJob:
    """The job once the decision's status is stored."""
    if decision.status is None:
        return found
    return TFJob(
        found.namespace,
        found.name,
        found.uid,
        found.version + 1,
        found.deleting,
        found.annotations,
        found.raw_spec,
        orjson.dumps(decision.status),
    )


@given(JOBS, PODS)
def test_every_decision(found: TFJob, pods: list[Pod]) -> None:
    """Each replica is created at most once and only in range; deleted only if there, once; a verdict settles."""
    spec = found.spec()
    decision = decide(found, pods=tuple(pods))
    names = created(decision)
    assert len(names) == len(set(names))
    ranges = {f"j-{name.lower()}-{i}" for name, entry in spec.tf_replica_specs.items() for i in range(entry.count)}
    present = {item.name for item in pods}
    for name in names:
        kind, _, replica = name.partition("/")
        assert replica in ranges
        assert kind == "Service" or replica not in present
    deleted = [action.name for action in decision.actions if isinstance(action, DeletePod)]
    assert len(deleted) == len(set(deleted))
    assert set(deleted) <= {item.name for item in pods if not item.terminating}
    # The world as it is, the status stored: after at most two more passes nothing is left to write.
    for _ in range(3):
        found = stored(found, decision)
        decision = decide(found, pods=tuple(pods))
    assert decision.status is None


@given(JOBS, PODS, PODS)
def test_a_finished_job_stays_finished(found: TFJob, before: list[Pod], after: list[Pod]) -> None:
    """Whatever its pods do later, no pod is created and the verdict stands."""
    found = stored(found, decide(found, pods=tuple(before)))
    assume(found.status().finished)
    decision = decide(found, pods=tuple(after), later_s=1000)
    assert created(decision) == []
    verdicts = {"Succeeded", "Failed"}
    assert {item.type for item in stored(found, decision).status().conditions if item.status == "True"} & verdicts


@pytest.mark.parametrize(
    "labels",
    [
        {"replica_type": "other"},
        {"index": None},
        {"replica_type": "ps", "index": 0},
        {"index": 0},
        {"replica_type": ""},
    ],
)
def test_a_pod_of_the_job_whose_labels_somebody_changed_is_told(labels: dict[str, Any]) -> None:
    """Its name is not free, so the replica cannot be made anew; nor is the pod deleted, which may be kept to be looked
    at. Without a word the job would wait for nobody knows what."""
    types = {"PS": 1, "Worker": 2}
    there = (pod("PS", 0), pod("Worker", 0), replace(pod("Worker", 1), **labels))
    decision = decide(job(types), pods=there, services=services(types))
    (event,) = [event for event in decision.events if event.reason == "FailedCreatePod"]
    assert event.type == "Warning"
    assert "pod j-worker-1 of this job exists" in event.message
    assert not decision.actions
    leaving = decide(job(types), pods=(*there[:2], replace(there[2], terminating=True)), services=services(types))
    assert not [event for event in leaving.events if event.reason == "FailedCreatePod"]
    healthy = decide(job(types), pods=(*there[:2], pod("Worker", 1)), services=services(types))
    assert not [event for event in healthy.events if event.reason == "FailedCreatePod"]


def test_worker_0_that_was_told_to_end_has_not_done_the_jobs_work() -> None:
    """Its program may end with 0 at SIGTERM: a drain, a preemption or a change of size is no success."""
    annotations = {f"{PREFIX}checkpoint-dir": "/checkpoints"}
    ended = pod("worker", 0, "Succeeded", exit_code=0)
    told = replace(ended, terminating=True, command=STOP_COMMAND)
    decision = decide(job({"Worker": 2}, annotations=annotations), pods=(told, pod("worker", 1)))
    assert decision.status is not None
    assert "Succeeded" not in [each["type"] for each in decision.status["conditions"]]
    by_itself = decide(job({"Worker": 2}, annotations=annotations), pods=(ended, pod("worker", 1)))
    assert by_itself.status is not None
    assert "Succeeded" in [each["type"] for each in by_itself.status["conditions"]]


def test_a_pod_that_has_not_begun_is_marked_before_it_is_deleted() -> None:
    """The kubelet calls it Failed then, which a job of the policy Never would be, too, when it is resumed soon."""
    bound = replace(pod("worker", 0, "Pending"), node="node-1")
    pods = (bound, pod("worker", 1, "Pending"), pod("worker", 2), pod("worker", 3, "Failed", exit_code=1))
    decision = decide(job({"Worker": 4}, runPolicy={"suspend": True}), pods=pods)
    marks = {action.name: action.mark for action in decision.actions if isinstance(action, DeletePod)}
    assert marks == {"j-worker-0": True, "j-worker-1": False, "j-worker-2": True, "j-worker-3": False}


class TestDoneWhenTensorflowExits:
    """The container `tensorflow` alone says whether a replica is done, for jobs that ask for it."""

    DONE = {f"{PREFIX}done-when": "tensorflow-exits"}  # noqa: RUF012

    @staticmethod
    def beside(
        exit_code: int | None, *, phase: str = "Running", policy: str = "Never", sidecar: str = "running"
    ) -> Pod:
        """Worker 0, whose container tensorflow has ended with this code, or runs, beside a container of the user's."""
        trains = {"running": {}} if exit_code is None else {"terminated": {"exitCode": exit_code}}
        other: dict[str, Any] = {sidecar: {} if sidecar == "running" else {"exitCode": 1}}
        states = {"istio-proxy": other, "tensorflow": trains}
        containers = [{"name": name, "state": state} for name, state in states.items()]
        spec = {"restartPolicy": policy, "containers": [{"name": name} for name in states], "nodeName": "n"}
        return pod("Worker", 0, phase, spec=spec, status={"containerStatuses": containers})

    @pytest.mark.parametrize(
        ("worker", "said", "condition"),
        [
            pytest.param(beside(0), True, "Succeeded", id="done"),
            pytest.param(beside(0), False, "Running", id="not asked for"),
            pytest.param(beside(None), True, "Running", id="it trains"),
            pytest.param(beside(0, policy="OnFailure"), True, "Succeeded", id="not restarted"),
            pytest.param(beside(0, policy="Always"), True, "Running", id="the kubelet restarts it"),
            pytest.param(beside(1, policy="OnFailure"), True, "Running", id="the kubelet restarts what failed"),
            pytest.param(beside(1), True, "Failed", id="failed"),
            pytest.param(beside(0, phase="Failed", sidecar="terminated"), True, "Succeeded", id="a sidecar failed"),
            pytest.param(
                beside(0, phase="Failed", sidecar="terminated"), False, "Failed", id="a sidecar fails the pod"
            ),
        ],
    )
    def test_the_verdict(self, worker: Pod, *, said: bool, condition: str) -> None:
        """By its exit code and by whether the kubelet restarts it."""
        types = {"Worker": replicas(1, "Never")}
        decision = decide(
            job(types, annotations=self.DONE if said else {}), pods=(worker,), services=services({"Worker": 1})
        )
        assert decision.status is not None
        newest = [each["type"] for each in decision.status["conditions"] if each["status"] == "True"][-1]
        assert newest == condition
        assert not any(isinstance(action, DeletePod) for action in decision.actions), "before the verdict is stored"

    @pytest.mark.parametrize(("code", "restarts"), [(143, True), (1, False)])
    def test_exit_codes(self, *, code: int, restarts: bool) -> None:
        """With ExitCode a retryable end has the pod made anew though the sidecar runs; another fails the job."""
        ours = job({"Worker": replicas(1, "ExitCode")}, annotations=self.DONE)
        decision = decide(ours, pods=(self.beside(code),), services=services({"Worker": 1}))
        assert any(isinstance(action, DeletePod) for action in decision.actions) == restarts
        assert decision.status is not None
        assert decision.status["conditions"][-1]["type"] == ("Restarting" if restarts else "Failed")

    @pytest.mark.parametrize("policy", ["None", "Running", "All"])
    @pytest.mark.parametrize("said", [True, False])
    def test_sidecars_end_with_the_job(self, policy: str, *, said: bool) -> None:
        """Whatever the cleanPodPolicy; one that asks for nothing is treated as upstream treats it."""
        ours = job(
            {"Worker": replicas(1, "Never")},
            annotations=self.DONE if said else {},
            status={"conditions": [condition("Created"), condition("Succeeded")]},
            runPolicy={"cleanPodPolicy": policy},
        )
        decision = decide(ours, pods=(self.beside(0),), services=services({"Worker": 1}))
        deleted = [action.name for action in decision.actions if isinstance(action, DeletePod)]
        assert deleted == (["j-worker-0"] if said or policy != "None" else [])

    def test_a_pod_whose_containers_have_all_ended_stays(self) -> None:
        """With cleanPodPolicy None, for its logs: also for the seconds that our exporter outlives them."""
        worker = pod(
            "Worker",
            0,
            exit_code=0,
            spec={
                "restartPolicy": "Never",
                "containers": [{"name": "tensorflow"}],
                "initContainers": [{"name": EXPORTER}],
            },
        )
        status = {"conditions": [condition("Created"), condition("Succeeded")]}
        ours = job({"Worker": replicas(1, "Never")}, annotations=self.DONE, status=status)
        assert not decide(ours, pods=(worker,), services=services({"Worker": 1})).actions
