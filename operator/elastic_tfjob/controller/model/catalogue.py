"""Every event that the operator writes, and what it means: one catalogue, from which docs/reference/events.md is made.

A test holds it against the code. Reasons that upstream's training-operator writes keep its names. Beside these an event
has the reason of what kubelet or kube-scheduler say of a pod that does not start (`Unschedulable`, `ErrImagePull`).
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

__all__ = ["EVENTS", "Meaning"]


class Meaning(NamedTuple):
    """`type` as in Kubernetes; `about` is the object that it is written about."""

    type: Literal["Normal", "Warning", "Normal or Warning"]
    about: str
    text: str


EVENTS: Final[Mapping[str, Meaning]] = {
    # A job's life, as upstream tells it
    "TFJobFailedValidation": Meaning(
        "Warning",
        "TFJob",
        "The spec is invalid: no pod is made, and pods that run are left alone. The message names the field.",
    ),
    "TFJobSuspended": Meaning("Normal", "TFJob", "The job was suspended; its pods are deleted."),
    "TFJobResumed": Meaning("Normal", "TFJob", "The job was resumed."),
    "TFJobRestarting": Meaning("Warning", "TFJob", "A replica failed and is made anew."),
    "TFJobSucceeded": Meaning("Normal", "TFJob", "The job succeeded."),
    "TFJobFailed": Meaning("Normal or Warning", "TFJob", "The job failed. The message says why."),
    "ExitedWithCode": Meaning("Normal", "TFJob", "A container `tensorflow` ended, with this exit code."),
    "JobTerminated": Meaning("Normal", "TFJob", "The job ended; its PodGroup is deleted."),
    "SuccessfulCreatePod": Meaning("Normal", "TFJob", "A pod was created."),
    "SuccessfulCreateService": Meaning("Normal", "TFJob", "A Service was created."),
    "SuccessfulCreatePodGroup": Meaning("Normal", "TFJob", "A PodGroup was created."),
    "SuccessfulCreatePodDisruptionBudget": Meaning("Normal", "TFJob", "A PodDisruptionBudget was created."),
    "SuccessfulDeletePod": Meaning("Normal", "TFJob", "A pod was deleted."),
    "SuccessfulDeleteService": Meaning("Normal", "TFJob", "A Service was deleted."),
    "SuccessfulDeletePodGroup": Meaning("Normal", "TFJob", "A PodGroup was deleted."),
    "SuccessfulDeletePodDisruptionBudget": Meaning("Normal", "TFJob", "A PodDisruptionBudget was deleted."),
    "SuccessfulDeleteJob": Meaning("Normal", "TFJob", "The job was deleted: ttlSecondsAfterFinished is over."),
    "FailedCreatePod": Meaning("Warning", "TFJob", "A pod could not be created. The message is the API server's."),
    "FailedCreateService": Meaning("Warning", "TFJob", "A Service could not be created."),
    "FailedCreatePodGroup": Meaning("Warning", "TFJob", "A PodGroup could not be created."),
    "FailedCreatePodDisruptionBudget": Meaning("Warning", "TFJob", "A PodDisruptionBudget could not be created."),
    "FailedDeletePod": Meaning("Warning", "TFJob", "A pod could not be deleted."),
    "FailedDeleteService": Meaning("Warning", "TFJob", "A Service could not be deleted."),
    "FailedDeletePodGroup": Meaning("Warning", "TFJob", "A PodGroup could not be deleted."),
    "FailedDeletePodDisruptionBudget": Meaning("Warning", "TFJob", "A PodDisruptionBudget could not be deleted."),
    "FailedDeleteJob": Meaning("Warning", "TFJob", "The job could not be deleted after its time to live."),
    "SetPodTemplateRestartPolicy": Meaning("Warning", "TFJob", "The template's restartPolicy is ignored."),
    "SetPodTemplateSchedulerName": Meaning("Warning", "TFJob", "A template names another scheduler than the gang's."),
    # What an elastic job is told
    "Waiting": Meaning("Normal", "TFJob", "The profile has not given the job any node yet. The message says why."),
    "Admitted": Meaning("Normal", "TFJob", "The job starts, with this size."),
    "Rescaling": Meaning("Normal", "TFJob", "The job goes to another size, or moves: sizes or nodes, mode, reason."),
    "Rescaled": Meaning(
        "Normal or Warning",
        "TFJob",
        "The job has another size, or has moved. The message has the pause and the steps lost.",
    ),
    "RescalePending": Meaning("Normal", "TFJob", "Another size is wanted, and something is waited for first."),
    "RescaleRolledBack": Meaning("Warning", "TFJob", "The job keeps its size: preparing or saving failed."),
    "RescaleUndone": Meaning(
        "Warning", "TFJob", "The new size made no first step: the job returns to the last size that trained."
    ),
    "ReturnFailed": Meaning(
        "Warning", "TFJob", "Nor did the size that it returned to: the job is left to its restart policy."
    ),
    "Scaled": Meaning("Normal", "TFJob", "A job that is only placed follows an edit of its replicas."),
    "Stopping": Meaning("Normal", "TFJob", "A plan takes all from the job. The message says why, and who saves."),
    "ChiefLost": Meaning(
        "Warning",
        "TFJob",
        "The chief's node does not answer, or cannot end its pod: the job's other pods are ended without it. "
        "New pods are made when Kubernetes knows that the old chief is gone.",
    ),
    "CheckpointMissed": Meaning(
        "Warning", "TFJob", "The job stops without a new checkpoint. The message says how many steps are lost at most."
    ),
    "Stopped": Meaning(
        "Normal", "TFJob", "All pods of a stopped job are gone. The message says at which step, and why."
    ),
    "Resumed": Meaning("Normal", "TFJob", "A stopped job makes steps again. The message says from which one on."),
    "DeadlineAtRisk": Meaning(
        "Warning", "TFJob", "The job is expected to end after its deadline. The message says which size would do."
    ),
    "DeadlineUnattainable": Meaning(
        "Warning", "TFJob", "No size that the job may have meets its deadline. The message has the least that would."
    ),
    "DeadlineMissed": Meaning("Warning", "TFJob", "The deadline has passed, or the job has failed."),
    "DeadlineLimited": Meaning(
        "Warning", "TFJob", "Something that the job does not say keeps the operator from doing more for its deadline."
    ),
    "LossUnusable": Meaning(
        "Warning",
        "TFJob",
        "The profile goes by the training loss, and the job reports none, or one that is no number. Each is told once.",
    ),
    "LossRises": Meaning(
        "Warning", "TFJob", "The profile goes by the training loss, and the job's rises. What it counts as follows."
    ),
    "NotAdjusted": Meaning(
        "Normal",
        "TFJob",
        "The profile gives CPU by what jobs have left to do, and something that this one does not say keeps it from "
        "that. Each is told once.",
    ),
    "CPUAdjusted": Meaning("Normal", "TFJob", "Running pods hold other CPU than before, in place."),
    "ResizeRefused": Meaning("Warning", "TFJob", "The API server refuses a pod other CPU. It is tried again later."),
    "ResizeUnsupported": Meaning("Warning", "TFJob", "The cluster cannot change CPU in place (Kubernetes < 1.33)."),
    "InvalidAnnotation": Meaning("Warning", "TFJob", "An annotation is invalid and ignored. Allowed values follow."),
    "CheckpointDirShared": Meaning(
        "Warning", "TFJob", "Another job of the namespace has its checkpoints in the same directory of the same volume."
    ),
    "LauncherNotInjected": Meaning("Warning", "TFJob", "The job's pods have no launcher: a rescale recreates them."),
    "InjectionAdapted": Meaning(
        "Normal", "TFJob", "A rule of the namespace gives the added container other requests or limits."
    ),
    "LauncherNotInstalled": Meaning(
        "Warning", "TFJob", "The container that installs the launcher failed; the pod is made anew after 10 s."
    ),
    "UnknownState": Meaning("Warning", "TFJob", "A newer operator wrote a word that this one does not know: it waits."),
    "StateNotStored": Meaning("Warning", "TFJob", "The job's annotations leave too little room for the state."),
    "KueueQuota": Meaning("Warning", "TFJob", "More replicas are asked for than Kueue admitted."),
    "NotStopped": Meaning(
        "Normal", "TFJob", "The profile would stop or move the job, which cannot be now. Each reason is told once."
    ),
    "MoreTroubles": Meaning("Warning", "TFJob", "More pods do not run than events tell of; this is how many reasons."),
    "NodeLost": Meaning(
        "Warning", "TFJob", "A node with pods of the job does not answer. The message says what the job waits for."
    ),
    "NotScheduled": Meaning("Warning", "TFJob", "The profile leaves the job out for a while. The message says why."),
    # Loans of nodes
    "NodeLent": Meaning(
        "Normal", "Node", "The node is lent: loanable jobs may run there, pods of its pool are kept away."
    ),
    "NodeRecalled": Meaning("Normal", "Node", "The node is wanted back. Jobs leave it. The message says why."),
    "NodeReturned": Meaning("Normal", "Node", "The node is its pool's again. The message says how long that took."),
    "NodeNotVacated": Meaning(
        "Warning", "Node", "Pods of jobs are still there long after the recall. The taint is gone: priorities decide."
    ),
    "LoansForbidden": Meaning(
        "Warning", "Node", "The operator has no right to write nodes (components/loans). Nothing is lent for a while."
    ),
    "FitsNoPoolNode": Meaning(
        "Warning", "Pod", "A pool's pending pod fits on none of its nodes, lent ones included: none is recalled for it."
    ),
    # JobSets of Trainer v2
    "UnsupportedByTFJob": Meaning(
        "Warning",
        "JobSet",
        "The JobSet has something that no TFJob can do, as the message says. It has failed if nothing of it runs.",
    ),
    "TFJobExists": Meaning("Warning", "JobSet", "A TFJob of this name is not the JobSet's: nothing runs."),
    "TFJobNotWritten": Meaning("Warning", "JobSet", "The API server refused a write. It is tried again."),
    # The operator itself
    "ReconcileFailed": Meaning(
        "Warning", "TFJob or JobSet", "A bug keeps the operator from this job or JobSet. It is tried again."
    ),
    "InvalidConfiguration": Meaning(
        "Warning",
        "ConfigMap; operator's Deployment",
        "config.yaml is refused; the last good one stays. The message says what is wrong, and which profile decides.",
    ),
    "ConfigurationTaken": Meaning(
        "Normal",
        "operator's Deployment",
        "The ConfigMap was read. The message says which profile decides. Where no Deployment is found, the operator's "
        "pod has the event.",
    ),
}
