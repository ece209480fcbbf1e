"""The component `tfjob`: runs a TFJob to its end."""

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
    """Runs a TFJob to its end; fails where the job fails, is deleted or is too late. A retry attaches to the same job.

    Args:
        run_id: Give dsl.PIPELINE_JOB_ID_PLACEHOLDER. It becomes a label of the job.
        job_name: Name of the TFJob.
        final_condition: Succeeded, Failed, Deleted, TimedOut or Terminated.
        model_dir: The directory of the model: model_path, else the annotation checkpoint-dir.
        metrics: steps, steps_per_s, rescales, downtime_s, deadline_met (1 or 0); what is not known is left out.
        model: Its uri is pvc://CLAIM/PATH, or the URL that model_path is.
        timeline: Sizes of the job over time, and what was decided and why.
        name: How the job's name begins. Default: the manifest's, else tfjob.
        manifest: A whole TFJob; or else replicas.
        replicas: A ReplicaSpec for each replica type, such as {"Chief": {...}, "PS": {...}}; or else manifest.
        elastic: Annotations without their prefix, such as {"min-workers": 1, "max-workers": 4}.
        checkpoint_dir: Where checkpoints go: the annotation of that name, as an input that a pipeline can compute.
        deadline: A time (2026-01-31T18:00:00Z) or a duration after the job's creation (90m).
        timeout: A duration (90m) after the job's creation; then the job is stopped and the step fails. Default: none.
        when_done: keep or delete the TFJob at the end.
        model_path: Where the program leaves the model. Default: the annotation checkpoint-dir.
    """
    return dsl.ContainerSpec(
        image=IMAGE,
        command=["elastic-tfjob", "pipeline", "run"],
        args=["--executor-input", "{{$}}", "--timeline", timeline.path],
    )
