"""`explain`: one job's state and history, the reasons for them, and what the user can do."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from elastic_tfjob.api.words import bytes_in_words, counts_in_words
from elastic_tfjob.commands import show
from elastic_tfjob.commands.cluster import Cluster, run
from elastic_tfjob.commands.configuration import order_hint
from elastic_tfjob.commands.job_events import job_events, why_pending
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.planning.request import decided
from elastic_tfjob.controller.query.rows.jobs import JobRow, ReadJob, job_row, see
from elastic_tfjob.controller.query.rows.timeline import Happening, sizes, timeline
from elastic_tfjob.controller.query.rows.what_if import ForecastRow, forecast_row

__all__ = ["explain", "explanation", "hints"]

# Prefixes of event reasons; the object's kind follows.
_REFUSED: Final = "FailedCreate"
_CREATED: Final = "SuccessfulCreate"


def explain(*, job: str, operator_namespace: str, output: str | None, **cluster: Any) -> None:
    """Explain a TFJob: its state and the reason for it, its bounds, expected end, timeline, and what the user can
    do."""

    async def do(at: Cluster) -> None:
        seen = see(await at.job(job))
        row = job_row(seen)
        events, unread = await job_events(at, seen)
        forecast = forecast_row(seen, row)
        order = ""
        if seen.request is not None and row.state == "Waiting" and not row.orders:
            order = await order_hint(at, operator_namespace, seen.request)
        if output == "json":
            found = {"job": row, "forecast": forecast, "timeline": timeline(seen), "sizes": sizes(seen)}
            found |= {"events": events, "refused": refusals(row, events)}
            found |= {"pending": why_pending(seen, row, events), "hints": list(hints(seen, row, order))}
            click.echo(show.as_json(found))
            return
        click.echo("\n".join(explanation(seen, row, forecast, events, order)))
        if unread:
            click.echo(f"\n{unread}", err=True)

    run(do, **cluster)


def explanation(
    seen: ReadJob, row: JobRow, forecast: ForecastRow, events: Sequence[Happening], order: str = ""
) -> Iterator[str]:
    """The explanation, line by line. `order`: a hint about nodes that the job does not order."""
    now = datetime.now(UTC)
    yield f"{row.namespace}/{row.name}: {row.state}"
    facts = [
        ("reason", "; ".join(refused) if (refused := refusals(row, events)) else row.reason),
        ("reason code", row.reason_code or ""),
        ("waiting", f"for {show.ago(row.waits_since, now)}" if row.waits_since else ""),
        ("size", show.size(row.replicas)),
        ("target size", show.size(row.wanted) if row.wanted != row.replicas else ""),
        ("pending", why_pending(seen, row, events)),
        ("ordered", f"nodes for {show.size(row.orders)}" if row.orders else ""),
        ("bounds", ", ".join(f"{name} {a} to {b}" for name, (a, b) in row.bounds.items() if a != b) or "fixed"),
        ("steps", _steps(row)),
        ("memory", _memory(row)),
        ("expected end", _ends(forecast, now)),
        ("deadline", _deadline(row, forecast, now)),
        ("rescales", _rescales(row)),
        ("next start", _starts(row)),
        ("Kueue queue", row.queue),
        ("growth", row.growth),
    ]
    for name, text in facts:
        if text:
            yield f"  {name + ':':<14}{show.plain(text)}"
    for problem in row.problems:
        yield f"  {'problem:':<14}{show.plain(problem)}"
    lines = sorted([*timeline(seen), *events], key=lambda each: (each.at is None, each.at or ""))
    cells = [
        [show.ago(each.at, now) + " ago" if each.at else "pending", each.text, each.cause or "", _why(each)]
        for each in lines
    ]
    yield ""
    yield show.table(["WHEN", "EVENT", "CAUSE", "REASON"], cells)
    if found := list(hints(seen, row, order)):
        yield "\nWhat you can do:"
        yield from (f"  - {show.plain(each)}" for each in found)


def _pending_edit(seen: ReadJob) -> str:
    """The replicas that an edit of the spec requests and the job does not have yet; empty: none."""
    if seen.request is None:
        return ""
    before, asked = decided(seen.target, seen.state), seen.request.declared
    counts = {kind: count for kind, count in sorted(asked.items()) if before.get(kind, count) != count}
    return counts_in_words(counts) if counts else ""


def refusals(row: JobRow, events: Sequence[Happening]) -> list[str]:
    """Pods and Services that the API server refused to create and that the job needs, with its messages. A refusal is
    over once an object of the same kind has been created after it."""
    if row.state not in ("Pending", "Starting", "Restarting", "Rescaling", "Running"):
        return []
    newest: dict[str, Happening] = {}
    for each in sorted(events, key=lambda event: (event.at or "", event.reason.startswith(_REFUSED))):
        newest[each.reason.removeprefix(_REFUSED).removeprefix(_CREATED)] = each
    found = [(kind, each) for kind, each in newest.items() if each.reason.startswith(_REFUSED)]
    if row.state == "Running":
        found = [(kind, each) for kind, each in found if kind == "Service"]
    return [f"the API server refused a {kind}: {each.text.removeprefix('Error creating: ')}" for kind, each in found]


def hints(seen: ReadJob, row: JobRow, order: str = "") -> Iterator[str]:
    """What a user can do if the job's state is not what they want."""
    request, name = seen.request, row.name
    if row.state in ("Succeeded", "Failed", "Terminating"):
        return
    if request is None:
        yield "correct the spec, which is invalid (see the problem above)"
        return
    if row.state == "Suspended":
        yield (
            f"Kueue has not admitted the job yet: kubectl -n {row.namespace} get workloads"
            if row.queue
            else f"resume the job: elastic-tfjob resume {name} -n {row.namespace}"
        )
    if row.state == "Waiting":
        least = counts_in_words({kind: low for kind, (low, _) in sorted(row.bounds.items())})
        yield (
            f"the job starts once nodes have room for {least} (elastic-tfjob top nodes); lower min-workers and "
            "min-ps help"
        )
        if order:
            yield order
    if seen.state is not None and seen.state.refused is not None:
        if edited := _pending_edit(seen):
            yield f"an edit of the spec requests {edited}, which failed so far: {seen.state.refused.reason}"
        yield "the last rescale was rolled back; the operator retries it, after longer and longer pauses"
    if not request.elastic and request.elasticity.annotated:
        if request.elasticity.checkpoint_dir is None:
            yield "set the annotation checkpoint-dir: without it, a rescale would lose the training progress"
        elif request.elasticity.rescale == "never":
            yield "the size is fixed by the annotation rescale: never"
        else:
            yield "the size is fixed: set bounds that differ (min-workers, max-workers, min-ps, max-ps)"
    asked = [
        f"target-{kind}"
        for kind, of in (("workers", "Worker"), ("ps", "PS"))
        if request.elasticity.asked(of) is not None
    ]
    if asked:
        yield (
            f"the size was requested by a person ({', '.join(asked)}): elastic-tfjob auto {name} lets the profile "
            "decide"
        )
    if row.slack_s is not None and row.slack_s < 0:
        yield (
            "the job is expected to miss its deadline: allow more replicas (max-workers), or set a later deadline "
            "or a higher priority"
        )


