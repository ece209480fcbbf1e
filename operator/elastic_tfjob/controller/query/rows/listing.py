"""Lists of the query API: filters, sorting, pages, and the node rows. Pure."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from elastic_tfjob.api.reading import describe
from elastic_tfjob.api.words import REASON_CODES
from elastic_tfjob.controller.model.cluster import ForeignPod, KubeNode, NodeLoan, Stage
from elastic_tfjob.controller.model.job import Key
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.query.rows.jobs import JOB_STATES, JobRow
from elastic_tfjob.scheduling.plan import TeamShare

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
    "TeamRow",
    "dns_name",
    "matches",
    "node_rows",
    "page",
    "team_rows",
]


PAGE: Final = 50
MAX_PAGE: Final = 200
MAX_OFFSET: Final = 1_000_000
MAX_FILTER: Final = 253
"""Most characters of a filter; no Kubernetes name is longer."""

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
NAMES: Final = {
    "namespace": (f"^{_LABEL}$", 63, "a DNS label: up to 63 characters of a-z, 0-9 and -"),
    "name": (
        rf"^{_LABEL}(\.{_LABEL})*$",
        253,
        "a DNS subdomain: up to 253 characters of a-z, 0-9, - and .",
    ),
}
"""Valid names (RFC 1123) by kind: the pattern, the maximum length, and both in words."""
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
"""Sort keys of jobs. Times are RFC 3339 in UTC, as the API server writes them, so they sort as text."""


class QueryRefused(Exception):
    """A refused request: HTTP status, message, the header or parameter concerned, the allowed values, and after how
    many seconds to retry (0: do not retry)."""

    def __init__(self, status: int, message: str, *, where: str = "", allowed: str = "", again_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.where = where
        self.allowed = allowed
        self.again_s = again_s


class BadQuery(ValueError):
    """An invalid query parameter: its name, the problem, and what is allowed."""

    def __init__(self, where: str, problem: str, allowed: str) -> None:
        super().__init__(f"{where}: {problem}; allowed: {allowed}")
        self.where = where
        self.problem = problem
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class Listing:
    """A request for a page of a list. Empty filters match everything; `text` is a part of the name."""

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
        """Parse query parameters, of which only `known` are allowed. Raises only BadQuery."""
        values: dict[str, str] = {}
        for name, value in asked:
            if name not in known:
                allowed = ", ".join(known) or "no parameters"
                raise BadQuery(describe(name), "unknown query parameter", allowed)
            if name in values:
                raise BadQuery(name, "given more than once", "one value")
            if len(value) > MAX_FILTER:
                raise BadQuery(name, f"{len(value)} characters", f"up to {MAX_FILTER}")
            if not (value.isascii() and value.isprintable()):  # Kubernetes names have no other characters
                raise BadQuery(name, "it has invalid characters", "printable ASCII")
            values[name] = value
        if values.get("namespace"):
            dns_name("namespace", values["namespace"])
        sort = values.get("sort", "name")
        if sort.removeprefix("-") not in SORTED_BY:
            orders = ", ".join(SORTED_BY)
            raise BadQuery("sort", f"unknown field {describe(sort)}", f"{orders}; prefix - for descending order")
        return cls(
            namespace=values.get("namespace", ""),
            states=_words(values, "state", JOB_STATES),
            reasons=_words(values, "reason", REASON_CODES),
            text=values.get("name", ""),
            sort=sort.removeprefix("-"),
            descending=sort.startswith("-"),
            offset=_whole("offset", values.get("offset", "0"), 0, MAX_OFFSET),
            limit=_whole("limit", values.get("limit", str(PAGE)), 1, MAX_PAGE),
        )


def dns_name(kind: str, value: str) -> None:
    """Raises BadQuery for an invalid resource name (`kind` as in NAMES), before any access review is made for it."""
    _, most, words = NAMES[kind]
    if len(value) > most:
        raise BadQuery(kind, f"invalid resource name of {len(value)} characters", words)
    if not _NAMES[kind].fullmatch(value):
        raise BadQuery(kind, f"invalid resource name {describe(value)}", words)


def matches(row: JobRow, listing: Listing) -> bool:
    """Whether a job matches the filters."""
    return (
        (not listing.namespace or row.namespace == listing.namespace)
        and (not listing.states or row.state in listing.states)
        and (not listing.reasons or row.reason_code in listing.reasons)
        and listing.text in row.name
    )


def page(rows: Iterable[JobRow], listing: Listing) -> tuple[Sequence[JobRow], int]:
    """The requested page of matching jobs, and the number of all matching jobs. Jobs without the sort value come last
    in both directions."""
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
    return ordered[listing.offset : listing.offset + listing.limit], len(ordered)


def _words(values: Mapping[str, str], name: str, known: Sequence[str]) -> frozenset[str]:
    """A comma-separated list of these words; empty if the parameter is not given."""
    found = frozenset(values[name].split(",")) if name in values else frozenset[str]()
    if wrong := sorted(found - set(known)):
        raise BadQuery(name, f"unknown {name} {describe(wrong[0])}", f"a comma-separated list of {', '.join(known)}")
    return found


def _whole(name: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
        raise BadQuery(name, f"invalid value {describe(text)}", f"a whole number from {least} to {most}")
    return int(text)


# -- Nodes, and their held, borrowed and used CPU ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoanRow:
    """The loan of a node to TFJobs, as recorded on the node."""

    stage: Annotated[
        Stage, "loaned: loanable jobs may run there; recalled: jobs leave it; returned: not lent again for a while"
    ]
    pool: Annotated[str, "pool that owns the node"]
    since: Annotated[str, "start of this stage, RFC 3339"]
    why: Annotated[str, "reason, in words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node. CPU is in millicores."""

    name: Annotated[str, "name of the node"]
    ready: Annotated[bool, "whether the node is ready"]
    cordoned: Annotated[bool, "whether the node gets no more pods: it is cordoned or being drained"]
    draining: Annotated[str, "taint that says the node will be removed; empty: none"]
    gone_at: Annotated[str | None, "time at which its pods end, RFC 3339; null: not drained, or no time is known"]
    given_up: Annotated[bool, "whether jobs leave it, so that an autoscaler removes it; only the leader knows"]
    spot: Annotated[bool, "whether its owner may take it away at any time"]
    cpu: Annotated[int, "CPU that pods may request"]
    held: Annotated[int, "CPU that replicas of TFJobs request, including borrowed CPU"]
    lent: Annotated[int, "borrowed CPU: the part of held beyond the requests in the templates"]
    others: Annotated[int, "CPU that all other pods request"]
    free: Annotated[int, "CPU that is not requested"]
    used: Annotated[
        int | None,
        "CPU that reporting replicas used recently; null: this replica of the "
        "operator is not the leader and does not poll pods",
    ]
    replicas: Annotated[int, "replicas of TFJobs on it"]
    jobs: Annotated[int, "TFJobs with replicas on it"]
    pool: Annotated[str, "pool named by its label; empty: none"]
    loan: Annotated[LoanRow | None, "its loan; null: never lent"]


