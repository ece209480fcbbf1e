"""The annotations users write: what is read, and what is said of what cannot be read."""

from datetime import UTC, datetime, timedelta

import pytest

from elastic_tfjob.api.annotations import Elasticity, duration
from elastic_tfjob.api.reading import MAX_PROBLEM_LENGTH, MAX_PROBLEMS
from elastic_tfjob.api.tfjob import TFJobSpec
from harness.hostile_text import NO_DURATIONS, named
from unit.build import decide, job


def read(annotations: dict[str, str], workers: int = 2, ps: int = 1) -> Elasticity:
    spec = job({"Worker": workers, "PS": ps}).spec()
    return Elasticity.parse({f"elastic.kubeflow.org/{name}": text for name, text in annotations.items()}, spec)


def test_every_annotation_is_read_in_its_type() -> None:
    """Each value in its type; annotations of others and of the operator are no concern."""
    found = read(
        {
            "min-workers": "1",
            "max-workers": "8",
            "target-workers": "4",
            "deadline": "90m",
            "total-steps": "1000",
            "checkpoint-dir": "gs://bucket/run",
            "rescale": "overlap",
            "placement": "none",
            "loanable": "false",
            "estimated-duration": "1d2h3m4s",
            "inject": "none",
            "state": "{}",
        }
    )
    assert found == Elasticity(
        min_workers=1,
        max_workers=8,
        target_workers=4,
        deadline=timedelta(minutes=90),
        total_steps=1000,
        checkpoint_dir="gs://bucket/run",
        rescale="overlap",
        placement="none",
        estimated_duration=timedelta(days=1, hours=2, minutes=3, seconds=4),
        inject="none",
    )
    assert found.problems == ()
    assert read({"deadline": "2026-01-31T18:00:00Z"}).deadline == datetime(2026, 1, 31, 18, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("max-workers", "many", "allowed: a whole number from 1 to 2000"),
        ("max-workers", "0", "allowed: a whole number from 1 to 2000"),
        ("max-workers", "1000000000", "allowed: a whole number from 1 to 2000"),
        ("min-workers", "1000000000", "allowed: a whole number from 0 to 2000"),
        ("target-workers", "1000000000", "allowed: a whole number from 0 to 2000"),
        ("target-ps", "9" * 4000, "allowed: a whole number from 0 to 2000"),
        ("min-ps", "-1", "allowed: a whole number from 0 to 2000"),
        ("min-ps", "²", "allowed: a whole number from 0 to 2000"),
        ("total-steps", "0", "allowed: a whole number from 1 to 9007199254740992"),
        ("total-steps", "1" + "0" * 400, "allowed: a whole number from 1 to 9007199254740992"),
        ("total-steps", "9" * 100_000, "it has 100000 characters; allowed: 4096"),
        ("estimated-duration", "36501d", "a duration (1d12h, 90m, 30s), up to 36500d"),
        ("estimated-duration", "9" * 4000 + "d", "a duration (1d12h, 90m, 30s), up to 36500d"),
        ("deadline", "1000000000d", "1d12h, 90m), up to 36500d"),
        ("deadline", "9999-12-31T23:59:59Z", "a time with its zone"),
        ("deadline", "0001-01-01T00:00:00+23:59", "a time with its zone"),
        ("checkpoint-dir", "/a" * 3000, "it has 6000 characters; allowed: 4096"),
        ("checkpoint-dir", "/a\0b", "allowed: a path or URL"),
        ("deadline", "tomorrow", "allowed: a time with its zone"),
        ("deadline", "2026-01-31T18:00:00", "allowed: a time with its zone"),
        ("rescale", "Overlap", "allowed: live or overlap or spare or recreate or never"),
        ("loanable", "yes", "allowed: true or false"),
        ("placement", "pack", "allowed: auto or none"),
        ("loanable", "true", "so it needs the annotation elastic.kubeflow.org/checkpoint-dir"),
        ("checkpoint-dir", " ", "allowed: a path or URL"),
        ("checkpoint-dir", "/runs/a[1]", "without * ? [ and"),
        ("estimated-duration", "", "allowed: a duration"),
        ("max-worker", "3", "is not known; allowed: checkpoint-dir,"),
    ],
)
def test_wrong_values(name: str, value: str, says: str) -> None:
    """Named with the value and what is allowed, and otherwise as if not there."""
    found = read({name: value})
    assert found == Elasticity()
    (problem,) = found.problems
    assert f"elastic.kubeflow.org/{name}" in problem
    assert says in problem


