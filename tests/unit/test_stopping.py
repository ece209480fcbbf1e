"""A plan takes all from a running job: a checkpoint first, and what is said at each stage."""

import json
from dataclasses import replace
from typing import Any

import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.job.decision import Count, ReconcileSettings, Timeouts
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION, TARGET_ANNOTATION
from elastic_tfjob.controller.model.state import Stop, StoredState
from elastic_tfjob.controller.model.target import Target
from unit.pretend import Cluster

ONE_SIZE = {f"{PREFIX}checkpoint-dir": "/data", f"{PREFIX}total-steps": "1000"}
"""A job that has somewhere to go on from, and one size."""
ELASTIC = {**ONE_SIZE, f"{PREFIX}min-workers": "1", f"{PREFIX}max-workers": "4"}
TOLD = ("Stopping", "CheckpointMissed", "Stopped", "Resumed")


class Stopped(Cluster):
    """A job that trains until a plan takes all from it; `counted`: what the operator has counted."""

    def __init__(self, annotations: dict[str, str] = ELASTIC, *, limit_s: float = 120.0, **options: Any) -> None:
        waits = ReconcileSettings(image="operator:1", wait_for_target=True, timeouts=Timeouts(stop_s=limit_s))
        self.counted: list[Count] = []
        super().__init__(annotations=dict(annotations), settings=waits, **options)
        self.target(0)
        self.run(8)
        assert self.counted == [Count("starts", label="start")]
        self.events.clear()
        self.counted.clear()

    def carry_out(self, decision: Any, *, killed_after: int | None = None) -> None:
        self.counted += [count for count in decision.counts if count.what not in ("created", "successful")]
        super().carry_out(decision, killed_after=killed_after)

    def preempt(self, generation: int = 1, cause: Any = "preempt") -> None:
        target = Target(generation, {}, reason="others go before it", cause=cause)
        self.annotations[TARGET_ANNOTATION] = target.to_json()

    @property
    def stages(self) -> list[tuple[str, str]]:
        """The events about the stop, each once."""
        return list(dict.fromkeys(event for event in self.events if event[0] in TOLD))

    @property
    def reason(self) -> str:
        """Of the condition that is true now."""
        return str([each for each in self.status["conditions"] if each["status"] == "True"][-1]["reason"])


@pytest.mark.parametrize("annotations", [ONE_SIZE, ELASTIC])
def test_a_checkpoint_is_confirmed_before_any_pod_ends(annotations: dict[str, str]) -> None:
    """A job with one size, too."""
    job = Stopped(annotations)
    job.preempt()
    job.launchers["j-chief-0"].saves = "never"
    job.run(20)
    assert len(job.pods) == 4
    assert not any(pod.terminating or pod.stopped_by_us for pod in job.pods.values())
    assert [reason for reason, _ in job.stages] == ["Stopping"]
    assert [told for told in job.told if told[1] == "save"] == [("j-chief-0", "save")]
    assert job.reason == "TFJobStopping"
    job.launchers["j-chief-0"].saves = "well"
    job.run(10)
    assert (job.state.phase, job.pods) == ("Waiting", {})
    assert job.reason == "TFJobStopped"
    assert [reason for reason, _ in job.stages] == ["Stopping", "Stopped"]
    assert job.stages[-1][1] == "Stopped at step 100, no step is lost: others go before it"


@pytest.mark.parametrize("annotations", [ONE_SIZE, ELASTIC])
def test_a_stopped_job_resumes_at_its_step(annotations: dict[str, str]) -> None:
    job = Stopped(annotations)
    job.preempt()
    job.run(15)
    assert job.state.phase == "Waiting"
    job.target(2)
    job.run(15)
    assert set(job.running.values()) == {2}
    assert job.stages[-1] == ("Resumed", "Resumed at step 100 with 1 chief + 1 PS + 2 workers, no step lost")
    assert job.state.stop is None
    assert job.reason == "TFJobRunning"


def test_steps_lost_by_a_stop_are_reported() -> None:
    job = Stopped()
    job.preempt()
    job.run(15)
    job.resumes_at = 60
    job.target(2)
    job.run(15)
    assert job.stages[-1][1] == "Resumed at step 60 with 1 chief + 1 PS + 2 workers, 40 steps are lost"


