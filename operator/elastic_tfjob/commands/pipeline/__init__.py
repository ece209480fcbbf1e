"""The steps of Kubeflow Pipelines: `elastic-tfjob pipeline run` and `pipeline cleanup`."""
