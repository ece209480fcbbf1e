"""One expected end: column, verdict on the deadline, query API and `explain` say the same of a job."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from unittest.mock import MagicMock

import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.job.decision import ReconcileSettings, SaveState
from elastic_tfjob.controller.model.annotations import (
    ETA_ANNOTATION,
    SLACK_ANNOTATION,
    TARGET_ANNOTATION,
    VERDICT_ANNOTATION,
)
from elastic_tfjob.controller.model.deadline_status import NoticesSent, span
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.status import format_time, moment_of
from elastic_tfjob.controller.planning.deadlines import Doubt, judge
from elastic_tfjob.controller.planning.job_view import JobView, view_of
from elastic_tfjob.controller.planning.round import assemble
from elastic_tfjob.controller.planning.targets import decide
from elastic_tfjob.controller.query.rows.jobs import job_row, see
from elastic_tfjob.controller.query.rows.what_if import forecast_row
from elastic_tfjob.controller.schedule.job_events import JobEvents
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.forecasts import Forecast
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.speed.history import History, Lesson
from elastic_tfjob.speed.model import FinishTime

from .build import NOW, UID
from .pretend import ELASTIC, Cluster
from .scheduling import build as core
from .test_snapshot import node

KEY = "ns/j"
NODES = {name: node(name) for name in ("n1", "n2")}
# What jobs of its name took, in steps: nothing else tells how many there are.
TAUGHT = History()
for each, steps in enumerate((1900.0, 2000.0, 2100.0)):
    TAUGHT = TAUGHT.learned("ns", "digits", Lesson(str(each), steps))


class Trains(Cluster):
    """Its job makes ten steps a second."""

    def reports(self) -> dict[str, Report]:
        done = round((self.now - NOW).total_seconds() * 10)
        return {
            name: replace(report, step=done) if report.step is not None else report
            for name, report in super().reports().items()
        }


def live(deadline: str) -> Iterator[tuple[Cluster, Plan]]:
    """A job, second by second, with the plan by which it was reconciled."""
    said = {**ELASTIC, f"{PREFIX}model": "digits", f"{PREFIX}deadline": deadline}
    cluster = Trains(annotations=said, settings=ReconcileSettings(image="operator:1", wait_for_target=True))
    profile = build("fifo", parse_profile("fifo", {}))
    known: JobView | None = None
    while True:
        job = replace(cluster.job(), created=format_time(NOW))
        pods = [replace(p, requests=Resources(p.cpu[0], pods=1)) if p.node else p for p in cluster.pods.values()]
        known = view_of(job, pods, nodes=NODES, now=cluster.now, reports=cluster.reports(), before=known)
        plan = schedule(assemble([known], NODES, [], cluster.now.timestamp(), history=TAUGHT), profile)
        if known.job is not None:
            for target in decide(plan, {known.job.key: known}).values():
                cluster.annotations[TARGET_ANNOTATION] = target.to_json()
        cluster.forecast = partial(plan.forecasts.of_holder, KEY)
        cluster.reconcile()
        yield cluster, plan
        cluster.tick()


@pytest.mark.parametrize(("deadline", "verdicts"), [("30m", {"on-time"}), ("3m", {"at-risk", "unattainable"})])
def test_annotation_state_and_query_api_show_the_same_eta(deadline: str, verdicts: set[str]) -> None:
    refreshed = 0
    for cluster, plan in live(deadline):
        now_s = cluster.now.timestamp()
        if now_s - NOW.timestamp() > 160:
            break
        written = cluster.annotations.get(f"{PREFIX}state")
        if written is None or cluster.state.eta is None or cluster.state.metrics_at != format_time(cluster.now):
            continue
        refreshed += 1
        job = replace(cluster.job(), created=format_time(NOW))
        deadline_s = plan.snapshot.jobs[KEY].spec.deadline_s
        assert deadline_s is not None
        for verdict in verdicts:
            judged = judge(job, deadline_s, plan, now_s, key=KEY, doubt=Doubt(verdict, now_s - 60))  # type: ignore[arg-type]
            if judged.reached:
                break
        told = {name: text for name, text in judged.annotations.items() if text is not None}
        job = replace(job, annotations={**job.annotations, **told})
        seen = see(job)
        row, status = job_row(seen), NoticesSent.of(job.annotations, UID).judged
        forecast = forecast_row(seen, row)
        assert status is not None
        assert job.annotations[ETA_ANNOTATION] == row.eta == forecast.expected == status.eta
        assert job.annotations[SLACK_ANNOTATION] == span(row.slack_s or 0.0)
        assert row.slack_s == forecast.slack_s == status.slack_s
        assert job.annotations[VERDICT_ANNOTATION] == row.verdict
        assert row.verdict in verdicts
        assert forecast.meets == (row.verdict == "on-time")
        ends, due = moment_of(row.eta), moment_of(row.deadline)
        assert ends is not None
        assert due is not None
        assert (due - ends).total_seconds() == pytest.approx(row.slack_s, abs=1)
        assert forecast.earliest is not None
        assert forecast.latest is not None
        assert forecast.earliest < forecast.expected < forecast.latest, "it is known from other jobs"
    assert refreshed >= 2


def test_the_eta_of_a_job_without_a_plan_comes_from_its_own_report() -> None:
    cluster = Cluster(annotations={**ELASTIC, f"{PREFIX}total-steps": "700"})
    cluster.run(130)
    state = cluster.state
    at = moment_of(state.metrics_at)
    assert at is not None
    # 600 steps at 10 a second, from when that was stored: a job of this cluster stays at step 100.
    assert (state.eta, state.eta_source) == (format_time(at + timedelta(seconds=60)), "measured")


def test_an_end_that_changes_every_second_is_written_as_seldom_as_others() -> None:
    writes = {}
    for changes in (False, True):
        cluster = Trains(annotations={**ELASTIC, f"{PREFIX}total-steps": "100000"})
        writes[changes] = 0
        for _ in range(200):
            at_s = cluster.now.timestamp() * 2
            if changes:
                cluster.forecast = partial(Forecast, FinishTime(at_s, at_s - 5, at_s + 5))
            cluster.reconcile()
            writes[changes] += sum(isinstance(action, SaveState) for action in cluster.decision.actions)
            cluster.tick()
    assert 0 < writes[True] <= writes[False]


async def test_the_last_plans_forecast_counts_for_a_while_and_for_jobs_with_resources() -> None:
    notices = JobEvents(MagicMock(), MagicMock(), MagicMock(), {})
    assert notices.forecast(("ns", "j")) is None
    runs = core.job("ns/j", core.workers(1), on={"Worker": ("n0",)}, steps=100.0, steps_per_s=2.0)
    jobs = [runs, core.job("ns/w", core.workers(1), duration=5.0)]
    for now_s, told in ((time.time(), True), (time.time() - 7200, False)):
        plan = core.plan("fifo", [core.node("n0", gpus=1)], jobs, now_s)
        async with asyncio.TaskGroup() as group:
            await notices.look(plan, group)
        found = notices.forecast(("ns", "j"))
        assert found == (plan.forecasts["ns/j"] if told else None)
        assert notices.forecast(("ns", "w")) is None
        assert notices.forecast(("other", "j")) is None
