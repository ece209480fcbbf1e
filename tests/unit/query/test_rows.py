"""Rows say what objects say, whatever is in them."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_tfjob.controller.model.annotations import SLACK_ANNOTATION
from elastic_tfjob.controller.model.deadline_status import DeadlineStatus, NoticesSent, Verdict
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.query.rows.jobs import job_row, see
from elastic_tfjob.controller.query.rows.listing import MAX_FILTER, BadQuery, Listing, node_rows, page
from elastic_tfjob.controller.query.rows.timeline import sizes, timeline
from elastic_tfjob.controller.query.rows.what_if import forecast_row
from harness.hostile_text import MARKUP, TEXTS

from . import build
from .build import GROWN, SIZE, job, running, tfjob, waiting

NEXT = {"generation": 2, "slot": 1, "mode": "overlap", "replicas": SIZE, "before": GROWN, "reason": "gives room"}
STOPS = {"generation": 2, "replicas": {}, "reason": "others go first", "cause": "preempt"}


@pytest.mark.parametrize(
    ("raw", "state", "reason"),
    [
        (tfjob(), "Pending", ""),
        (tfjob(conditions={"Created": build.CREATED}), "Starting", "TFJob is Created."),
        (tfjob(target={"generation": 0, "replicas": SIZE, "reason": "room on n1"}), "Starting", "room on n1"),
        (tfjob(runPolicy={"suspend": True}), "Suspended", "spec.runPolicy.suspend is true"),
        (waiting(why="no node has 3 cores"), "Waiting", "no node has 3 cores"),
        (running(), "Running", "idle CPU"),
        (tfjob(conditions={**build.RUNS, "Restarting": build.CREATED}), "Restarting", "TFJob is Restarting."),
        (tfjob(state={"phase": "Switching", "replicas": GROWN, "next": NEXT}), "Rescaling", "gives room"),
        (tfjob(state={"phase": "Stable", "replicas": SIZE}, target=STOPS), "Stopping", "others go first"),
        (tfjob(conditions={"Succeeded": build.CREATED}, target=STOPS), "Succeeded", "TFJob is Succeeded."),
        (tfjob(conditions={"Failed": build.CREATED}), "Failed", "TFJob is Failed."),
    ],
)
def test_a_job_is_told_in_one_word_and_why(raw: dict[str, Any], state: str, reason: str) -> None:
    row = job_row(job(raw))
    assert (row.state, row.reason) == (state, reason)


def test_a_row_has_sizes_bounds_progress_and_slack() -> None:
    annotations = {"max-workers": "4", "checkpoint-dir": "/c", "deadline": "30m"}
    row = job_row(job(running(annotations=annotations)))
    assert (row.replicas, row.wanted, row.generation, row.elastic) == (GROWN, GROWN, 1, True)
    assert row.bounds == {"Chief": (1, 1), "PS": (1, 1), "Worker": (2, 4)}
    assert (row.step, row.total_steps, row.steps_per_s) == (500, 1000, 5.0)
    assert (row.eta, row.deadline, row.slack_s) == ("2026-01-02T03:20:00Z", "2026-01-02T03:30:00Z", 600.0)
    assert (row.rescales, row.last_downtime_s, row.problems) == (1, 0.2, ())


def test_verdict_and_slack_are_those_of_kubectls_columns() -> None:
    """Before the operator has judged, and where that was about another deadline, slack is what the stored end says."""
    status = DeadlineStatus("2026-01-02T03:30:00Z", "at-risk", build.CREATED, build.CREATED, slack_s=-90.0)
    annotations = {"max-workers": "4", "checkpoint-dir": "/c", "deadline": "30m"}
    raw = running(annotations=annotations)
    assert job_row(job(raw)).verdict is None
    raw["metadata"]["annotations"].update(NoticesSent(status).to_annotations("ns-j"))
    row = job_row(job(raw))
    assert (row.verdict, row.slack_s) == ("at-risk", -90.0)
    assert raw["metadata"]["annotations"][SLACK_ANNOTATION] == "-1m30s"
    raw["metadata"]["annotations"][f"{build.PREFIX}deadline"] = "40m"
    row = job_row(job(raw))
    assert (row.verdict, row.slack_s) == (None, 1200.0)


def test_a_copy_of_anothers_state_is_no_state() -> None:
    raw = running()
    state = json.loads(raw["metadata"]["annotations"][f"{build.PREFIX}state"])
    raw["metadata"]["annotations"][f"{build.PREFIX}state"] = json.dumps({**state, "uid": "another"})
    assert job_row(job(raw)).step is None


def test_a_timeline_has_sizes_with_their_reasons_in_order_and_what_is_to_come_last() -> None:
    raw = running()
    text = {"generation": 2, "replicas": SIZE, "reason": "gives room"}
    raw["metadata"]["annotations"][f"{build.PREFIX}target"] = json.dumps(text)
    found = timeline(see(job(raw)))
    assert [(each.kind, each.reason) for each in found] == [
        ("created", ""),
        ("condition", "TFJobCreated"),
        ("condition", "TFJobRunning"),
        ("rescaled", "idle CPU"),
        ("decided", "gives room"),
    ]
    assert [each.cause for each in found] == [None, None, None, "grow", "shrink"]
    state = json.loads(raw["metadata"]["annotations"][f"{build.PREFIX}state"])
    more = {"causes": {"1": "asked"}, "outcomes": {"1": {"expected": 20.0, "measured": 18.0}}}
    raw["metadata"]["annotations"][f"{build.PREFIX}state"] = json.dumps({**state, **more})
    assert timeline(see(job(raw)))[3].cause == "asked"
    measured = timeline(see(job(raw)))[3]
    assert (measured.expected_steps_per_s, measured.measured_steps_per_s) == (20.0, 18.0)
    grown = found[3]
    assert (grown.before, grown.after, grown.mode, grown.downtime_s) == (SIZE, GROWN, "overlap", 0.2)
    assert found[-1].at is None
    assert [(each.at, each.replicas) for each in sizes(see(job(raw)))] == [
        ("2026-01-02T03:01:00Z", SIZE),
        ("2026-01-02T03:10:00Z", GROWN),
    ]


def test_a_rescale_that_is_under_way_and_one_that_was_refused_are_told() -> None:
    refused = {"generation": 1, "reason": "not ready in 300 s", "at": "2026-01-02T03:05:00Z"}
    state = {"phase": "Switching", "since": "2026-01-02T03:06:00Z", "replicas": GROWN, "next": NEXT, "refused": refused}
    found = timeline(see(job(tfjob(state=state))))
    assert [(each.kind, each.at, each.reason) for each in found[1:]] == [
        ("refused", "2026-01-02T03:05:00Z", "not ready in 300 s"),
        ("rescaling", "2026-01-02T03:06:00Z", "gives room"),
    ]
    assert [each.cause for each in found[1:]] == [None, "shrink"]


def test_a_stop_is_told_with_its_step() -> None:
    stop = {"request": 2, "asked": "2026-01-02T03:11:00Z", "ended": "2026-01-02T03:11:30Z", "saved": 400, "lost": 0}
    state = {"phase": "Waiting", "since": "2026-01-02T03:11:31Z", "stop": {**stop, "reason": "others go first"}}
    found = timeline(see(job(tfjob(state=state, target=STOPS))))
    assert [(each.kind, each.text) for each in found[-2:]] == [
        ("stopping", "A checkpoint is requested, then the pods end"),
        ("stopped", "The pods ended at step 400"),
    ]
    assert [each.cause for each in found[-2:]] == ["preempt", "preempt"]


def test_a_decision_has_a_cause_where_something_changes() -> None:
    waits = {"generation": 0, "replicas": {}, "reason": "no room"}
    assert [each.cause for each in timeline(see(job(tfjob(target=waits))))] == [None, None]
    starts = {"generation": 0, "replicas": SIZE}
    assert timeline(see(job(tfjob(target=starts))))[-1].cause == "start"
    asked = {"generation": 2, "replicas": SIZE, "cause": "asked"}
    assert timeline(see(job(tfjob(state={"phase": "Stable", "replicas": GROWN}, target=asked))))[-1].cause == "asked"


def test_a_forecast_is_what_was_stored_and_judged() -> None:
    raw = running(annotations={"max-workers": "4", "checkpoint-dir": "/c", "deadline": "30m"})
    seen = see(job(raw))
    found = forecast_row(seen, job_row(seen))
    assert (found.expected, found.meets, found.source) == ("2026-01-02T03:20:00Z", True, "measured")
    assert (found.earliest, found.latest, found.at_risk) == ("2026-01-02T03:19:00Z", "2026-01-02T03:31:00Z", True)
    assert found.slack_s == 600.0
    told: list[tuple[Verdict, float | None, bool | None]]
    told = [("at-risk", 590.0, False), ("on-time", -1.0, True), ("unknown", None, None)]
    for verdict, slack_s, meets in told:
        judged = DeadlineStatus("2026-01-02T03:30:00Z", verdict, build.CREATED, build.CREATED, slack_s=slack_s)
        told_of = NoticesSent(judged).to_annotations("ns-j")
        raw["metadata"]["annotations"].update({k: v for k, v in told_of.items() if v is not None})
        seen = see(job(raw))
        found, row = forecast_row(seen, job_row(seen)), job_row(seen)
        assert (found.slack_s, found.meets, found.at_risk) == (row.slack_s, meets, bool(meets))
        assert row.slack_s == slack_s
    waits = see(job(waiting()))
    assert forecast_row(waits, job_row(waits)).expected is None


def test_nodes_show_what_is_held_lent_and_used() -> None:
    pods = [build.pod("a", "n1"), build.pod("b", "n1", cpu="1", index=1), build.pod("c", "gone")]
    nodes = [build.node("n2", unschedulable=True), build.node("n1")]
    requested = {"worker": 1000}
    found = node_rows(
        nodes, pods, [build.foreign("f", "n1")], lambda _, kind: requested.get(kind), None, given_up={"n1"}
    )
    first, second = found
    assert (first.given_up, second.given_up) == (True, False)
    assert (first.name, first.cpu, first.held, first.lent, first.others, first.free) == (
        "n1",
        4000,
        2500,
        500,
        250,
        1250,
    )
    assert (first.used, first.replicas, first.jobs) == (None, 2, 1)
    assert (second.cordoned, second.ready, second.held) == (True, True, 0)


def test_pages_follow_each_other_and_what_is_not_known_comes_last() -> None:
    rows = [job_row(job(running(f"r{i}", version=i))) for i in range(3)] + [job_row(job(waiting()))]
    listing = Listing.parse([("sort", "-step"), ("limit", "2")], ("sort", "limit", "offset"))
    assert [row.name for row in page(rows, listing)[0]] == ["r2", "r1"]
    rest = Listing.parse([("sort", "-step"), ("offset", "2")], ("sort", "limit", "offset"))
    assert [row.name for row in page(rows, rest)[0]] == ["r0", "w"]
    assert page(rows, rest)[1] == 4
    few = Listing.parse([("state", "Waiting,Failed"), ("name", "w")], ("state", "name"))
    assert [row.name for row in page(rows, few)[0]] == ["w"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([("limit", "0")], "limit: invalid value '0'; allowed: a whole number from 1 to 200"),
        ([("limit", "x")], "limit: invalid value 'x'"),
        ([("limit", "²")], "limit: it has invalid characters"),
        ([("offset", "1" * 253)], "allowed: a whole number from 0 to 1000000"),
        ([("state", "Lost")], "state: unknown state 'Lost'; allowed: a comma-separated list of Pending, "),
        ([("sort", "--name")], "sort: unknown field '--name'"),
        ([("name", "x" * (MAX_FILTER + 1))], "name: 254 characters; allowed: up to 253"),
        ([("name", "a\nb")], "name: it has invalid characters"),
        ([("limit", "1"), ("limit", "1")], "limit: given more than once"),
        ([("limits", "1")], "'limits': unknown query parameter; allowed: namespace, state, reason, name, sort, limit"),
    ],
)
def test_a_wrong_parameter_is_refused_in_words(asked: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(BadQuery) as error:
        Listing.parse(asked, ("namespace", "state", "reason", "name", "sort", "limit", "offset"))
    assert said in str(error.value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = ["target", "state", "deadline", "max-workers", "checkpoint-dir", "total-steps", "step", "eta", "nonsense"]


@given(
    st.dictionaries(st.sampled_from(_KEYS), _JSON | st.text() | st.sampled_from([*TEXTS, MARKUP]), max_size=5),
    st.dictionaries(st.sampled_from(["conditions", "startTime", "completionTime", "replicaStatuses"]), _JSON),
    st.dictionaries(st.sampled_from(["tfReplicaSpecs", "runPolicy"]), _JSON),
)
def test_any_object_that_an_informer_keeps_has_a_row(
    said: dict[str, Any], status: dict[str, Any], spec: dict[str, Any]
) -> None:
    raw = running()
    for key, value in said.items():
        text = value if isinstance(value, str) else json.dumps(value)
        raw["metadata"]["annotations"][build.PREFIX + key] = text.encode("utf-8", "replace").decode()
    raw["status"], raw["spec"] = status, {**raw["spec"], **spec}
    try:
        found = TFJob.parse(json.loads(json.dumps(raw)))
    except ValueError:
        return  # no informer would keep it
    seen = see(found)
    row = job_row(seen)
    rest = (timeline(seen), sizes(seen), forecast_row(seen, row))
    assert len(orjson.dumps((row, rest))) < 100_000


def test_a_reason_keeps_its_code_and_facts_and_jobs_are_filtered_by_the_code() -> None:
    """A sentence has neither."""
    short = waiting("short", why={"code": "short", "facts": {"cpu": 2500, "cpu_free": 400}})
    behind = waiting("behind", why={"code": "waits-behind", "facts": {"job": "ns/short"}})
    rows = [job_row(job(raw)) for raw in (short, behind, waiting("own"), running())]
    assert [(row.reason, row.reason_code) for row in rows] == [
        ("needs 2.5 CPU, 0.4 free", "short"),
        ("waits behind job ns/short, which does not fit yet", "waits-behind"),
        ("no room", None),
        ("idle CPU", None),
    ]
    assert [row.reason_facts for row in rows] == [{"cpu": 2500, "cpu_free": 400}, {"job": "ns/short"}, {}, {}]
    decided = [each for each in timeline(see(job(short))) if each.kind == "decided"]
    assert [(each.reason_code, each.reason_facts) for each in decided] == [("short", rows[0].reason_facts)]
    for asked, names in (("short", ["short"]), ("short,waits-behind", ["behind", "short"]), ("lost", [])):
        found, _ = page(rows, Listing.parse([("reason", asked)], ("reason",)))
        assert [row.name for row in found] == names
