"""The component `tfjob_cleanup`: deletes the TFJobs of a run."""

from kfp import dsl

IMAGE = "registry.example.com/elastic-tfjob/operator:0.1.0"


@dsl.container_component
def tfjob_cleanup(run_id: str, deleted: dsl.OutputPath(list), namespace: str = ""):
    """Deletes the TFJobs that steps `tfjob` of a run created, whatever they do: for an ExitHandler.

    Args:
        run_id: Give dsl.PIPELINE_JOB_ID_PLACEHOLDER.
        deleted: Names of the TFJobs.
        namespace: Where they are. Default: that of the run.
    """
    return dsl.ContainerSpec(
        image=IMAGE, command=["elastic-tfjob", "pipeline", "cleanup"], args=["--executor-input", "{{$}}"]
    )
