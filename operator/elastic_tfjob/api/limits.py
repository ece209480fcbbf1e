"""How large may be what others write: annotations, specs, quantities, pods' answers, the ConfigMap. Pure.

A word beyond its limit is refused with a reason where words become types, so that nothing behind has to look again.
docs/limits.md has the same as a table, with what happens beyond each.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_AFFINITY_VALUES",
    "MAX_ALL_TEMPLATES_VALUES",
    "MAX_ANNOTATION_BYTES",
    "MAX_BYTES",
    "MAX_CONFIGURATION_BYTES",
    "MAX_DEPTH",
    "MAX_DURATION_S",
    "MAX_ENTRIES",
    "MAX_GENERATION",
    "MAX_MEMORY_NAME",
    "MAX_MEMORY_NUMBERS",
    "MAX_MILLICORES",
    "MAX_NODE_NAME",
    "MAX_PLACEMENT_TERMS",
    "MAX_POD_BYTES",
    "MAX_PROBLEMS",
    "MAX_PROBLEM_LENGTH",
    "MAX_QUANTITY_EXPONENT",
    "MAX_QUANTITY_LENGTH",
    "MAX_RATE",
    "MAX_REPLICAS",
    "MAX_REPLICA_TYPES",
    "MAX_RESOURCE_NAMES",
    "MAX_STARTS",
    "MAX_STATUS_BYTES",
    "MAX_STEPS",
    "MAX_TEMPLATE_VALUES",
    "MAX_TEXT",
    "MAX_TOLD_TROUBLES",
    "MAX_TROUBLES_TEXT",
    "MAX_UID",
    "MAX_VALUE",
    "MAX_WORD",
    "after",
]

MAX_REPLICAS: Final = 2_000
"""Replicas of one job, all types together. A dense TF_CONFIG names each of them, and of about 2,500 on it does not fit
into one environment variable any more (Linux: 128 KiB, MAX_ARG_STRLEN)."""

MAX_REPLICA_TYPES: Final = 32
"""Replica types of one job: as many as the CRD admits."""

MAX_TEMPLATE_VALUES: Final = 4_000
"""Keys and entries of lists in one pod template, at all depths. Real ones have some hundreds. Each pod is a copy of
them, which takes 1.5 microseconds for each."""

MAX_ALL_TEMPLATES_VALUES: Final = 8_000
"""The same of all templates of a job together: each pass reads all of them."""

MAX_DEPTH: Final = 64
"""Objects and lists of a pod template inside each other. What a pod may have is about 12 deep."""

MAX_PLACEMENT_TERMS: Final = 64
"""Tolerations of a pod template, entries of its node selector, terms of its required node affinity, and expressions of
these terms together: each has as many. Rounds compare all of them with each node."""

MAX_AFFINITY_VALUES: Final = 256
"""Values of all these expressions together."""

MAX_RESOURCE_NAMES: Final = 64
"""Resources that a container requests, or is limited in."""

MAX_QUANTITY_EXPONENT: Final = 99
"""Of a quantity in a pod template, such as 1e3, without its sign. The largest that counts is 18. The API server thinks
for minutes about 1e-999999999, and the operator would wait for it with each pod that it asks for."""

MAX_QUANTITY_LENGTH: Final = 64
"""Characters of such a quantity."""

MAX_STEPS: Final = 2**53
"""Training steps. Up to here a float holds each whole number exactly, and JSON's numbers are floats."""

MAX_DURATION_S: Final = 36_500 * 86_400
"""Seconds of one duration, about 100 years: what lies beyond is a typing error. `datetime` ends in the year 9999."""

MAX_STATUS_BYTES: Final = 64 * 1024
"""Bytes of a pod's answer to `/status`, which has about 1 KiB."""

MAX_ANNOTATION_BYTES: Final = 256 * 1024
"""Bytes of one annotation: Kubernetes admits as many for all of an object's annotations together."""

MAX_CONFIGURATION_BYTES: Final = 32 * 1024
"""Bytes of `config.yaml`, which has about 1 KiB. PyYAML takes up to a second for so much, in the operator's loop."""

MAX_MILLICORES: Final = 10**9
"""CPU of one replica in thousandths of a core: a million cores, more than any machine has."""

MAX_BYTES: Final = 2**63 - 1
"""Bytes, devices and whatever else is a resource quantity: Kubernetes' own limit (int64). What is more counts as this
much, as in Kubernetes."""

MAX_POD_BYTES: Final = 2**46
"""Bytes of memory or storage, and devices, that a pod is counted with: 64 TiB, more than a node has. Plans add up what
thousands of replicas ask for in numbers of 64 bits."""

MAX_LOAN_GRACE_S: Final = 120
"""Seconds of terminationGracePeriodSeconds that the pods of a job may have that runs on lent nodes: whoever lends one
gets it back within minutes."""

MAX_GENERATION: Final = 2**31
"""Number of a job's newest size. One rescale in each second would take 68 years to get there."""

MAX_MEMORY_NUMBERS: Final = 16
"""Numbers that a profile remembers of one job."""

MAX_MEMORY_NAME: Final = 32
"""Characters of the name of such a number."""

MAX_NODE_NAME: Final = 253
"""Characters of a node's name: a DNS subdomain."""

MAX_WORD: Final = 64
"""Characters of a name among few: a mode of rescaling, a replica type, a size such as "2/8"."""

MAX_TEXT: Final = 1024
"""Characters of a sentence that ends in an event or a condition, or of a path: an event's message has no more."""

MAX_TOLD_TROUBLES: Final = 20
"""Reasons why pods and containers do not run that one pass over a job tells; of the others it tells how many."""

MAX_TROUBLES_TEXT: Final = 4096
"""Characters of all that is told of why one pod does not run: that is kept for each pod."""

MAX_UID: Final = 128
"""Characters of an object's uid where somebody refers to it: it has 36."""

MAX_VALUE: Final = 4096
"""Characters of one annotation that a user writes: the longest is a path (Linux: PATH_MAX)."""

MAX_ENTRIES: Final = 256
"""Entries of a map or list whose entries are no replicas: speeds by size, past rescales."""

MAX_RATE: Final = 1e9
"""Training steps in a second."""

MAX_PROBLEMS: Final = 10
"""Wrong annotations of one job that are named one by one; of the others their number is said."""

MAX_PROBLEM_LENGTH: Final = 512
"""Characters of one such problem."""

MAX_STARTS: Final = 256
"""Characters of how a program will be started, and why so."""

EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(9998, 12, 31, tzinfo=UTC)
"""Times that are accepted. A year is left to `datetime`'s end, so that a change of zone never reaches it."""


def after(moment: datetime, seconds: float) -> datetime:
    """The moment so many seconds later (earlier where negative), but no later than LATEST and no earlier than EARLIEST,
    whatever the number, NaN (no time at all later) included. `moment` needs a zone."""
    if seconds != seconds:  # noqa: PLR0124
        return moment
    if seconds >= (LATEST - moment).total_seconds():
        return LATEST
    if seconds <= (EARLIEST - moment).total_seconds():
        return EARLIEST
    return moment + timedelta(seconds=seconds)
