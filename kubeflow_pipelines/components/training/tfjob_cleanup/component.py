"""The component `tfjob_cleanup`, which deletes the TFJobs of a run."""

from kfp import dsl

IMAGE = "registry.example.com/elastic-tfjob/operator:0.1.0"


@dsl.container_component
def tfjob_cleanup(run_id: str, deleted: dsl.OutputPath(list), namespace: str = ""):
    """Deletes the TFJobs that the `tfjob` steps of a run created, whatever their state. Use it in an ExitHandler.

    Args:
        run_id: Pass dsl.PIPELINE_JOB_ID_PLACEHOLDER.
        deleted: Names of the deleted TFJobs.
        namespace: Namespace of the TFJobs. Default: that of the run.
    """
    return dsl.ContainerSpec(
        image=IMAGE, command=["elastic-tfjob", "pipeline", "cleanup"], args=["--executor-input", "{{$}}"]
    )