class TestTheLimit:
    """A checkpoint that does not come."""

    @pytest.mark.parametrize(("saves", "why"), [("never", ""), ("fails", ": No space left on device")])
    def test_a_stop_ends_at_its_time_limit(self, saves: str, why: str) -> None:
        job = Stopped(limit_s=60.0)
        job.launchers["j-chief-0"].saves = saves
        job.checkpoint = 70
        job.preempt()
        job.run(58)
        assert len(job.pods) == 4
        job.run(15)
        assert (job.state.phase, job.pods) == ("Waiting", {})
        assert job.stages[1] == (
            "CheckpointMissed",
            f"Stopping without a new checkpoint (no checkpoint within 60 s{why}). It will resume from its checkpoint "
            "of step 70: at most 30 steps are lost",
        )
        assert job.stages[2][1] == "Stopped, at most 30 steps are lost: others go before it"
        lost = [count.amount for count in job.counted if count.what == "stop_lost_steps"]
        waited = [count.amount for count in job.counted if count.what == "stop_wait_seconds"]
        assert (lost, waited) == ([30.0], [60.0])

    def test_a_stop_without_a_report_names_no_lost_steps(self) -> None:
        job = Stopped(limit_s=60.0)
        job.launchers["j-chief-0"].saves = "never"
        job.preempt()
        job.run(75)
        assert job.stages[1][1].endswith("its newest checkpoint: the number of lost steps is unknown")
        assert "it will resume from its newest checkpoint" in job.stages[2][1]

    def test_an_operator_that_was_away_listens_first(self) -> None:
        """The checkpoint was made meanwhile; the limit is over, and nobody has said so to this operator yet."""
        job = Stopped(limit_s=60.0)
        job.preempt()
        job.launchers["j-chief-0"].saves = "never"
        job.run(5)
        job.launchers["j-chief-0"].saves = "well"
        job.back_after(100.0)
        job.run(10)
        assert [reason for reason, _ in job.stages] == ["Stopping", "Stopped"]

    def test_the_chief_goes_meanwhile(self) -> None:
        job = Stopped()
        job.checkpoint = 100
        job.launchers["j-chief-0"].saves = "never"
        job.preempt()
        job.run(5)
        job.kill("j-chief-0")
        job.run(10)
        assert job.state.phase == "Waiting"
        assert "the chief's pod is gone" in job.stages[1][1]


class TestNobodyToAsk:
    """Pods end at once, as they did before checkpoints were asked for."""

    def ended(self, job: Stopped) -> str:
        job.preempt()
        job.run(8)
        assert (job.state.phase, job.pods) == ("Waiting", {})
        assert [count.what for count in job.counted] == ["stops"]
        return job.stages[0][1]

    def test_an_older_launcher(self) -> None:
        job = Stopped()
        job.old_launchers = True
        assert "its launcher has an older version" in self.ended(job)

    def test_a_program_without_the_hook_is_not_asked_to_save(self) -> None:
        job = Stopped()
        job.hook = False
        assert "does not use ElasticCheckpoint" in self.ended(job)

    def test_a_job_without_a_launcher_is_not_asked_to_save(self) -> None:
        job = Stopped({**ELASTIC, f"{PREFIX}inject": "sidecar"})
        assert "its pods have no launcher" in self.ended(job)

    def test_a_program_without_a_step_since_its_start_is_not_asked_to_save(self) -> None:
        job = Stopped()
        job.steps = False
        job.preempt()
        job.run(8)
        assert (job.state.phase, job.pods) == ("Waiting", {})
        assert "no step since it started" in job.stages[1][1]
        (waited, stops) = job.counted
        assert (waited.what, stops.what) == ("stop_wait_seconds", "stops")
        assert waited.amount <= 2

    def test_a_program_with_an_old_report_is_asked_again(self) -> None:
        """It may have made hundreds since: nothing ends before it was asked again."""
        job = Stopped()
        job.steps, job.report_age_s = False, 4.0
        job.preempt()
        job.run(3)
        assert len(job.pods) == 4
        job.steps, job.report_age_s = True, 0.0
        job.run(8)
        assert job.stages[-1][1] == "Stopped at step 100, no step is lost: others go before it"


def test_an_old_checkpoint_confirms_nothing() -> None:
    """A program that says it has saved an earlier step than it has told of."""
    job = Stopped()
    job.launchers["j-chief-0"].step = 90
    job.preempt()
    job.run(20)
    assert len(job.pods) == 4


def test_an_answer_to_an_earlier_request_confirms_nothing() -> None:
    job = Stopped()
    job.preempt()
    job.run(2)
    report = job.reports()["j-chief-0"]
    assert report.saved is not None
    job.preempt(generation=3)
    stop = job.state.stop
    assert stop is not None
    assert stop.request == 1


