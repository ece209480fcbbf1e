"""JobSets that Kubeflow Trainer v2 makes for TrainJobs, run as TFJobs: a front door to this operator."""
