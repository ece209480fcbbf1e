"""What people are told of deadlines: verdicts from a plan's forecasts, told once, whatever the profile."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from math import inf, nan
from typing import Any

import pytest

from elastic_tfjob.api.reading import MAX_DURATION_S
from elastic_tfjob.controller.model.annotations import NOTICES_ANNOTATION, SLACK_ANNOTATION, VERDICT_ANNOTATION
from elastic_tfjob.controller.model.deadline_status import DeadlineStatus, NoticesSent, deadline_of, span
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.planning.deadlines import HOLDS_S, Doubt, Judged, judge, judge_all
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.forecasts import attainable
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.resources import Taint

from .build import NOW, UID, job
from .scheduling.build import job as core_job
from .scheduling.build import node, plan, rates, workers

START = NOW.timestamp()
PREFIX = "elastic.kubeflow.org/"


def tfjob(deadline_s: float = 100.0, status: dict[str, Any] | None = None, **annotations: str) -> TFJob:
    """A job created at START."""
    text = format_time(NOW + timedelta(seconds=deadline_s))
    made = job(annotations={PREFIX + "deadline": text, **annotations}, status=status or {})
    return replace(made, created=format_time(NOW))


def running(steps: float, rate: float = 1.0, most: int = 4, **more: Any) -> core.Job:
    """One worker that makes `rate` steps a second since START; with n workers the job is n times as fast."""
    speed = rates(*(rate * n for n in range(1, 9)))
    return core_job(
        "j", workers(1, 1, most), at=START, steps=steps, on={"Worker": ("n0",)}, steps_per_s=rate, speed=speed,
        since_s=START, observed_s=START, **more,
    )  # fmt: skip


def planned(found: core.Job, after_s: float = 0.0, profile: str = "fifo", gpus: int = 8) -> Plan:
    deadline = replace(found, spec=replace(found.spec, deadline_s=START + 100.0))
    return plan(profile, [node("n0", gpus=gpus)], [deadline], START + after_s)


class Seen:
    """A job that is judged again and again, with what is written to it; `told` are reasons of events."""

    def __init__(self, made: TFJob | None = None) -> None:
        self.job = made if made is not None else tfjob()
        self.doubt: Doubt | None = None
        self.sent: list[str] = []
        self.words: list[str] = []
        self.reached: list[str] = []

    def look(self, after_s: float, made: Plan | None) -> Judged:
        judged = judge(self.job, START + 100.0, made, START + after_s, key="j", doubt=self.doubt)
        self.doubt = judged.doubt
        merged = {**self.job.annotations, **judged.annotations}
        self.job = replace(self.job, annotations={k: v for k, v in merged.items() if v is not None})
        self.sent += [event.reason for event in judged.events]
        self.words += [event.message for event in judged.events]
        self.reached += [judged.reached] if judged.reached else []
        return judged

    def follow(self, found: core.Job, times: Mapping[float, float] | tuple[float, ...], **more: Any) -> None:
        for after_s in times:
            self.look(after_s, planned(found, after_s, **more))

    @property
    def columns(self) -> tuple[str | None, str | None]:
        return self.job.annotations.get(VERDICT_ANNOTATION), self.job.annotations.get(SLACK_ANNOTATION)

    @property
    def status(self) -> DeadlineStatus:
        found = NoticesSent.of(self.job.annotations, UID).judged
        assert found is not None
        return found


def test_a_job_on_time_has_its_slack_in_a_column_and_no_event() -> None:
    seen = Seen()
    seen.follow(running(80.0), (0, 10, 20, 30))
    assert seen.columns == ("on-time", "20s")
    assert seen.status.eta == format_time(NOW + timedelta(seconds=80))
    assert (seen.sent, seen.reached) == ([], ["on-time"])


def test_a_late_job_that_could_be_in_time_is_at_risk_once_and_then_missed_once() -> None:
    """150 steps at one a second, 100 s to go: two workers would do (75 s); from 50 s on nothing less than two."""
    seen = Seen()
    seen.follow(running(150.0), (0, 5, 10, 15, 20, 40))
    assert seen.sent == ["DeadlineAtRisk"]
    assert "50s after its deadline" in seen.words[0]
    assert "2 workers from now on would meet it" in seen.words[0]
    assert seen.columns == ("at-risk", "-50s")
    seen.follow(running(150.0), (101, 115, 130))
    assert seen.sent == ["DeadlineAtRisk", "DeadlineMissed"]
    assert "with 49 steps left, 49s at the present speed" in seen.words[1]
    assert seen.columns == ("missed", "-50s")


def test_a_new_operator_repeats_no_event() -> None:
    """All that a new operator has is the annotation."""
    seen = Seen()
    seen.follow(running(150.0), (0, 10))
    again = Seen(seen.job)
    again.follow(running(150.0), (20, 30, 40, 101))
    assert (seen.sent, again.sent) == (["DeadlineAtRisk"], ["DeadlineMissed"])


def test_an_unattainable_deadline_names_the_size_that_would_meet_it() -> None:
    """590 steps in 90 s: 4 workers, all that is allowed, make 360; seven would do."""
    seen = Seen()
    seen.follow(running(600.0), (0, 10))
    assert seen.sent == ["DeadlineUnattainable"]
    assert "Even with 4 workers, its fastest size, the job ends 58s after" in seen.words[0]
    assert "7 workers would meet it (more than its bounds allow" in seen.words[0]


def test_a_job_that_is_a_second_late_is_told_before_it_is() -> None:
    """Not while that is less than any forecast knows."""
    seen = Seen()
    seen.follow(running(101.5), (0, 10, 30))
    assert seen.sent == []
    seen.follow(running(101.5), (60, 70, 101))
    assert seen.sent == ["DeadlineAtRisk", "DeadlineMissed"]


def test_within_a_step_nobody_is_late() -> None:
    """A step takes 1.5 s, and the last one was reported 1.4 s ago."""
    seen = Seen()
    seen.follow(running(67.3, rate=1 / 1.5), (90,))
    assert seen.sent == []


@pytest.mark.parametrize("more", [{"taints": (Taint("t"),)}, {"loan": "busy"}, {"loan": "offered"}])
def test_nodes_that_a_job_may_not_use_do_not_count_for_its_deadline(more: dict[str, Any]) -> None:
    """A control plane, and another pool's node, but for a loanable job on one that is offered."""
    late = core_job(
        "j", workers(1, 1, 4), at=START, steps=150.0, on={"Worker": ("n0",)}, steps_per_s=1.0, speed=rates(1.0, 2.0),
        since_s=START, observed_s=START,
    )  # fmt: skip
    nodes = {"n0": node("n0", gpus=1), "n1": replace(node("n1", gpus=8), **more)}
    found = attainable(late, START + 100.0, core.Snapshot(START, nodes, {"j": late}))
    assert found is not None
    assert (found.least, found.would_do) == (None, {"Worker": 2})
    if more.get("loan") == "offered":
        late = replace(late, spec=replace(late.spec, loanable=True))
    else:
        nodes["n1"] = node("n1", gpus=8)
    found = attainable(late, START + 100.0, core.Snapshot(START, nodes, {"j": late}))
    assert found is not None
    assert found.least == {"Worker": 2}


