"""elastic-tfjob: a drop-in operator for kubeflow.org/v1 TFJobs that makes parameter-server training elastic."""
