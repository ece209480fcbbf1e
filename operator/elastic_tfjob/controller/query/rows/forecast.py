"""When a job is expected to finish, and whether that is by its deadline. Pure.

Nothing is computed here: the expected end is what the operator stored (controller/job/eta.py), slack and verdict are
what it judged, so that columns of kubectl, this API and any replica that answers say the same.
"""

from dataclasses import dataclass
from typing import Annotated

from elastic_tfjob.controller.objects.status import moment_of
from elastic_tfjob.controller.query.rows.job import JobRow, Seen

__all__ = ["ForecastRow", "forecast_row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow:
    """What was expected of a job when that was stored last. The interval holds nine of ten finishes."""

    namespace: Annotated[str, "namespace of the TFJob"]
    name: Annotated[str, "name of the TFJob"]
    state: Annotated[str, "what it does, in one word"]
    expected: Annotated[str | None, "expected end; null: not known, or it does not run"]
    earliest: Annotated[str | None, "begin of the interval"]
    latest: Annotated[str | None, "end of the interval; null: there is none"]
    deadline: Annotated[str | None, "when it shall have ended"]
    slack_s: Annotated[float | None, "seconds from the expected end to the deadline, as judged last; below 0: too late"]
    meets: Annotated[bool | None, "whether it is expected to end by the deadline"]
    at_risk: Annotated[bool, "whether it is, and the end of the interval is not"]
    source: Annotated[str | None, "what the speed is known from"]


def forecast_row(seen: Seen, row: JobRow) -> ForecastRow:
    """The forecast, as it was stored last."""
    state = seen.state if row.state in ("Running", "Rescaling") and row.eta is not None else None
    meets = _meets(row) if state is not None else None
    latest, due = moment_of(state.eta_latest) if state is not None else None, moment_of(row.deadline)
    return ForecastRow(
        namespace=row.namespace,
        name=row.name,
        state=row.state,
        expected=row.eta if state is not None else None,
        earliest=state.eta_earliest if state is not None else None,
        latest=state.eta_latest if state is not None else None,
        deadline=row.deadline,
        slack_s=row.slack_s if state is not None else None,
        meets=meets,
        at_risk=bool(meets) and latest is not None and due is not None and latest > due,
        source=state.eta_source if state is not None else None,
    )


def _meets(row: JobRow) -> bool | None:
    """As the verdict says; before there is one, as the slack does."""
    if row.verdict is not None and row.verdict != "unknown":
        return row.verdict in ("on-time", "met")
    return None if row.slack_s is None else row.slack_s >= 0