def test_a_size_that_the_cluster_does_not_hold_is_none() -> None:
    seen = Seen()
    seen.follow(running(150.0), (0, 10), gpus=1)
    assert seen.sent == ["DeadlineUnattainable"]
    assert "2 workers would meet it (more than fit the cluster" in seen.words[0]


def test_forecasts_that_waver_are_not_told() -> None:
    seen = Seen()
    seen.follow(running(80.0), (0, 10))
    for after_s in (20, 30, 40, 50):
        seen.follow(running(150.0), (after_s,))
        seen.follow(running(80.0), (after_s + 5,))
    assert (seen.sent, seen.columns[0]) == ([], "on-time")
    assert seen.look(60, planned(running(150.0), 60)).doubt == Doubt("at-risk", START + 60)


def test_shortly_before_the_deadline_there_is_no_time_for_doubts() -> None:
    seen = Seen()
    seen.look(85, planned(running(110.0), 85))
    assert seen.sent == ["DeadlineAtRisk"]


def test_a_job_at_risk_again_is_told_again() -> None:
    seen = Seen()
    for steps in (150.0, 80.0, 150.0):
        seen.follow(running(steps), (0, HOLDS_S))
    assert seen.sent == ["DeadlineAtRisk", "DeadlineAtRisk"]
    assert seen.reached == ["at-risk", "on-time", "at-risk"]


