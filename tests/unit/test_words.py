"""Whatever anybody writes, reading it ends, and in one of two: a value within its bounds, or a ValueError."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, get_args

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastic_tfjob.api.annotations import ANNOTATIONS, PREFIX, Elasticity
from elastic_tfjob.api.reading import (
    EARLIEST,
    LATEST,
    MAX_GENERATION,
    MAX_MILLICORES,
    MAX_PROBLEM_LENGTH,
    MAX_PROBLEMS,
    MAX_REPLICAS,
    MAX_STEPS,
    MAX_TEXT,
    after,
    cut,
    describe,
    moment,
)
from elastic_tfjob.api.tfjob import InvalidTFJob, TFJobSpec
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.settings import parse_configuration
from elastic_tfjob.controller.model.state import Next, Phase, Refused, Rescaled, StoredState
from elastic_tfjob.controller.model.status import JobStatus, parse_time
from elastic_tfjob.controller.model.target import Mode, Target
from elastic_tfjob.speed.history import Conditions
from harness import hostile_text
from harness.effort import effort

from .build import job

SPEC = job({"PS": 1, "Worker": 2}).spec()

# Names, sizes and values that somebody might try.
KEYS = st.sampled_from(
    [
        "generation", "replicas", "nodes", "cpu", "reason", "declared", "uid", "phase", "slot", "since", "next", "mode",
        "before", "after", "refused", "at", "history", "downtime_s", "lost_steps", "step", "total_steps", "steps_per_s",
        "eta", "speeds", "speed_conditions", "metrics_at", "rescales", "last_downtime_s", "Worker", "PS", "1/2",
        "modes",
        "launcher", "prepared", "switch", "state", "why", "checkpoint", "path", "bytes", "memory", "hook", "loss",
        "profile", "profiles", "kips", "rescale", "status", "interval_s", "max_requests_per_s", "tfReplicaSpecs",
        "runPolicy", "template", "spec", "containers", "name", "conditions", "replicaStatuses", "startTime", "",
    ]
)  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(hostile_text.NUMBERS)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [
            *get_args(Phase),
            *get_args(Mode),
            *hostile_text.TIMES,
            *hostile_text.TEXTS,
            "node-1",
            hostile_text.LONE_SURROGATE,
        ]
    )
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=5), inner, max_size=6),
    max_leaves=25,
)


@contextlib.contextmanager
def at_once(seconds: float = 2.0) -> Iterator[None]:
    """On a machine that does other things, too."""
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds


def texts() -> st.SearchStrategy[str]:
    return (
        JSON.map(json.dumps)
        | st.text(max_size=200)
        | st.builds("".join, st.lists(st.sampled_from('[]{}",:0e9')))
        | st.sampled_from(hostile_text.NO_JSON_OBJECT)
    )


def within(counts: Mapping[str, int]) -> bool:
    return sum(counts.values()) <= MAX_REPLICAS and all(count >= 0 for count in counts.values())


def check_target(found: Target) -> None:
    assert 0 <= found.generation <= MAX_GENERATION
    assert within(found.replicas)
    assert within(found.declared)
    assert all(len(names) <= found.replicas[kind] for kind, names in found.nodes.items() if names)
    assert all(1 <= each <= MAX_MILLICORES for values in found.cpu.values() for each in values)
    assert len(str(found.reason)) <= MAX_TEXT


def check_state(found: StoredState) -> None:
    check_target(Target(found.generation, found.replicas, found.nodes, found.cpu, found.reason))
    assert found.slot in (0, 1)
    assert found.next is not None or not found.rescaling
    for text in (found.since, found.eta, found.metrics_at, found.refused and found.refused.at):
        assert not text or EARLIEST <= parse_time(text) <= LATEST
    assert found.total_steps is None or 0 <= found.total_steps <= MAX_STEPS


@settings(max_examples=effort(38, 150), deadline=None)
@given(texts())
@example('{"generation":0,"replicas":{},"reason":5}')
@example('{"generation":0,"replicas":{},"reason":"\\ud800"}')
@example("[" * 200_000)
@example(hostile_text.DEEP_OBJECT)
@example("9" * 200_000)
def test_any_target_and_any_state(text: str) -> None:
    with at_once(), contextlib.suppress(ValueError):
        target = Target.parse(text)
        assert target is not None
        check_target(target)
        assert Target.parse(target.to_json()) == target
    with at_once(), contextlib.suppress(ValueError):
        state = StoredState.parse(text)
        assert state is not None
        check_state(state)
        assert StoredState.parse(state.to_json()) == state


COUNTS = st.dictionaries(st.sampled_from(["Chief", "PS", "Worker"]), st.integers(0, 600), min_size=1)
ANNOTATION_TEXTS = [*hostile_text.TEXTS, *hostile_text.WHOLE_NUMBERS, *hostile_text.DURATIONS, *hostile_text.TIMES]
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(9998, 1, 1)).map(lambda each: f"{each.isoformat()}Z")
TEXTS = st.text(st.characters(codec="utf-8"), max_size=50)
GENERATIONS = st.integers(0, MAX_GENERATION)
CPU = st.dictionaries(st.just("Worker"), st.lists(st.integers(1, MAX_MILLICORES), max_size=3).map(tuple))
STEPS = st.none() | st.integers(0, MAX_STEPS)
NODES = st.sampled_from([dict[str, tuple[str, ...]](), {"Worker": ("node-1", "n.example.com")}])
SIZES = COUNTS.map(lambda counts: {**counts, "Worker": counts.get("Worker", 0) + 2})
RATES = st.floats(0, 1e9)
STATES = st.builds(
    StoredState,
    phase=st.sampled_from(get_args(Phase)),
    generation=GENERATIONS,
    slot=st.integers(0, 1),
    replicas=SIZES,
    nodes=NODES,
    cpu=CPU,
    since=TIMES | st.just(""),
    reason=TEXTS,
    next=st.builds(
        Next, GENERATIONS, st.integers(0, 1), st.sampled_from(get_args(Mode)), SIZES, COUNTS, NODES, CPU, TEXTS
    ),
    refused=st.none() | st.builds(Refused, GENERATIONS, TEXTS, TIMES),
    rescales=st.integers(0, 1000),
    last_downtime_s=st.none() | st.floats(-100, 10**6),
    history=st.lists(
        st.builds(
            Rescaled,
            GENERATIONS,
            TIMES,
            COUNTS,
            COUNTS,
            st.sampled_from(get_args(Mode)),
            st.none() | st.floats(0, 10**6),
            STEPS,
            TEXTS,
        ),
        max_size=10,
    ).map(tuple),
    step=STEPS,
    total_steps=STEPS,
    steps_per_s=st.none() | RATES,
    eta=st.none() | TIMES,
    speeds=st.dictionaries(st.just("1/2"), RATES),
    speed_conditions=st.dictionaries(
        st.just("1/2"),
        st.builds(Conditions, *[st.integers(0, MAX_MILLICORES).map(float)] * 2, st.sampled_from([0.0, 0.12, 2.0])),
    ),
    metrics_at=st.none() | TIMES,
)


@settings(deadline=None)
@given(st.builds(Target, GENERATIONS, SIZES, NODES, CPU, TEXTS, COUNTS), STATES)
def test_any_target_and_state_are_read_back(target: Target, state: StoredState) -> None:
    assert Target.parse(target.to_json()) == target
    assert StoredState.parse(state.to_json()) == state


@settings(deadline=None)
@given(STATES, KEYS, SCALARS)
def test_a_state_with_one_wrong_value_is_an_error_or_within_its_bounds(
    state: StoredState, key: str, value: object
) -> None:
    """Everything else being right, so that it is this one that is looked at."""
    raw: dict[str, Any] = {**asdict(state), key: value}
    with contextlib.suppress(ValueError):
        found = StoredState.parse(json.dumps(raw))
        assert found is not None
        check_state(found)


@settings(max_examples=effort(38, 150), deadline=None)
@given(texts() | st.binary(max_size=50))
def test_any_report(text: str | bytes) -> None:
    with at_once(), contextlib.suppress(ValueError):
        found = Report.parse(text)
        orjson.dumps(asdict(found))
        seconds = (found.total_steps or 0) / (found.steps_per_s or 1e-320)
        assert after(moment("2026-01-02T03:04:05Z"), seconds) <= LATEST
        assert all(
            0 <= at <= LATEST.timestamp() for at in (found.at, found.first_step_at or 0, found.last_step_at or 0)
        )


@settings(max_examples=effort(38, 150), deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(ANNOTATIONS)) | st.text(max_size=5),
        st.text(max_size=12)
        | st.sampled_from(ANNOTATION_TEXTS)
        | st.integers().map(str)
        | st.from_regex(r"\A([0-9]{1,15}[dhms]){1,4}\Z")
        | st.datetimes().map(lambda each: f"{each.isoformat()}Z"),
    )
)
def test_any_annotations(said: dict[str, str]) -> None:
    with at_once():
        found = Elasticity.parse({f"{PREFIX}{name}": text for name, text in said.items()}, SPEC)
    assert len(found.problems) <= MAX_PROBLEMS + 1
    assert all(len(problem) <= MAX_PROBLEM_LENGTH for problem in found.problems)
    most = sum(found.bounds(name, replica.count)[1] for name, replica in SPEC.tf_replica_specs.items())
    assert most <= MAX_REPLICAS
    for asked in (found.asked("Worker"), found.asked("PS")):
        assert asked is None or 0 <= asked <= MAX_REPLICAS
    if isinstance(found.deadline, datetime):
        assert EARLIEST <= found.deadline <= LATEST


@settings(max_examples=effort(38, 150), deadline=None)
@given(texts())
def test_any_configuration(text: str) -> None:
    """JSON is YAML."""
    with at_once(), contextlib.suppress(ValueError):
        found = parse_configuration(text)
        assert found.status.max_requests_per_s >= 1
        assert found.parameters is not None


@settings(max_examples=effort(25, 100), deadline=None)
@given(st.dictionaries(KEYS, JSON, max_size=6))
def test_any_spec_and_any_status(raw: dict[str, Any]) -> None:
    with at_once(), contextlib.suppress(InvalidTFJob):
        assert TFJobSpec.parse(raw).total_replicas <= MAX_REPLICAS
    with at_once():
        JobStatus.parse(raw).to_dict()


@given(JSON)
def test_a_value_in_a_message_is_short(value: object) -> None:
    assert len(describe(value).encode()) <= 400


@pytest.mark.parametrize("make", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_a_deep_value_in_a_message(make: Callable[[Any], Any]) -> None:
    deep: Any = None
    for _ in range(100_000):
        deep = make(deep)
    assert describe(deep) in ("a list of 1", "an object of 1 keys")


def test_a_text_is_cut_to_what_can_be_written() -> None:
    assert cut(f"a{hostile_text.LONE_SURROGATE}b" * 1000, 3) == "a?b"
    assert orjson.dumps(replace(Target(0, {}), reason=cut(hostile_text.LONE_SURROGATE)).reason) == b'"?"'
