"""What an asker wants of a list: filtered, sorted, a page. Pure."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeVar

from elastic_tfjob.api.reading import describe
from elastic_tfjob.controller.model.cluster import ForeignPod, KubeNode, NodeLoan, Stage
from elastic_tfjob.controller.model.job import Key
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.query.rows.jobs import JOB_STATES, JobRow
from elastic_tfjob.scheduling.reasons import CODES

__all__ = [
    "MAX_FILTER",
    "MAX_OFFSET",
    "MAX_PAGE",
    "NAMES",
    "PAGE",
    "SORTED_BY",
    "BadQuery",
    "Listing",
    "LoanRow",
    "NodeRow",
    "Page",
    "dns_name",
    "matches",
    "node_rows",
    "page",
]

T = TypeVar("T")

PAGE: Final = 50
MAX_PAGE: Final = 200
MAX_OFFSET: Final = 1_000_000
MAX_FILTER: Final = 253
"""Characters of a filter: no name in Kubernetes has more."""

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
NAMES: Final = {
    "namespace": (f"^{_LABEL}$", 63, "a DNS label: up to 63 characters of a-z, 0-9 and -"),
    "name": (
        rf"^{_LABEL}(\.{_LABEL})*$",
        253,
        "a DNS subdomain: up to 253 characters of a-z, 0-9, - and .",
    ),
}
"""What can be called so at all (RFC 1123): a pattern, how many characters at the most, and both in words."""
_NAMES: Final = {name: re.compile(pattern[1:-1]) for name, (pattern, _, _) in NAMES.items()}

SORTED_BY: Final[Mapping[str, Callable[[JobRow], Any]]] = {
    "name": lambda row: (row.namespace, row.name),
    "created": lambda row: row.created,
    "state": lambda row: row.state,
    "eta": lambda row: row.eta,
    "deadline": lambda row: row.deadline,
    "slack_s": lambda row: row.slack_s,
    "steps_per_s": lambda row: row.steps_per_s,
    "step": lambda row: row.step,
    "replicas": lambda row: sum(row.replicas.values()),
    "rescales": lambda row: row.rescales,
    "waits_since": lambda row: row.waits_since,
}
"""What jobs may be sorted by. Times are RFC 3339 in UTC as the API server writes them, so their text sorts."""


class QueryRefused(Exception):
    """A request that is not answered: the HTTP status, why, the header or parameter it is about, and after how many
    seconds another try makes sense (0: none does)."""

    def __init__(self, status: int, message: str, *, where: str = "", allowed: str = "", again_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.where = where
        self.allowed = allowed
        self.again_s = again_s


class BadQuery(ValueError):
    """A query parameter that is refused: which one, what is wrong, what is allowed."""

    def __init__(self, where: str, problem: str, allowed: str) -> None:
        super().__init__(f"{where}: {problem}; allowed is {allowed}")
        self.where = where
        self.problem = problem
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class Listing:
    """A question for a page of a list. Empty filters let everything pass; `text` is a part of the name."""

    namespace: str = ""
    states: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    text: str = ""
    sort: str = "name"
    descending: bool = False
    offset: int = 0
    limit: int = PAGE

    @classmethod
    def parse(cls, asked: Iterable[tuple[str, str]], known: Sequence[str]) -> "Listing":
        """From the parameters of a query, of which only these are known here. Raises BadQuery, and nothing else."""
        values: dict[str, str] = {}
        for name, value in asked:
            if name not in known:
                allowed = ", ".join(known) or "no parameter at all"
                raise BadQuery(describe(name), "no such query parameter", allowed)
            if name in values:
                raise BadQuery(name, "it is given more than once", "one of each")
            if len(value) > MAX_FILTER:
                raise BadQuery(name, f"it has {len(value)} characters", f"up to {MAX_FILTER}")
            if not (value.isascii() and value.isprintable()):  # no name in Kubernetes has another character
                raise BadQuery(name, "it has characters that no name has", "printable ASCII")
            values[name] = value
        if values.get("namespace"):
            dns_name("namespace", values["namespace"])
        sort = values.get("sort", "name")
        if sort.removeprefix("-") not in SORTED_BY:
            orders = ", ".join(SORTED_BY)
            raise BadQuery("sort", f"jobs are not sorted by {describe(sort)}", f"{orders}, each with - before it too")
        states = frozenset(values["state"].split(",")) if "state" in values else frozenset()
        if wrong := sorted(states - set(JOB_STATES)):
            raise BadQuery(
                "state", f"no job is {describe(wrong[0])}", f"one or more, with commas, of {', '.join(JOB_STATES)}"
            )
        reasons = frozenset(values["reason"].split(",")) if "reason" in values else frozenset()
        if wrong := sorted(reasons - set(CODES)):
            raise BadQuery("reason", f"there is no reason {describe(wrong[0])}", f"one or more of {', '.join(CODES)}")
        return cls(
            namespace=values.get("namespace", ""),
            states=states,
            reasons=reasons,
            text=values.get("name", ""),
            sort=sort.removeprefix("-"),
            descending=sort.startswith("-"),
            offset=_whole("offset", values.get("offset", "0"), 0, MAX_OFFSET),
            limit=_whole("limit", values.get("limit", str(PAGE)), 1, MAX_PAGE),
        )


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of the rows that match, and how many those are."""

    items: Sequence[T]
    total: int


def dns_name(kind: str, value: str) -> None:
    """Raises BadQuery where nothing of a kind of NAMES can be called `value`: whoever invents names is refused before
    anybody is asked about them."""
    _, most, words = NAMES[kind]
    if len(value) > most:
        raise BadQuery(kind, f"it has {len(value)} characters", words)
    if not _NAMES[kind].fullmatch(value):
        raise BadQuery(kind, f"nothing can be called {describe(value)}", words)


def matches(row: JobRow, listing: Listing) -> bool:
    """Whether a job is among those that are asked for."""
    return (
        (not listing.namespace or row.namespace == listing.namespace)
        and (not listing.states or row.state in listing.states)
        and (not listing.reasons or row.reason_code in listing.reasons)
        and listing.text in row.name
    )


def page(rows: Iterable[JobRow], listing: Listing) -> Page[JobRow]:
    """The page of jobs that match, in order. A job without the value that is sorted by comes last either way."""
    value = SORTED_BY[listing.sort]
    known: list[tuple[Any, str, str, JobRow]] = []
    unknown: list[tuple[str, str, JobRow]] = []
    for row in rows:
        if matches(row, listing):
            found = value(row)
            if found is None:
                unknown.append((row.namespace, row.name, row))
            else:
                known.append((found, row.namespace, row.name, row))
    known.sort(key=lambda each: each[:3], reverse=listing.descending)
    unknown.sort(key=lambda each: each[:2])
    ordered = [each[3] for each in known] + [each[2] for each in unknown]
    return Page(ordered[listing.offset : listing.offset + listing.limit], len(ordered))


def _whole(name: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
        raise BadQuery(name, f"{describe(text)} is none", f"a whole number from {least} to {most}")
    return int(text)


# -- A node and the CPU that is held, lent and used on it --------------------------------------------------------------


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
    nodes: Iterable[KubeNode],
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