@pytest.mark.parametrize("profile", ["fifo", "kips", "deadline", "optimus"])
def test_verdicts_are_of_any_profile_that_plans(profile: str) -> None:
    seen = Seen()
    seen.follow(running(900.0, most=1), (0, 10), profile=profile)
    assert seen.sent == ["DeadlineUnattainable"]


@pytest.mark.parametrize(
    ("type_", "ended_s", "verdict"), [("Succeeded", 90, "met"), ("Succeeded", 130, "missed"), ("Failed", 90, "missed")]
)
def test_a_job_that_ends(type_: str, ended_s: float, verdict: str) -> None:
    conditions = [{"type": type_, "status": "True", "reason": "r", "message": "m"}]
    status = {"conditions": conditions, "completionTime": format_time(NOW + timedelta(seconds=ended_s))}
    seen = Seen(tfjob(status=status))
    assert seen.look(200, None).final
    assert (seen.columns[0], seen.reached) == (verdict, [verdict])
    assert seen.sent == ([] if verdict == "met" else ["DeadlineMissed"])
    again = seen.look(210, None)
    assert (again.final, again.annotations, again.events) == (True, {}, ())


def test_a_job_that_missed_its_deadline_stays_so_when_it_ends() -> None:
    seen = Seen()
    seen.look(101, None)
    conditions = [{"type": "Succeeded", "status": "True", "reason": "r", "message": "m"}]
    seen.job = replace(tfjob(status={"conditions": conditions}), annotations=seen.job.annotations)
    seen.look(120, None)
    assert (seen.sent, seen.reached, seen.columns[0]) == (["DeadlineMissed"], ["missed"], "missed")


def test_a_deadline_in_the_past_is_told_at_once() -> None:
    made = tfjob(deadline_s=-50.0)
    judged = judge(made, START - 50.0, None, START + 1)
    assert [event.reason for event in judged.events] == ["DeadlineMissed"]
    assert "was before the job's creation" in judged.events[0].message


def test_another_deadline_is_another_promise() -> None:
    seen = Seen()
    seen.look(101, None)
    judged = judge(seen.job, START + 500.0, None, START + 120)
    assert (judged.verdict, judged.annotations) == (None, {})


def test_missing_inputs_of_a_forecast_are_reported_once() -> None:
    seen = Seen()
    found = running(1.0)
    silent = replace(found, spec=replace(found.spec, total_steps=None, stoppable=False, resizable=False, reports=False))
    seen.follow(silent, (0, 20, 40))
    assert seen.sent == ["DeadlineLimited"]
    assert "checkpoint-dir" in seen.words[0]
    seen.follow(silent, (61, 75, 90))
    assert seen.sent == ["DeadlineLimited"] * 3
    assert "total-steps" in seen.words[1]
    assert "report" in seen.words[2]
    assert (seen.columns, seen.status.sent) == (("unknown", None), ("work", "speed", "size"))
    again = Seen(seen.job)
    again.follow(silent, (95,))
    assert again.sent == []


@pytest.mark.parametrize(
    ("rate", "column"), [(1.0, "-299d23h"), (1e-9, "less than -73000d")], ids=["late", "later than is believed"]
)
def test_a_slack_that_people_would_read_the_same_is_not_written_again(rate: float, column: str) -> None:
    """Of a job that is far too slow, and each minute a little slower or faster."""
    seen, steps = Seen(), 300 * 86400.0
    seen.follow(running(steps, rate), (0, 10, 101))  # the deadline has passed by then
    written = seen.status.at
    for k in range(1, 6):
        seen.look(101.0 + 61 * k, planned(running(steps, rate * (0.99 if k % 2 else 1.01)), 101.0 + 61 * k))
    assert (seen.columns[1], seen.status.at) == (column, written)


