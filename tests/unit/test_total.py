"""Whatever a job, its annotations, pods and reports say, there is a decision: nothing of it raises."""

from dataclasses import replace
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.reading import MAX_REPLICAS
from elastic_tfjob.controller.job.decision import CHANGES, Create, Observed, ReconcileSettings
from elastic_tfjob.controller.job.reconcile import reconcile
from elastic_tfjob.controller.model.command import STOP_COMMAND
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.quantities import CpuAsked
from elastic_tfjob.controller.model.reports import Report
from harness import hostile_text
from harness.effort import effort
from unit.build import NOW, UID, condition, job, pod, pod_group, services
from unit.pretend import COMMAND

TYPES = st.sampled_from(["Chief", "Master", "PS", "Worker", "Evaluator", "worker", "Odd"])
COUNTS = st.dictionaries(TYPES, st.integers(0, 4) | st.sampled_from([MAX_REPLICAS, 10**6, -1]), max_size=4)
TIMES = st.sampled_from([*hostile_text.TIMES, *hostile_text.NO_TIMES])
LARGE = st.sampled_from([*hostile_text.COUNTS, 60])
GENERATIONS = st.integers(0, 4)
CPU = st.dictionaries(TYPES, st.lists(st.sampled_from([1, 100, 300, 10**9]), max_size=4), max_size=2)
NODES = st.dictionaries(TYPES, st.lists(st.sampled_from(["a", "b"]), max_size=4), max_size=2)
PHASES = ["Waiting", "Stable", "Preparing", "Checkpointing", "Switching", "RollingBack", "Recreating"]
SIZE = {"generation": GENERATIONS, "replicas": COUNTS, "nodes": NODES, "cpu": CPU, "reason": st.text(max_size=5)}
INDEXES = st.dictionaries(TYPES, st.lists(st.integers(-1, 4), max_size=4), max_size=2)
NEXT = st.fixed_dictionaries(
    {**SIZE, "slot": st.integers(0, 1), "mode": st.sampled_from(["overlap", "spare", "recreate"]), "before": COUNTS},
    optional={"indexes": INDEXES},
)
STATES = st.fixed_dictionaries(
    {
        **SIZE,
        "phase": st.sampled_from(PHASES),
        "slot": st.integers(0, 1),
        "since": TIMES,
        "next": st.none() | NEXT,
    },
    optional={
        "refused": st.fixed_dictionaries({"generation": GENERATIONS, "reason": st.just(""), "at": TIMES}),
        "step": LARGE,
        "total_steps": LARGE,
        "metrics_at": TIMES,
        "starts": st.sampled_from(["fork", "exec: why", "", 5]),
        "indexes": INDEXES,
        "uid": st.sampled_from(["", UID, "another"]),
    },
)
TARGETS = st.fixed_dictionaries({**SIZE, "declared": COUNTS})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
USERS = st.fixed_dictionaries(
    {},
    optional={
        f"{PREFIX}min-workers": st.sampled_from(["0", "1", "x"]),
        f"{PREFIX}max-workers": st.sampled_from(["1", "4", "2000000000"]),
        f"{PREFIX}min-ps": st.sampled_from(["0", "1"]),
        f"{PREFIX}target-workers": st.sampled_from(["0", "3"]),
        f"{PREFIX}checkpoint-dir": st.just("/c"),
        f"{PREFIX}rescale": st.sampled_from(["overlap", "spare", "recreate", "never"]),
        f"{PREFIX}placement": st.sampled_from(["none", "auto"]),
        f"{PREFIX}total-steps": st.sampled_from(["1", "1000000000000"]),
        f"{PREFIX}inject": st.sampled_from(["none", "both", "launcher"]),
    },
)


