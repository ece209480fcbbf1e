# /// script
# requires-python = ">=3.11"
# dependencies = ["kubeflow-training==1.9.4"]
# ///
"""What users' own programs do: the unchanged SDK of the training-operator creates, follows and deletes a TFJob.

    uv run --script e2e/sdk_client.py NAMESPACE IMAGE

A script with its own locked environment (sdk_client.py.lock): the SDK needs an older `kubernetes` than the operator.
"""

import sys

from kubeflow.training import (  # type: ignore[import-not-found]  # of the script's own environment
    KubeflowOrgV1ReplicaSpec,
    KubeflowOrgV1RunPolicy,
    KubeflowOrgV1TFJob,
    KubeflowOrgV1TFJobSpec,
    TrainingClient,
    constants,
)
from kubernetes.client import V1Container, V1ObjectMeta, V1PodSpec, V1PodTemplateSpec

NAME = "from-sdk"


def replicas(count: int, image: str) -> KubeflowOrgV1ReplicaSpec:
    # Long enough that a busy operator sees them run.
    container = V1Container(name="tensorflow", image=image, command=["sh", "-c", "echo hello from $HOSTNAME; sleep 30"])
    template = V1PodTemplateSpec(spec=V1PodSpec(containers=[container]))
    return KubeflowOrgV1ReplicaSpec(replicas=count, restart_policy="Never", template=template)


def main() -> None:
    namespace, image = sys.argv[1:]
    client = TrainingClient(namespace=namespace, job_kind=constants.TFJOB_KIND)
    job = KubeflowOrgV1TFJob(
        api_version=constants.API_VERSION,
        kind=constants.TFJOB_KIND,
        metadata=V1ObjectMeta(name=NAME, namespace=namespace),
        spec=KubeflowOrgV1TFJobSpec(
            run_policy=KubeflowOrgV1RunPolicy(clean_pod_policy="None"),
            tf_replica_specs={"Chief": replicas(1, image), "Worker": replicas(2, image)},
        ),
    )
    client.create_job(job)
    finished = client.wait_for_job_conditions(NAME, timeout=400, polling_interval=2)
    assert client.is_job_succeeded(NAME), finished.status
    assert [c.type for c in finished.status.conditions] == ["Created", "Running", "Succeeded"], finished.status
    assert {job.metadata.name for job in client.list_jobs()} == {NAME}
    pods = client.get_job_pod_names(NAME)
    assert sorted(pods) == [f"{NAME}-chief-0", f"{NAME}-worker-0", f"{NAME}-worker-1"], pods
    logs, _ = client.get_job_logs(NAME, is_master=True)
    assert any(f"hello from {NAME}-chief-0" in text for text in logs.values()), logs
    client.delete_job(NAME)
    print("created, waited, listed, read the logs, deleted")


if __name__ == "__main__":
    main()