def test_the_slack_is_written_when_it_has_changed_and_not_in_each_pass() -> None:
    seen = Seen()
    seen.follow(running(80.0), (0, 10))
    assert seen.columns == ("on-time", "20s")
    assert not seen.look(20, planned(running(90.0), 20)).annotations
    assert not seen.look(75, planned(running(82.0), 75)).annotations
    assert seen.look(75, planned(running(90.0), 75)).annotations[SLACK_ANNOTATION] == "10s"


def test_a_job_of_another_manager_is_left_alone() -> None:
    other = job(annotations={PREFIX + "deadline": "1m"}, runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"})
    assert judge(other, START, None, START + 100) == Judged(final=True)


def test_annotations_without_room_stay_as_they_are() -> None:
    seen = Seen(tfjob(big="x" * 255 * 1024))
    judged = seen.look(101, None)
    assert (judged.verdict, judged.annotations, judged.events) == ("missed", {}, ())


def test_a_copy_from_another_job_is_as_none() -> None:
    seen = Seen()
    seen.follow(running(80.0), (0, 10))
    assert NoticesSent.of(seen.job.annotations, "another-uid") == NoticesSent()


def test_written_notices_are_read_back() -> None:
    now = format_time(NOW)
    written = NoticesSent(DeadlineStatus(now, "at-risk", now, now, None, -3.5, "w", ("work",)), frozenset({"loss-nan"}))
    found = {k: v for k, v in written.to_annotations(UID).items() if v is not None}
    assert NoticesSent.of(found, UID) == written
    assert (found[VERDICT_ANNOTATION], found[SLACK_ANNOTATION]) == ("at-risk", "-4s")


def test_no_annotation_is_kept_without_notices() -> None:
    assert set(NoticesSent().to_annotations(UID).values()) == {None}


def test_an_invalid_verdict_leaves_the_topics_and_the_other_way_round() -> None:
    judged = {"deadline": format_time(NOW), "verdict": "met"}
    told = json.dumps({"uid": UID, "judged": {**judged, "verdict": "of-tomorrow"}, "sent": ["loss-nan", "of-tomorrow"]})
    assert NoticesSent.of({NOTICES_ANNOTATION: told}, UID) == NoticesSent(sent=frozenset({"loss-nan"}))
    found = NoticesSent.of({NOTICES_ANNOTATION: json.dumps({"uid": UID, "judged": judged, "sent": 5})}, UID)
    assert found == NoticesSent(DeadlineStatus(format_time(NOW), "met", "", ""))


def test_a_verdict_leaves_what_else_was_told() -> None:
    told = NoticesSent(sent=frozenset({"loss-nan"})).to_json(UID) or ""
    seen = Seen(replace(tfjob(), annotations={**tfjob().annotations, NOTICES_ANNOTATION: told}))
    seen.follow(running(80.0), (0, 10))
    found = NoticesSent.of(seen.job.annotations, UID)
    assert found.sent == {"loss-nan"}
    assert found.judged is not None


def test_a_job_that_cannot_be_judged_does_not_stop_the_others() -> None:
    broken = replace(tfjob(), raw_spec=b"nonsense")
    failed: dict[str, Exception] = {}
    jobs = {"bad": (broken, START + 100.0, None), "j": (tfjob(), START + 100.0, None)}
    found = judge_all(jobs, None, START + 101, failed.__setitem__)
    assert (set(failed), found["j"].reached) == ({"bad"}, "missed")


@pytest.mark.parametrize(
    ("text", "after_s"), [("90m", 5400.0), ("2026-01-02T04:04:05Z", 3600.0), ("soon", None), ("9" * 5000, None)]
)
def test_the_deadline_of_an_annotation(text: str, after_s: float | None) -> None:
    made = replace(job(annotations={PREFIX + "deadline": text}), created=format_time(NOW))
    assert deadline_of(made) == (None if after_s is None else START + after_s)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0s"), (-0.2, "0s"), (59, "59s"), (-61, "-1m01s"), (3600, "1h00m"), (90_000, "1d01h")),
        *((2 * MAX_DURATION_S - 1, "72999d23h"), (2 * MAX_DURATION_S, "more than 73000d"), (1e300, "more than 73000d")),
        *((inf, "more than 73000d"), (-inf, "less than -73000d"), (nan, "an unknown time")),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text
