"""What a job's pods say of its training now. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final

from elastic_tfjob.api.limits import after
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.status import format_time

__all__ = ["LiveRow", "live_row"]

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    """What the pod that made the latest step reported last. Times are by its clock."""

    step: Annotated[int | None, "training steps done"]
    steps_per_s: Annotated[float | None, "training steps a second, at this size"]
    loss: Annotated[float | None, "loss; null: not reported, or no number"]
    loss_problem: Annotated[str, "nan or inf where the loss is no number"]
    checkpoint_step: Annotated[int | None, "step of the newest complete checkpoint"]
    checkpoint_at: Annotated[str | None, "when it was complete"]


def live_row(reports: Mapping[str, Report]) -> LiveRow | None:
    """The figures of a job from what its pods said last, by name of the pod; None where none has made a step."""
    found = [report for report in reports.values() if report.step is not None]
    if not found:
        return None
    last = max(found, key=lambda report: (report.last_step_at or 0.0, report.step or 0))
    saved = last.checkpoint
    at = saved.at if saved is not None else None
    return LiveRow(
        step=last.step,
        steps_per_s=last.steps_per_s,
        loss=last.loss,
        loss_problem=last.loss_problem,
        checkpoint_step=saved.step if saved is not None else None,
        checkpoint_at=format_time(after(_EPOCH, max(0.0, at))) if at is not None else None,
    )