def _starts(row: JobRow) -> str:
    """How the program will start at the next size."""
    if row.starts == "fork":
        return "by fork, from an interpreter that has already imported the program's modules"
    return (row.starts or "").replace("exec", "as a new process", 1)


def _steps(row: JobRow) -> str:
    if row.step is None:
        return ""
    whole = f" of {row.total_steps}" if row.total_steps else ""
    speed = f", {show.number(row.steps_per_s)} steps/s" if row.steps_per_s else ""
    return (
        f"{row.step}{whole}{speed} ({show.ago(row.figures_at)} ago)" if row.figures_at else f"{row.step}{whole}{speed}"
    )


def _memory(row: JobRow) -> str:
    parts = []
    for name in sorted({*row.memory_used, *row.memory_kills}):
        used, limit = row.memory_used.get(name, 0), row.memory_limit.get(name)
        text = f"{name} uses {bytes_in_words(used)}" + (f" of {bytes_in_words(limit)}" if limit else "")
        parts.append(text + (f", {count} killed" if (count := row.memory_kills.get(name)) else ""))
    return "; ".join(parts)


def _ends(forecast: ForecastRow, now: datetime) -> str:
    expected = moment_of(forecast.expected)
    if expected is None:
        return ""
    text = f"in {show.duration((expected - now).total_seconds())} ({forecast.expected})"
    earliest, latest = moment_of(forecast.earliest), moment_of(forecast.latest)
    if earliest is not None and latest is not None and earliest != latest:
        ends = [show.duration((each - now).total_seconds()) for each in (earliest, latest)]
        text += f", 90 % interval: in {ends[0]} to {ends[1]}"
    return text


def _deadline(row: JobRow, forecast: ForecastRow, now: datetime) -> str:
    due = moment_of(row.deadline)
    if due is None:
        return ""
    text = f"in {show.duration((due - now).total_seconds())} ({row.deadline})"
    if forecast.meets is None:
        return text
    meets = "will be met" if forecast.meets else "will be missed"
    close = ", but it is close" if forecast.at_risk else ""
    return f"{text}: {meets} by {show.duration(abs(forecast.slack_s or 0))}{close}"


def _rescales(row: JobRow) -> str:
    if not row.rescales:
        return ""
    pause = f", the last one paused training for {row.last_downtime_s:.2f} s" if row.last_downtime_s is not None else ""
    return f"{row.rescales}{pause}"


def _why(each: Happening) -> str:
    parts = [each.reason]
    if each.downtime_s is not None:
        parts.append(f"training paused for {each.downtime_s:.2f} s")
    if each.lost_steps:
        parts.append(f"{each.lost_steps} steps lost")
    if each.expected_steps_per_s and each.measured_steps_per_s:
        ratio = each.measured_steps_per_s / each.expected_steps_per_s
        parts.append(f"then {show.number(each.measured_steps_per_s)} steps/s, {ratio:.0%} of the expected speed")
    return "; ".join(filter(None, parts))
