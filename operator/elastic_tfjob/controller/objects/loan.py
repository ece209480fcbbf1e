"""The loan of a node of another pool, as it stands on the node: the admin's label, and the operator's taint and
annotation. Pure.

All that is known of a loan is on its node, so that any operator can go on with it at any moment. The scheduling loop of
the leader is the only writer. Others may change a node, too: so taint and annotation are compared each time.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

import orjson

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.fields import Fields, cut, describe
from elastic_tfjob.api.limits import MAX_TEXT, MAX_VALUE, MAX_WORD
from elastic_tfjob.controller.objects.status import moment_of
from elastic_tfjob.scheduling.constraints import Taint

__all__ = [
    "LOANED_TAINT",
    "LOAN_ANNOTATION",
    "POOL_LABEL",
    "POOL_NAME",
    "WANT_ANNOTATION",
    "NodeLoan",
    "Stage",
    "parse_wants",
    "tainted",
    "without_loaned",
]

POOL_LABEL: Final = f"{PREFIX}pool"
LOANED_TAINT: Final = f"{PREFIX}loaned"
LOAN_ANNOTATION: Final = f"{PREFIX}loan"
WANT_ANNOTATION: Final = f"{PREFIX}want-nodes"
POOL_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

Stage = Literal["loaned", "recalled", "returned"]
"""`loaned`: loanable jobs may run there. `recalled`: it is wanted back, and jobs leave it. `returned`: it is its pool's
again, and not lent anew for a while."""
_STAGES: Final[tuple[Stage, ...]] = get_args(Stage)


@dataclass(frozen=True, slots=True)
class NodeLoan:
    """`since`: of the stage, RFC 3339. `pool`: whose node it is, whatever its label says by now. `why`: in words."""

    stage: Stage
    pool: str
    since: str
    why: str = ""

    @classmethod
    def of(cls, annotations: Mapping[str, str]) -> "NodeLoan | None":
        """What a node's annotations say; None where there is nothing, or nonsense."""
        text = annotations.get(LOAN_ANNOTATION)
        if text is None or len(text) > MAX_VALUE:
            return None
        try:
            raw = Fields(orjson.loads(text))
            stage, pool = cast("Stage", raw.word("stage", _STAGES)), raw.text("pool", MAX_WORD)
            since = raw.time("since")
            if since is None or not POOL_NAME.fullmatch(pool):
                return None
            return cls(stage, pool, since, raw.text("why"))
        except ValueError:
            return None

    def to_json(self) -> str:
        """The annotation."""
        found = {"stage": self.stage, "pool": self.pool, "since": self.since, "why": cut(self.why, MAX_TEXT)}
        return orjson.dumps(found).decode()

    def age_s(self, now_s: float) -> float:
        """Seconds in this stage; 0 for a time to come, which a clock that was set back leaves behind."""
        since = moment_of(self.since)
        return max(0.0, now_s - since.timestamp()) if since is not None else 0.0


def tainted(taints: Iterable[Taint]) -> bool:
    """Whether a node has the taint that keeps the pods of its pool away while it is lent."""
    return any(taint.key == LOANED_TAINT and taint.effect == "NoSchedule" for taint in taints)


def without_loaned(taints: Iterable[Taint]) -> list[Taint]:
    """The taints of others."""
    return [taint for taint in taints if taint.key != LOANED_TAINT]


def parse_wants(text: str) -> tuple[dict[str, int], list[str]]:
    """`inference=3,search=1`: the least number of nodes that a pool shall have for itself; and what is wrong there."""
    wants: dict[str, int] = {}
    if len(text) > MAX_VALUE:
        return {}, [f"{WANT_ANNOTATION} has {len(text)} characters, allowed are {MAX_VALUE}"]
    problems = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        pool, _, number = part.partition("=")
        known = POOL_NAME.fullmatch(pool) and number.isascii() and number.isdecimal() and len(number) <= 9
        if known:
            wants[pool] = max(wants.get(pool, 0), int(number))
        else:
            problems.append(f"{WANT_ANNOTATION}: {describe(part)} is ignored: allowed is POOL=NODES, as in inference=3")
    return wants, problems