@pytest.mark.parametrize(
    ("annotations", "kept", "says"),
    [
        ({"min-workers": "5", "max-workers": "3"}, Elasticity(), "min-workers 5 is above max-workers 3"),
        ({"max-workers": "1"}, Elasticity(), "min-workers 2 is above max-workers 1 (default: 2)"),
        (
            {"min-workers": "1", "target-workers": "3"},
            Elasticity(min_workers=1),
            "target-workers: 3 is ignored; allowed: 1 to 2",
        ),
        ({"target-ps": "2"}, Elasticity(), "target-ps: 2 is ignored; allowed: 1 to 1"),
        (
            {"max-workers": "2000", "target-workers": "4", "min-ps": "0"},
            Elasticity(),
            "allow 2001 replicas in total, so all bounds are ignored; allowed: 2000",
        ),
    ],
)
def test_values_that_do_not_fit_together(annotations: dict[str, str], kept: Elasticity, says: str) -> None:
    """Bounds that are not given are the spec's replicas."""
    found = read(annotations)
    assert found == kept
    assert says in found.problems[0]


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        (
            {"min-workers": "1", "max-workers": "4"},
            "elastic.kubeflow.org/min-workers, elastic.kubeflow.org/max-workers have no effect: the job is never "
            "rescaled, "
            "because it would lose its training progress without elastic.kubeflow.org/checkpoint-dir",
        ),
        ({"max-ps": "4"}, "elastic.kubeflow.org/max-ps has no effect"),
        ({"max-workers": "4", "checkpoint-dir": "/c"}, None),
        ({"max-workers": "4", "rescale": "never"}, None),
        ({"deadline": "2h"}, None),
    ],
)
def test_bounds_that_do_nothing_are_told(annotations: dict[str, str], says: str | None) -> None:
    """They are kept, since a checkpoint-dir may be added; `rescale: never` says by itself that they wait."""
    found = read(annotations)
    assert found.max_workers == (4 if "max-workers" in annotations else None)
    assert [problem.startswith(says or "") for problem in found.problems] == ([True] if says else [])


def test_bounds_of_a_job_whose_size_is_left_to_others_are_told() -> None:
    given = {"elastic.kubeflow.org/max-workers": "4", "elastic.kubeflow.org/checkpoint-dir": "/c"}
    spec = job({"Worker": 2, "PS": 1}).spec().model_copy(update={"enable_dynamic_worker": True})
    (problem,) = Elasticity.parse(given, spec).problems
    assert problem.endswith("has no effect: the job is never rescaled, because enableDynamicWorker is true")


def test_the_largest_values() -> None:
    found = read({"max-workers": "1999", "total-steps": str(2**53), "deadline": "36500d"})
    assert found == Elasticity(max_workers=1999, total_steps=2**53, deadline=timedelta(days=36_500))


def test_many_wrong_annotations_are_told_in_few_words() -> None:
    """Each is an event, for which the API server has to find room."""
    found = read({f"{'x' * 100}-{i}": "y" * 10_000 for i in range(5_000)})
    assert len(found.problems) == MAX_PROBLEMS + 1
    assert max(map(len, found.problems)) <= MAX_PROBLEM_LENGTH
    assert found.problems[-1] == "and 4990 more problems"


@pytest.mark.parametrize("text", NO_DURATIONS, ids=named)
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    """Units are required, in order, and whole."""
    with pytest.raises(ValueError):
        duration(text)


def test_the_operator_warns() -> None:
    """A wrong annotation is a Warning event on a job that runs all the same."""
    decision = decide(job(annotations={"elastic.kubeflow.org/max-workers": "x"}))
    assert [(event.type, event.reason) for event in decision.events] == [("Warning", "InvalidAnnotation")]
    assert len(decision.actions) == 2


@pytest.mark.parametrize(
    ("length", "declared", "annotations", "bounds"),
    [
        (52, 2, {"max-workers": "100"}, (2, 100)),
        (53, 2, {"max-workers": "101"}, (2, 100)),
        (54, 2, {"max-workers": "100"}, (2, 10)),
        (54, 2, {"min-workers": "20", "max-workers": "30"}, (10, 10)),
        (54, 2, {"min-workers": "20"}, (10, 10)),
        (54, 12, {"max-workers": "30"}, (12, 12)),  # what the spec declares is left as it is
        (63, 1, {"max-workers": "4"}, (1, 1)),
    ],
)
def test_bounds_end_where_a_replicas_name_would_be_too_long(
    length: int, declared: int, annotations: dict[str, str], bounds: tuple[int, int]
) -> None:
    spec = TFJobSpec.model_validate({"tfReplicaSpecs": {"Worker": {"replicas": declared}}})
    given = {f"elastic.kubeflow.org/{name}": text for name, text in {**annotations, "checkpoint-dir": "/c"}.items()}
    found = Elasticity.parse(given, spec, "j" * length)
    assert found.bounds("Worker", declared) == bounds
    cut = [problem for problem in found.problems if "is reduced to" in problem]
    assert len(cut) == (bounds[1] < int(annotations.get("max-workers", 20)))
    assert all("would have 64 characters" in problem for problem in cut) or declared == 12 or length == 63