@pytest.mark.parametrize(("cause", "counted"), [("reclaim", "reclaim"), ("deadline", "deadline"), ("mine", "preempt")])
def test_stops_are_counted_by_cause(cause: str, counted: str) -> None:
    """Somebody may have written any cause."""
    job = Stopped()
    job.preempt(cause=cause)
    job.run(15)
    assert [count.label for count in job.counted if count.what == "stops"] == [counted]
    job.target(2)
    job.run(15)
    assert [count.what for count in job.counted].count("resumes") == 1
    assert [count.label for count in job.counted if count.what == "starts"] == ["resume"]


@pytest.mark.parametrize(
    ("size", "written", "counted"),
    [
        ({"Worker": 3}, "", "grow"),
        ({"Worker": 1}, "", "shrink"),
        ({"Worker": 1}, "deadline", "deadline"),
        ({"Worker": 3}, "asked", "asked"),
        ({"Worker": 3}, "mine", "grow"),
        ({"Worker": 3}, 7, None),
    ],
)
def test_rescales_are_counted_by_cause(size: dict[str, int], written: Any, counted: str | None) -> None:
    """What a target says, where that is a cause; else what the sizes tell. A target with no word there is none."""
    job = Stopped()
    job.target(1, **size)
    target = json.loads(job.annotations[TARGET_ANNOTATION])
    job.annotations[TARGET_ANNOTATION] = json.dumps({**target, "cause": written} if written else target)
    job.run(30)
    assert job.counted == ([Count("rescales", label=counted)] if counted else [])


def test_a_rescale_that_is_taken_back_is_counted_by_cause() -> None:
    job = Stopped()
    job.launchers["j-chief-0"].saves = "fails"
    job.target(1, Worker=3)
    job.run(30)
    assert job.counted == [Count("roll_backs", label="grow")]


def test_a_cause_is_kept_with_the_size_that_it_led_to_whatever_the_target_says_by_then() -> None:
    """A target is written anew at any time; so the state keeps why the job went where it goes."""
    job = Stopped()
    for generation, workers, cause in ((1, 3, "asked"), (2, 4, "")):
        job.target(generation, Worker=workers)
        target = json.loads(job.annotations[TARGET_ANNOTATION])
        job.annotations[TARGET_ANNOTATION] = json.dumps({**target, "cause": cause})
        job.until("Checkpointing")
        assert job.state.next is not None
        assert job.state.cause(job.state.next) == (cause or "grow")
        job.annotations[TARGET_ANNOTATION] = json.dumps({**target, "cause": "repair"})
        job.run(30)
    state = job.state
    assert [state.cause(done) for done in state.history] == ["asked", "grow"]
    assert [count.label for count in job.counted] == ["asked", "grow"]
    written = json.loads(job.annotations[STATE_ANNOTATION])
    assert written["causes"] == {"1": "asked"}
    job.annotations[STATE_ANNOTATION] = json.dumps({**written, "causes": "nonsense"})
    assert [job.state.cause(done) for done in job.state.history] == ["grow", "grow"]
    job.run(2)
    assert "causes" not in json.loads(job.annotations[STATE_ANNOTATION])


@pytest.mark.parametrize("killed_after", range(7))
def test_an_operator_that_dies_anywhere(killed_after: int) -> None:
    """Each pass is cut off after so many writes, and another operator goes on."""
    job = Stopped()
    job.preempt()
    for _ in range(40):
        job.reconcile(killed_after=killed_after)
        job.tick()
        job.reconcile(killed_after=killed_after)
        job.reconcile()
        job.tick()
    assert (job.state.phase, job.pods) == ("Waiting", {})
    assert "CheckpointMissed" not in [reason for reason, _ in job.stages]


def test_a_stop_in_the_state_is_read_within_its_bounds() -> None:
    job = Stopped()
    job.preempt()
    job.launchers["j-chief-0"].saves = "never"
    job.run(5)
    state = job.state
    assert state.stop is not None
    assert StoredState.parse(state.to_json()) == state
    asked = "2026-01-01T00:00:00Z"
    cases: list[tuple[dict[str, Any], Stop | None]] = [
        ({"request": -1}, None),
        ({"request": True}, None),
        ({"asked": "yesterday"}, Stop(1, "", reached=5)),
        ({"reached": "many"}, Stop(1, asked)),
    ]
    for wrong, read in cases:
        stop = {"request": 1, "asked": asked, "reached": 5, **wrong}
        found = StoredState.parse(json.dumps({**json.loads(state.to_json()), "stop": stop}))
        assert found == replace(state, stop=read), "the rest of the state stays"
