"""Where the contract is not what the Go training-operator v1.8.1 does: each such case fails there, and is expected to.

A case that fails on upstream and is not here is a wrong case. docs/compatibility.md tells users the same.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deviation:
    """`why` the case holds all the same; what `upstream` (v1.8.1) does instead."""

    why: str
    upstream: str


MANAGED_BY = Deviation("v1.9 added runPolicy.managedBy.", "the field is unknown, so it is pruned.")
CLEANED = Deviation("v1.9.4 respects cleanPodPolicy here too (trainer#3419).", "all pods are deleted.")
REMOVED = Deviation("Pods that the operator itself removes are no failures.", "the job fails (trainer#2070).")

DEVIATIONS = {
    # -- v1.9.4 differs from v1.8.1
    "B7": MANAGED_BY,
    "B8": MANAGED_BY,
    "H7": MANAGED_BY,
    "F10": CLEANED,
    "F17": CLEANED,
    # -- defects that we do not share
    "B15b": Deviation("A negative number of workers is refused.", "the job is accepted."),
    "C17": Deviation("Services are adopted.", "its ClusterRole lacks `patch` on services, so the adoption is refused."),
    "D13": Deviation(
        "A service keeps every port.", "of ports without names the last one is kept, of one number none: no service."
    ),
    "E40": Deviation("`done-when` is an annotation of ours.", "the job ends when the sidecar does."),
    "F12": Deviation(
        "activeDeadlineSeconds is a timer (trainer#3358).", "the job fails at the next change of a pod after it."
    ),
    "G18": REMOVED,
    "H3b": REMOVED,
    "H3c": REMOVED,
    "H6b": Deviation("A pod out of range is not made.", "worker-3 is made, then deleted."),
    "H17b": Deviation("A restart counts once.", "it counts twice or more."),
    "H17c": Deviation("A failed job counts once.", "it counts once for each type of replica that failed."),
    "H17e": Deviation("Jobs found at a start are not counted as created.", "they are counted again."),
    "I1b": Deviation("TFJobs can be scaled, as PyTorchJobs can.", "TFJob has no subresource scale."),
    "H25": Deviation("An event is said once.", "it is said at every look at the job."),
}
