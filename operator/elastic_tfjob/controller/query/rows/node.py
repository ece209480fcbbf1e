"""A node and the CPU that is held, lent and used on it. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from elastic_tfjob.controller.objects.cluster import ForeignPod, Node
from elastic_tfjob.controller.objects.loan import NodeLoan, Stage
from elastic_tfjob.controller.objects.parsing import Key
from elastic_tfjob.controller.objects.pod import Pod
from elastic_tfjob.controller.objects.reports import Report

__all__ = ["LoanRow", "NodeRow", "node_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoanRow:
    """A loan of a node to TFJobs, as it stands on the node."""

    stage: Annotated[
        Stage, "loaned: loanable jobs may run there; recalled: jobs leave it; returned: not lent anew for a while"
    ]
    pool: Annotated[str, "pool whose node it is"]
    since: Annotated[str, "when this stage began, RFC 3339"]
    why: Annotated[str, "in words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node. CPU is in millicores."""

    name: Annotated[str, "name of the node"]
    ready: Annotated[bool, "whether what is on it runs"]
    cordoned: Annotated[bool, "whether it gets no more pods"]
    cpu: Annotated[int, "CPU that pods may request"]
    held: Annotated[int, "CPU that replicas of TFJobs request, with what is lent to them"]
    lent: Annotated[int, "CPU of that beyond what their templates request"]
    others: Annotated[int, "CPU that all other pods request"]
    free: Annotated[int, "CPU that nobody requests"]
    used: Annotated[
        int | None,
        "CPU that replicas used of late, of those that said so; null: this replica of the "
        "operator asks no pods, as only the leader does",
    ]
    replicas: Annotated[int, "replicas of TFJobs on it"]
    jobs: Annotated[int, "TFJobs with replicas on it"]
    pool: Annotated[str, "pool that its label names; empty: none"]
    loan: Annotated[LoanRow | None, "its loan; null: it was never lent"]


def node_rows(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    foreign: Iterable[ForeignPod],
    requested: Callable[[Key, str], int | None],
    reports: Callable[[Key], Mapping[str, Report]] | None,
) -> list[NodeRow]:
    """The nodes by name. `requested`: millicores that the template of a job's replica type (in lower case) requests;
    None: not known. `reports`: what pods say, by name of the pod; None: nobody asks them."""
    held, lent, others, used = (defaultdict[str, int](int) for _ in range(4))
    replicas, jobs = defaultdict[str, int](int), defaultdict[str, set[Key]](set)
    known: set[str] = set()
    for pod in pods:
        known.add(pod.uid)
        if not pod.node or pod.ended:
            continue
        cpu, declared = pod.requests.cpu, requested(pod.key, pod.replica_type)
        held[pod.node] += cpu
        lent[pod.node] += max(0, cpu - declared) if declared is not None else 0
        replicas[pod.node] += 1
        jobs[pod.node].add(pod.key)
        report = reports(pod.key).get(pod.name) if reports is not None else None
        if report is not None and report.cpu.use_cores is not None:
            used[pod.node] += round(1000 * report.cpu.use_cores)
    for other in foreign:
        if other.uid not in known:
            others[other.node] += other.requests.cpu
    return [
        NodeRow(
            name=node.name,
            ready=node.usable or node.cordoned,
            cordoned=node.cordoned,
            cpu=node.allocatable.cpu,
            held=held[node.name],
            lent=lent[node.name],
            others=others[node.name],
            free=max(0, node.allocatable.cpu - held[node.name] - others[node.name]),
            used=used[node.name] if reports is not None else None,
            replicas=replicas[node.name],
            jobs=len(jobs[node.name]),
            pool=node.pool,
            loan=_loan_row(node.loan) if node.loan is not None else None,
        )
        for node in sorted(nodes, key=lambda node: node.name)
    ]


def _loan_row(loan: NodeLoan) -> LoanRow:
    return LoanRow(stage=loan.stage, pool=loan.pool, since=loan.since, why=loan.why)
