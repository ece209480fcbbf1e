"""The catalogue of all events that the operator writes, and their meaning. docs/reference/events.md is made from it.

A test compares it with the code. Reasons that upstream's training-operator also writes keep its names. In addition,
there are events with the reason that kubelet or kube-scheduler give for a pod that does not start (`Unschedulable`,
`ErrImagePull`)."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

__all__ = ["EVENTS", "Meaning"]


class Meaning(NamedTuple):
    """An event's meaning. `type` is as in Kubernetes; `about` is the kind of object that has the event."""

    type: Literal["Normal", "Warning", "Normal or Warning"]
    about: str
    text: str


EVENTS: Final[Mapping[str, Meaning]] = {
    # The life cycle of a job, as in upstream
    "TFJobFailedValidation": Meaning(
        "Warning",
        "TFJob",
        "The spec is invalid. No pod is created, and running pods are not touched. The message names the field.",
    ),
    "TFJobSuspended": Meaning("Normal", "TFJob", "The job was suspended; its pods are deleted."),
    "TFJobResumed": Meaning("Normal", "TFJob", "The job was resumed."),
    "TFJobRestarting": Meaning("Warning", "TFJob", "A replica failed and is recreated."),
    "TFJobSucceeded": Meaning("Normal", "TFJob", "The job succeeded."),
    "TFJobFailed": Meaning("Normal or Warning", "TFJob", "The job failed. The message says why."),
    "ExitedWithCode": Meaning(
        "Normal",
        "TFJob",
        "A container `tensorflow` ended. The message has the exit code. None where a resize, a move or a stop ends it.",
    ),
    "JobTerminated": Meaning("Normal", "TFJob", "The job ended; its PodGroup is deleted."),
    "SuccessfulCreatePod": Meaning("Normal", "TFJob", "A pod was created."),
    "SuccessfulCreateService": Meaning("Normal", "TFJob", "A Service was created."),
    "SuccessfulCreatePodGroup": Meaning("Normal", "TFJob", "A PodGroup was created."),
    "SuccessfulCreatePodDisruptionBudget": Meaning("Normal", "TFJob", "A PodDisruptionBudget was created."),
    "SuccessfulDeletePod": Meaning("Normal", "TFJob", "A pod was deleted."),
    "SuccessfulDeleteService": Meaning("Normal", "TFJob", "A Service was deleted."),
    "SuccessfulDeletePodGroup": Meaning("Normal", "TFJob", "A PodGroup was deleted."),
    "SuccessfulDeletePodDisruptionBudget": Meaning("Normal", "TFJob", "A PodDisruptionBudget was deleted."),
    "SuccessfulDeleteJob": Meaning("Normal", "TFJob", "The job was deleted after ttlSecondsAfterFinished."),
    "FailedCreatePod": Meaning("Warning", "TFJob", "A pod could not be created. The message is from the API server."),
    "FailedCreateService": Meaning("Warning", "TFJob", "A Service could not be created."),
    "FailedCreatePodGroup": Meaning("Warning", "TFJob", "A PodGroup could not be created."),
    "FailedCreatePodDisruptionBudget": Meaning("Warning", "TFJob", "A PodDisruptionBudget could not be created."),
    "FailedDeletePod": Meaning("Warning", "TFJob", "A pod could not be deleted."),
    "FailedDeleteService": Meaning("Warning", "TFJob", "A Service could not be deleted."),
    "FailedDeletePodGroup": Meaning("Warning", "TFJob", "A PodGroup could not be deleted."),
    "FailedDeletePodDisruptionBudget": Meaning("Warning", "TFJob", "A PodDisruptionBudget could not be deleted."),
    "FailedDeleteJob": Meaning("Warning", "TFJob", "The job could not be deleted after ttlSecondsAfterFinished."),
    "SetPodTemplateRestartPolicy": Meaning("Warning", "TFJob", "The template's restartPolicy is ignored."),
    "SetPodTemplateSchedulerName": Meaning(
        "Warning", "TFJob", "A template names a scheduler other than the gang scheduler."
    ),
    # Elastic jobs
    "Waiting": Meaning(
        "Normal", "TFJob", "The job waits, because the profile has given it no nodes yet. The message says why."
    ),
    "Admitted": Meaning("Normal", "TFJob", "The job starts. The message has its size."),
    "Rescaling": Meaning(
        "Normal", "TFJob", "A rescale or move begins. The message has the sizes or nodes, the mode and the reason."
    ),
    "Rescaled": Meaning(
        "Normal or Warning",
        "TFJob",
        "A rescale or move is done. The message has the pause and the lost steps.",
    ),
    "RescalePending": Meaning("Normal", "TFJob", "A rescale is due and must wait. The message says for what."),
    "RescaleRolledBack": Meaning(
        "Warning", "TFJob", "A rescale was rolled back, because preparing or saving failed. The job keeps its size."
    ),
    "RescaleUndone": Meaning(
        "Warning", "TFJob", "The job made no step at the new size and returns to the last size at which it trained."
    ),
    "ReturnFailed": Meaning(
        "Warning",
        "TFJob",
        "The job made no step at the size that it returned to either. From now on its restart policy applies.",
    ),
    "Scaled": Meaning(
        "Normal", "TFJob", "A job that the operator places but does not rescale follows an edit of its replicas."
    ),
    "Stopping": Meaning(
        "Normal", "TFJob", "The scheduler stops the job. The message says why, and which replica saves a checkpoint."
    ),
    "ChiefLost": Meaning(
        "Warning",
        "TFJob",
        "The chief's node does not answer or cannot end the pod, so the job's other pods are ended without it. "
        "New pods are created once Kubernetes confirms that the old chief is gone.",
    ),
    "CheckpointMissed": Meaning(
        "Warning", "TFJob", "The job stops without a new checkpoint. The message has the most steps that can be lost."
    ),
    "Stopped": Meaning(
        "Normal", "TFJob", "All pods of a stopped job have ended. The message has the step and the reason."
    ),
    "Resumed": Meaning("Normal", "TFJob", "A stopped job trains again. The message has its first step."),
    "DeadlineAtRisk": Meaning(
        "Warning", "TFJob", "The job is expected to miss its deadline. The message has a size that would meet it."
    ),
    "DeadlineUnattainable": Meaning(
        "Warning",
        "TFJob",
        "No size within the job's bounds meets its deadline. The message has the smallest size that would.",
    ),
    "DeadlineMissed": Meaning("Warning", "TFJob", "The deadline passed before the job ended, or the job failed."),
    "DeadlineLimited": Meaning(
        "Warning",
        "TFJob",
        "The operator cannot do more for the deadline, because information about the job is missing.",
    ),
    "LossUnusable": Meaning(
        "Warning",
        "TFJob",
        "The profile uses the training loss, but the job reports none, or one that is not a number. There is one event "
        "for each case.",
    ),
    "LossRises": Meaning(
        "Warning",
        "TFJob",
        "The profile uses the training loss, and the job's loss rises. The message says how the profile treats the "
        "job.",
    ),
    "NotAdjusted": Meaning(
        "Normal",
        "TFJob",
        "The profile shares CPU by the jobs' remaining work, but information about this job is missing. There is one "
        "event per missing item.",
    ),
    "CPUAdjusted": Meaning("Normal", "TFJob", "The CPU of running pods was changed in place."),
    "ResizeRefused": Meaning(
        "Warning", "TFJob", "The API server refused to change a pod's CPU. The operator retries later."
    ),
    "ResizeUnsupported": Meaning(
        "Warning", "TFJob", "The cluster cannot change CPU in place (Kubernetes before 1.33)."
    ),
    "OutOfMemory": Meaning(
        "Warning",
        "TFJob",
        "The kernel killed a replica, or one of its processes, for memory. The message has its limit and what follows.",
    ),
    "MemoryRaised": Meaning(
        "Normal",
        "TFJob",
        "The memory of a type's replicas is raised. The message has the use, its growth and the new limit.",
    ),
    "MemoryShort": Meaning(
        "Warning", "TFJob", "A replica will soon use all its memory, and it cannot be raised. The message says why."
    ),
    "InvalidAnnotation": Meaning(
        "Warning", "TFJob", "An annotation is invalid and ignored. The message has the allowed values."
    ),
    "CheckpointDirShared": Meaning(
        "Warning", "TFJob", "Another job in the namespace writes checkpoints to the same directory of the same volume."
    ),
    "LauncherNotInjected": Meaning(
        "Warning", "TFJob", "The job's pods have no launcher, so each rescale recreates them."
    ),
    "InjectionAdapted": Meaning(
        "Normal", "TFJob", "A rule of the namespace changes the requests or limits of the injected container."
    ),
    "LauncherNotInstalled": Meaning(
        "Warning", "TFJob", "The container that installs the launcher failed. The pod is recreated after 10 s."
    ),
    "UnknownState": Meaning(
        "Warning",
        "TFJob",
        "A newer operator wrote a state that this one does not know. This operator leaves the job alone.",
    ),
    "StateNotStored": Meaning(
        "Warning", "TFJob", "The job's state was not stored, because its annotations take up too much space."
    ),
    "KueueQuota": Meaning("Warning", "TFJob", "More replicas are requested than Kueue admitted."),
    # Growth within the quota of a Kueue queue
    "GrowthAdmitted": Meaning("Normal", "TFJob", "Kueue admitted a replica beyond the declared size."),
    "GrowthWaits": Meaning(
        "Normal",
        "TFJob",
        "The profile would use more replicas than Kueue admitted. The message says what it waits for.",
    ),
    "GrowthEvicted": Meaning("Normal", "TFJob", "Kueue takes back quota of a replica beyond the declared size."),
    "GrowthReturned": Meaning("Normal", "TFJob", "The job did not use quota beyond its declared size."),
    "GrowthRefused": Meaning(
        "Warning", "TFJob", "The operator may not read or write Workloads. The message is from the API server."
    ),
    "QuotaReturned": Meaning("Normal", "TFJob", "The job is smaller than declared, so Kueue gets the quota back."),
    "NotStopped": Meaning(
        "Normal", "TFJob", "The profile wanted to stop or move the job, but cannot. There is one event per reason."
    ),
    "MoreTroubles": Meaning(
        "Warning", "TFJob", "There are more reasons why pods do not run than events. The message has their number."
    ),
    "NodeLost": Meaning(
        "Warning", "TFJob", "A node with pods of the job does not answer. The message says what the job waits for."
    ),
    "NotScheduled": Meaning("Warning", "TFJob", "The scheduler skips the job for a while. The message says why."),
    "NodeTakenAway": Meaning(
        "Warning",
        "TFJob",
        "A node of the job will be removed in the time that the message says. The job moves, shrinks or saves.",
    ),
    # Orders of nodes from an autoscaler
    "NodesOrdered": Meaning(
        "Normal", "TFJob", "The job asks an autoscaler for nodes by placeholder pods. The message has the replicas."
    ),
    "OrderRefused": Meaning(
        "Warning", "TFJob", "The API server refuses a placeholder pod (a quota, a policy). The message has its words."
    ),
    "NodesNotUsed": Meaning(
        "Normal",
        "TFJob",
        "Nodes came for a running job, and the profile left the job at its size. It asks for nodes again after 30 "
        "minutes.",
    ),
    "NodesNotComing": Meaning(
        "Warning",
        "TFJob",
        "No node has come for a placeholder within `autoscaling.order.timeout_s`, the job could not use those that "
        "came, or there is no placeholder. The message says when the job asks again, and why kube-scheduler finds no "
        "node.",
    ),
    # Node loans
    "NodeLent": Meaning(
        "Normal", "Node", "The node is lent. Loanable jobs may run there, and pods of its pool may not."
    ),
    "NodeRecalled": Meaning("Normal", "Node", "The pool needs the node back, and jobs leave it. The message says why."),
    "NodeReturned": Meaning(
        "Normal", "Node", "The node was returned to its pool. The message says how long that took."
    ),
    "NodeNotVacated": Meaning(
        "Warning",
        "Node",
        "Pods of jobs are still on the node long after the recall. The taint was removed, so pod priorities decide.",
    ),
    "LoansForbidden": Meaning(
        "Warning", "Node", "The operator has no right to change nodes (components/loans). No node is lent for a while."
    ),
    "FitsNoPoolNode": Meaning(
        "Warning",
        "Pod",
        "A pending pod of a pool fits on none of the pool's nodes, including lent ones. No node is recalled for it.",
    ),
    # JobSets of Trainer v2
    "UnsupportedByTFJob": Meaning(
        "Warning",
        "JobSet",
        "The JobSet uses a feature that TFJobs do not have, named in the message. It fails if none of its pods runs.",
    ),
    "TFJobExists": Meaning(
        "Warning", "JobSet", "A TFJob of this name exists and does not belong to the JobSet. The JobSet does not run."
    ),
    "TFJobNotWritten": Meaning("Warning", "JobSet", "The API server refused to write the TFJob. The operator retries."),
    # The operator itself
    "ReconcileFailed": Meaning(
        "Warning",
        "TFJob or JobSet",
        "A bug kept the operator from reconciling this job or JobSet. The operator retries.",
    ),
    "InvalidConfiguration": Meaning(
        "Warning",
        "ConfigMap; operator's Deployment",
        "config.yaml is invalid, and the last valid one stays in use. The message has the error and the active "
        "profile.",
    ),
    "ProfileFailed": Meaning(
        "Warning",
        "ConfigMap; operator's Deployment",
        "The profile raises an error for all jobs. Jobs keep what they have, and no job starts. The message names the "
        "profile, its package, the error and its line. There is one event until the profile works again.",
    ),
    "ConfigurationTaken": Meaning(
        "Normal",
        "operator's Deployment",
        "The ConfigMap was read. The message has the active profile. If no Deployment is found, the operator's "
        "pod has the event.",
    ),
}
