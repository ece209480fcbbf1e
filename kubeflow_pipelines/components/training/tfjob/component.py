"""The component `tfjob`, which runs a TFJob to its end."""

from kfp import dsl

IMAGE = "registry.example.com/elastic-tfjob/operator:0.1.0"


@dsl.container_component
def tfjob(
    run_id: str,
    job_name: dsl.OutputPath(str),
    final_condition: dsl.OutputPath(str),
    model_dir: dsl.OutputPath(str),
    metrics: dsl.Output[dsl.Metrics],
    model: dsl.Output[dsl.Model],
    timeline: dsl.Output[dsl.HTML],
    name: str = "",
    manifest: dict = {},
    replicas: dict = {},
    elastic: dict = {},
    checkpoint_dir: str = "",
    deadline: str = "",
    timeout: str = "",
    when_done: str = "keep",
    model_path: str = "",
):
    """Runs a TFJob to its end. The step fails if the job fails, is deleted or times out. A retry attaches to the same
    job.

    Args:
        run_id: Pass dsl.PIPELINE_JOB_ID_PLACEHOLDER. It becomes a label of the job.
        job_name: Name of the TFJob.
        final_condition: Succeeded, Failed, Deleted, TimedOut or Terminated.
        model_dir: The directory of the model: model_path, or else the annotation checkpoint-dir.
        metrics: steps, steps_per_s, rescales, downtime_s, deadline_met (1 or 0), as far as known.
        model: The model. Its uri is pvc://CLAIM/PATH, or model_path if that is a URL.
        timeline: A page with the job's sizes over time, and the decisions with their reasons.
        name: Prefix of the job's name. Default: the manifest's name, or else tfjob.
        manifest: A whole TFJob. Give either manifest or replicas.
        replicas: A ReplicaSpec for each replica type, such as {"Chief": {...}, "PS": {...}}.
        elastic: Annotations without their prefix, such as {"min-workers": 1, "max-workers": 4}.
        checkpoint_dir: The annotation checkpoint-dir, as an input that a pipeline can compute.
        deadline: A time (2026-01-31T18:00:00Z) or a duration after the job's creation (90m).
        timeout: A duration (90m) after the job's creation. Then the job is stopped and the step fails. Default: none.
        when_done: Whether to keep or delete the TFJob at the end (keep, delete).
        model_path: Where the program writes the model. Default: the annotation checkpoint-dir.
    """
    return dsl.ContainerSpec(
        image=IMAGE,
        command=["elastic-tfjob", "pipeline", "run"],
        args=["--executor-input", "{{$}}", "--timeline", timeline.path],
    )
