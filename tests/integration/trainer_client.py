# /// script
# requires-python = ">=3.10"
# dependencies = ["kubeflow==0.5.0"]
# ///
"""What users' own programs do: the unchanged SDK of Kubeflow creates, follows and deletes a TrainJob.

    uv run --script tests/integration/trainer_client.py create|status|delete NAMESPACE [NAME]

A script with its own locked environment (trainer_client.py.lock): the SDK needs another `kubernetes` than the operator.
"""

import sys

from kubeflow.common.types import KubernetesBackendConfig  # type: ignore[import-not-found]  # of the script's own environment
from kubeflow.trainer import CustomTrainerContainer, TrainerClient  # type: ignore[import-not-found]


def main() -> None:
    what, namespace, *names = sys.argv[1:]
    client = TrainerClient(KubernetesBackendConfig(namespace=namespace))
    if what == "create":
        runtime = client.get_runtime("tensorflow-ps")
        trainer = CustomTrainerContainer(image="digits", num_nodes=2, env={"EPOCHS": "3"})
        name = client.train(runtime=runtime, trainer=trainer)
        client.wait_for_job_status(name, status={"Running"}, timeout=120)
        print(name)
        return
    (name,) = names
    if what == "delete":
        client.delete_job(name)
        return
    job = client.get_job(name)
    print(job.status, *sorted(f"{step.name}={step.status}" for step in job.steps))


if __name__ == "__main__":
    main()