def _text(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # an integer or a text that JSON has not
        return repr(value)


@st.composite
def jobs(draw: st.DrawFn) -> TFJob:
    """A job as the API server may hold it, whoever wrote what of it."""
    container: dict[str, Any] = {"name": "tensorflow", "image": "t"}
    container |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "command": st.just(COMMAND),
                "resources": st.sampled_from([{"requests": {"cpu": "100m"}}, {"limits": {"cpu": 1}}, {}]),
            },
        )
    )
    types = {
        name: {
            "replicas": count,
            "restartPolicy": draw(st.sampled_from(["Never", "OnFailure", "Always", "ExitCode"])),
            "template": draw(st.sampled_from([{"spec": {"containers": [container]}}, {}, {"spec": {}}])),
        }
        for name, count in draw(COUNTS).items()
    }
    if draw(st.booleans()):  # mostly what is no defect of the spec
        types = {name: {**each, "template": {"spec": {"containers": [container]}}} for name, each in types.items()}
    annotations = dict(draw(USERS))
    for name, made in (("state", STATES), ("target", TARGETS)):
        if draw(st.booleans()):
            annotations[f"{PREFIX}{name}"] = _text(draw(made if draw(st.integers(0, 3)) else JSON))
    found = job(
        types,
        annotations=annotations,
        status=draw(
            st.fixed_dictionaries(
                {
                    "conditions": st.lists(
                        st.builds(
                            condition, st.sampled_from(["Created", "Running", "Restarting", "Suspended", "Succeeded"])
                        ),
                        max_size=2,
                    )
                },
                optional={"startTime": TIMES, "completionTime": TIMES},
            )
        ),
        runPolicy=draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "suspend": st.booleans(),
                    "activeDeadlineSeconds": LARGE,
                    "ttlSecondsAfterFinished": LARGE,
                    "backoffLimit": LARGE,
                    "schedulingPolicy": st.just({"minAvailable": 3}),
                },
            )
        ),
        enableDynamicWorker=draw(st.booleans()),
    )
    return replace(found, deleting=draw(st.integers(0, 9)) == 0)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    """A pod with the job's labels, whoever it belongs to."""
    found = pod(
        draw(st.sampled_from(["Chief", "PS", "Worker", "Odd"])),
        draw(st.integers(0, 5)),
        draw(st.sampled_from(["", "Pending", "Running", "Succeeded", "Failed", "Unknown"])),
        exit_code=draw(st.sampled_from([None, 0, 1, 137])),
        terminating=draw(st.booleans()),
        owner=draw(st.sampled_from([UID, UID, UID, "earlier"])),
    )
    return replace(
        found,
        index=draw(st.sampled_from([found.index, None, 10**9])),
        command=draw(st.sampled_from(["", STOP_COMMAND, "nonsense"])),
        cpu=draw(st.sampled_from([CpuAsked(0, 0), CpuAsked(100, 100), CpuAsked(300, 0)])),
        pinned=draw(st.sampled_from(["", "a"])),
        running_since=draw(TIMES),
    )


REPORTS = st.builds(
    Report,
    at=st.floats(0, 1e12),
    generation=st.none() | GENERATIONS,
    modes=st.sampled_from([(), ("overlap", "spare"), ("spare",)]),
    step=st.none() | LARGE,
    total_steps=st.none() | LARGE,
    steps_per_s=st.none() | st.sampled_from([0.0, 1e-300, 1.0, 1e300]),
    first_step_at=st.none() | st.floats(0, 1e12),
    hook=st.none() | st.booleans(),
)
SETTINGS = st.builds(
    ReconcileSettings,
    gang_scheduler=st.sampled_from(["", "volcano", "scheduler-plugins"]),
    wait_for_target=st.booleans(),
    all_jobs=st.booleans(),
    shares_cpu=st.booleans(),
    image=st.sampled_from(["", "operator:1"]),
)


@settings(max_examples=effort(38, 150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs(), st.lists(pods(), max_size=6, unique_by=lambda each: each.name), st.data())
def test_there_is_a_decision_for_any_job(found: TFJob, there: list[Pod], data: st.DataObject) -> None:
    """And it creates no more than a job may have, each once; and what is to be created can be rendered."""
    refused = {(each.uid, change): NOW.replace(year=2027) for each in there for change in CHANGES}
    decision = reconcile(
        Observed(
            found,
            NOW,
            tuple(there),
            services({"PS": 1, "Worker": 2}),
            pod_group(minMember=1) if data.draw(st.booleans()) else None,
            reports={each.name: data.draw(REPORTS) for each in there},
            refused=refused if data.draw(st.booleans()) else {},
        ),
        data.draw(SETTINGS),
    )
    created = [action for action in decision.actions if isinstance(action, Create)]
    assert len([action for action in created if action.kind == "Pod"]) <= MAX_REPLICAS
    assert len({(action.kind, action.name) for action in created}) == len(created)
    assert not {action.name for action in created if action.kind == "Pod"} & {each.name for each in there}
    for action in [*created[:2], *created[-2:]]:
        assert action.body["metadata"]["name"] == action.name