def node_rows(
    nodes: Iterable[KubeNode],
    pods: Iterable[Pod],
    foreign: Iterable[ForeignPod],
    requested: Callable[[Key, str], int | None],
    reports: Callable[[Key], Mapping[str, Report]] | None,
    *,
    given_up: Collection[str] = (),
) -> list[NodeRow]:
    """The nodes, sorted by name. `requested`: millicores requested in the template of a job's replica type (lower
    case); None: unknown. `reports`: reports by pod name; None: pods are not polled. `given_up`: nodes that jobs
    leave."""
    held, lent, others, used = (defaultdict[str, int](int) for _ in range(4))
    replicas, jobs = defaultdict[str, int](int), defaultdict[str, set[Key]](set)
    known: set[str] = set()
    for pod in pods:
        known.add(pod.uid)
        if not pod.node or pod.ended:
            continue
        cpu, declared = pod.requests.cpu_millicores, requested(pod.key, pod.replica_type)
        held[pod.node] += cpu
        lent[pod.node] += max(0, cpu - declared) if declared is not None else 0
        replicas[pod.node] += 1
        jobs[pod.node].add(pod.key)
        report = reports(pod.key).get(pod.name) if reports is not None else None
        if report is not None and report.cpu.use_cores is not None:
            used[pod.node] += round(1000 * report.cpu.use_cores)
    for other in foreign:
        if other.uid not in known:
            others[other.node] += other.requests.cpu_millicores
    return [
        NodeRow(
            name=node.name,
            ready=node.ready,
            cordoned=node.cordoned,
            draining=node.draining,
            gone_at=None if (at := node.gone_s()) is None else format_time(datetime.fromtimestamp(at, UTC)),
            given_up=node.name in given_up,
            spot=node.spot,
            cpu=node.allocatable.cpu_millicores,
            held=held[node.name],
            lent=lent[node.name],
            others=others[node.name],
            free=max(0, node.allocatable.cpu_millicores - held[node.name] - others[node.name]),
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


# -- Teams -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamRow:
    """A team that shares the cluster, after the last scheduling round."""

    name: Annotated[str, "the team: a namespace, or the name of several in the configuration"]
    share: Annotated[float, "dominant share of the cluster that its jobs request, 0 to 1"]
    deserved: Annotated[float, "dominant share of the cluster that it deserves, 0 to 1"]
    waiting: Annotated[int, "its jobs that wait for resources"]
    below: Annotated[bool, "whether it has less than it deserves although its jobs could use more"]


def team_rows(teams: Mapping[str, TeamShare]) -> list[TeamRow]:
    """The rows of all teams, sorted by name."""
    return [
        TeamRow(name=name, share=each.share, deserved=each.deserved, waiting=each.waiting, below=each.below)
        for name, each in sorted(teams.items())
    ]
