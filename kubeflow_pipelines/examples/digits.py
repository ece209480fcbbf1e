"""A pipeline: prepares data, trains on them by a TFJob with a deadline that changes its size, and evaluates the model.

    pip install kfp kfp-kubernetes
    python kubeflow_pipelines/examples/digits.py OPERATOR_IMAGE TRAINER_IMAGE pipeline.yaml

The steps and the TFJob share a volume that many nodes can write to, the claim `checkpoints` of the run's namespace
(manifests/samples/checkpoints.yaml). Outputs to look at: the page `timeline` of the step `tfjob` (its sizes, and why),
and the page `errors` of `evaluate`. However the run ends, its TFJob is deleted.
"""

import sys
from pathlib import Path
from typing import Any

from kfp import compiler, dsl, kubernetes

sys.path.insert(0, str(Path(__file__).parents[1]))

from components.training import tfjob, tfjob_cleanup

CLAIM, MOUNT, HIDDEN = "checkpoints", "/checkpoints", 128


def replica(trainer: str, steps: int) -> dict[str, Any]:
    """One replica of the job. Its data are below its checkpoint-dir, which the pipeline computes."""
    container = {
        "name": "tensorflow",
        "image": trainer,
        "command": ["python", "/app/digits.py", f"--steps={steps}", f"--hidden={HIDDEN}", "--data=data"],
        "resources": {"requests": {"cpu": "200m", "memory": "400Mi"}, "limits": {"memory": "2Gi"}},
        "volumeMounts": [{"name": CLAIM, "mountPath": MOUNT}],
    }
    volume = {"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM}}
    template = {"spec": {"containers": [container], "volumes": [volume]}}
    return {"replicas": 1, "restartPolicy": "OnFailure", "template": template}


def pipeline(operator: str, trainer: str, steps: int = 2000, volume: dict[str, Any] | None = None) -> Any:
    """The pipeline with these images; `volume` stands in place of the claim in the job's pods."""

    @dsl.container_component
    def prepare(folder: str, prepared: dsl.OutputPath(str)):  # type: ignore[valid-type]
        return dsl.ContainerSpec(image=trainer, command=["python", "/app/steps.py", "prepare"], args=[folder, prepared])

    @dsl.container_component
    def evaluate(folder: str, accuracy: dsl.OutputPath(float), errors: dsl.Output[dsl.HTML]):  # type: ignore[valid-type]
        command = ["python", "/app/steps.py", "evaluate"]
        return dsl.ContainerSpec(image=trainer, command=command, args=[folder, str(HIDDEN), accuracy, errors.path])

    run, clean_up = tfjob.load(operator), tfjob_cleanup.load(operator)
    roles = {kind: replica(trainer, steps) for kind in ("Chief", "PS", "Worker")}
    if volume is not None:
        for role in roles.values():
            role["template"]["spec"]["volumes"] = [{"name": CLAIM, **volume}]

    @dsl.pipeline(name="digits", description="prepare, train by an elastic TFJob, evaluate")
    def digits(folder: str = f"{MOUNT}/pipelines", deadline: str = "1h"):
        with dsl.ExitHandler(clean_up(run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER)):
            prepared = prepare(folder=f"{folder}/{dsl.PIPELINE_JOB_ID_PLACEHOLDER}")
            trained = run(
                run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
                name="digits",
                replicas=roles,
                elastic={"min-workers": 1, "max-workers": 3},
                checkpoint_dir=prepared.outputs["prepared"],
                deadline=deadline,
                timeout="4h",
            )
            trained.set_retry(2)
            evaluated = evaluate(folder=trained.outputs["model_dir"])
            for task in (prepared, evaluated):
                kubernetes.mount_pvc(task, pvc_name=CLAIM, mount_path=MOUNT)

    return digits


if __name__ == "__main__":
    compiler.Compiler().compile(pipeline(*sys.argv[1:3]), sys.argv[3])
