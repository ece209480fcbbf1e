"""What hostile tenants send: TFJobs, annotations, pods and answers, generated from a seed. Pure.

An Input is data: a list of steps that can be applied again, to tell which of a batch did the harm. Three sources:
values from the CRD's own structural schema, biased to nasty ones; well-formed JSON of the operator's annotations and of
`/status` with something wrong in it; and a corpus of what has done harm before.
"""

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from conformance.manifest import labels, replica, tfjob
from elastic_tfjob.api.annotations import ANNOTATIONS, OPERATOR_ANNOTATIONS, PREFIX
from elastic_tfjob.controller.model.annotations import NOTICES_ANNOTATION, RECORD_ANNOTATION
from elastic_tfjob.controller.model.pod import EXPORTER
from harness.api import Object
from harness.hostile_text import COUNTS, DEEP_LIST, DURATIONS, NUMBERS, QUANTITIES, TEXTS, TIMES, WHOLE_NUMBERS, deep

from .statusservers import KINDS, Answer

CRD = Path(__file__).parents[2] / "manifests/base/crd.yaml"

STARTS_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a tenant does. `what` is create, merge, delete (`path` below its namespace), wait (`seconds`), run
    (a kubelet's part: `most` pods of job `path` at most run, and answer with `answer`), relabel (a pod of job `path`).
    """

    what: str
    path: str = ""
    body: Object = field(default_factory=dict)
    answer: Answer | None = None
    seconds: float = 0.0
    most: int = 5


@dataclass(frozen=True, slots=True)
class Input:
    """One hostile object with its life. `family` says what is hostile. `job` is its TFJob's name, if it has one.

    `must_tell`: the spec is good, so without pods the operator owes the user an event; `must_live`: nothing in it ends
    the job; `mendable`: it must start after its spec and annotations have been made good; `keeps`: with what the
    operator has noted of it, and whether or not it is suspended meanwhile.
    """

    family: str
    steps: tuple[Step, ...]
    job: str = ""
    must_tell: bool = False
    must_live: bool = False
    mendable: bool = False
    keeps: bool = False

    def text(self, most: int = 1500) -> str:
        """The steps as text, for a report."""
        shown = [
            {"what": step.what, "path": step.path, "body": step.body, "answer": step.answer and str(step.answer)}
            for step in self.steps
        ]
        found = json.dumps(shown, default=str)
        return found if len(found) <= most else f"{found[:most]}… ({len(found)} characters)"


# Good objects, which are then spoiled


def good_job(name: str, *, elastic: bool = True, workers: int = 2, **policy: Any) -> Object:
    """A small TFJob with PS and workers that any operator starts."""
    resources = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m"}}
    trainer = {"name": "tensorflow", "image": "train", "command": ["python", "train.py"], "resources": resources}
    made = tfjob(
        name,
        policy={"cleanPodPolicy": "None", **policy},
        PS=replica(1, containers=[copy.deepcopy(trainer)]),
        Worker=replica(workers, containers=[copy.deepcopy(trainer)]),
    )
    made["metadata"]["annotations"] = dict(ELASTIC) if elastic else {}
    return made


ELASTIC = {
    f"{PREFIX}min-workers": "1",
    f"{PREFIX}max-workers": "3",
    f"{PREFIX}checkpoint-dir": "/checkpoints",
}

TARGET: Object = {
    "generation": 0,
    "replicas": {"PS": 1, "Worker": 2},
    "nodes": {"PS": ["public-0"], "Worker": ["public-0", "public-1"]},
    "cpu": {"Worker": [100, 100]},
    "reason": "wanted",
    "declared": {"PS": 1, "Worker": 2},
    "expects": 12.5,
}
WAITING: Object = {"generation": 0, "replicas": {}, "nodes": {}, "cpu": {}, "reason": "no room", "declared": {}}

_SIZE: Object = {
    "generation": 1,
    "slot": 1,
    "mode": "overlap",
    "replicas": {"PS": 1, "Worker": 3},
    "before": {"PS": 1, "Worker": 2},
    "nodes": {"PS": ["public-0"], "Worker": ["public-0", "public-1", "public-1"]},
    "cpu": {},
    "reason": "wanted",
}
_AT = "2026-01-02T03:04:05Z"
STATE: Object = {
    "phase": "Stable",
    "generation": 0,
    "slot": 0,
    "replicas": {"PS": 1, "Worker": 2},
    "nodes": {"PS": ["public-0"], "Worker": ["public-0", "public-1"]},
    "cpu": {"Worker": [100, 100]},
    "since": _AT,
    "reason": "",
    "next": None,
    "refused": {"generation": 0, "reason": "no checkpoint", "at": _AT},
    "rescales": 1,
    "last_downtime_s": 0.5,
    "history": [
        {
            "generation": 0,
            "at": _AT,
            "before": {"PS": 1, "Worker": 1},
            "after": {"PS": 1, "Worker": 2},
            "mode": "overlap",
            "downtime_s": 0.5,
            "lost_steps": 0,
            "reason": "wanted",
        }
    ],
    "step": 100,
    "total_steps": 1000,
    "steps_per_s": 10.0,
    "eta": _AT,
    "speeds": {"1/2": 10.0},
    "speed_conditions": {"1/2": [100, 50, 0.1]},
    "metrics_at": _AT,
    "causes": {"0": "grow", "1": "preempt"},
    "outcomes": {"0": {"expected": 10.0, "measured": 9.5}, "1": {"expected": 12.5, "measured": 12.0}},
}
UID = "<uid>"
"""Stands for the job's own uid, which a tenant can read: with another one an annotation is taken for another job's."""
OWN: Mapping[str, Object] = {
    RECORD_ANNOTATION: {
        "uid": UID,
        "placed": _AT,
        "held": 3,
        "executed_s": 60.0,
        "service": 180.0,
        "stops": 1,
        "stopped": _AT,
        "moves": 1,
        "resumed": _AT,
        "loss": {
            "state": "falling",
            "step": 100,
            "loss": 0.5,
            "at_s": 1767323045.0,
            "per_step": -0.01,
            "peak": 2.0,
            "readings": 5,
        },
    },
    NOTICES_ANNOTATION: {
        "uid": UID,
        "judged": {
            "deadline": _AT,
            "verdict": "at-risk",
            "since": _AT,
            "at": _AT,
            "eta": _AT,
            "slack_s": -60.0,
            "why": "it ends after its deadline",
            "sent": ["work", "speed"],
        },
        "sent": ["loss-absent", "loss-nan", "loss-rises"],
    },
}
"""What else the operator keeps of a job."""
INDEXES: Object = {"indexes": {"Worker": [0, 2]}}
COMING_INDEXES: Object = {"indexes": {"PS": [1], "Worker": [1, 3, 0]}}
PHASES = ("Waiting", "Stable", "Preparing", "Checkpointing", "Switching", "RollingBack", "Recreating")
COMMAND: Object = {"generation": 1, "action": "prepare", "tf_config": "{}", "mode": "overlap", "timeout_s": 120.0}

REPORT: Object = {
    "at": 1767323045.0,
    "generation": 0,
    "launcher": True,
    "modes": ["overlap", "spare"],
    "prepared": {"generation": 1, "mode": "overlap", "state": "ready", "why": ""},
    "switch": {"generation": 1, "state": "saving", "why": "", "at": 1767323045.0},
    "step": 100,
    "total_steps": 1000,
    "steps_per_s": 10.0,
    "examples_per_s": 320.0,
    "loss": 0.5,
    "first_step_at": 1767323000.0,
    "last_step_at": 1767323045.0,
    "downtime_s": 0.5,
    "lost_steps": 0,
    "checkpoint": {"step": 90, "at": 1767323040.0, "seconds": 0.1, "bytes": 1000, "path": "/checkpoints/90"},
    "cpu": {"at": 1767323045.0, "usage_s": 10.0, "throttled_s": 0.0, "limit_cores": 0.2},
    "memory": {"used_bytes": 1000, "limit_bytes": 10000},
    "hook": True,
}


def is_operators(annotation: str) -> bool:
    """Whether the operator writes the annotation, and no user."""
    return annotation.startswith(PREFIX) and annotation.removeprefix(PREFIX) in OPERATOR_ANNOTATIONS


# Nasty values

_NAMES = ("cpu", "memory", "nvidia.com/gpu", "example.org/gpu-less", "ephemeral-storage", "pods", "hugepages-2Mi")


def nasty(random: Random) -> Any:
    """Any JSON value."""
    match random.randrange(8):
        case 0 | 1 | 2:
            return random.choice(NUMBERS)
        case 3 | 4:
            return random.choice(TEXTS)
        case 5:
            return random.choice((None, True, False, [], {}, [[]], {"": 1}, [None], {"a": {}}, [1, "x", None]))
        case 6:
            return random.choice(("x" * 2_000, "9" * 500, [0] * 500, {str(n): n for n in range(300)}))
        case _:
            return deep(random.choice((3, 30, 100)))


def spoiled(value: Any, random: Random, times: int = 1) -> Any:
    """A copy of a JSON value with something wrong in it: another type, an absurd number, a key too few or many."""
    found = copy.deepcopy(value)
    for _ in range(times):
        parent, key = random.choice(list(_places(found)))
        if isinstance(parent, dict) and random.random() < 0.15:
            del parent[key]
        elif isinstance(parent, dict) and random.random() < 0.15:
            parent[random.choice(("", "Worker", "Chief", "generation", "x" * 300, "é"))] = nasty(random)
        elif isinstance(parent[key], list) and random.random() < 0.3:
            parent[key] = [nasty(random) for _ in range(random.randrange(1, 4))]
        elif isinstance(parent[key], int | float) and random.random() < 0.5:
            parent[key] = random.choice((*NUMBERS, -64_000))
        else:
            parent[key] = nasty(random)
        if not list(_places(found)):
            break
    return found


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    children: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for key, child in children:
        yield value, key
        yield from _places(child)


def _json(value: Any) -> str:
    return json.dumps(value)


# The CRD's structural schema


@cache
def _schema() -> Object:
    version = yaml.load(CRD.read_text(), yaml.CSafeLoader)["spec"]["versions"][0]
    schema: Object = version["schema"]["openAPIV3Schema"]
    return schema


def from_schema(schema: Object, random: Random, depth: int = 0) -> Any:
    """A value that a structural schema admits (types, enums, patterns and bounds), nasty where it can be."""
    if schema.get("enum"):
        return random.choice(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        pattern = re.compile(schema.get("pattern", ""))
        return random.choice([text for text in QUANTITIES if pattern.match(text)] + [0, 2**31 - 1])
    match schema.get("type"):
        case "integer":
            bits = 31 if schema.get("format") == "int32" else 63
            low, high = schema.get("minimum", -(2**bits)), schema.get("maximum", 2**bits - 1)
            return min(max(random.choice((*COUNTS, low, high)), low), high)
        case "number":
            return random.choice((0.5, 1e308, -1e308))
        case "boolean":
            return random.random() < 0.5
        case "string":
            if schema.get("format") == "date-time":
                return random.choice((_AT, "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"))
            most = schema.get("maxLength", 10_000)
            found = random.choice((*TEXTS, "x" * 5_000))[:most]
            expected = schema.get("pattern")
            return found if not expected or re.match(expected, found) else "x"
        case "array":
            return [from_schema(schema.get("items", {}), random, depth + 1) for _ in range(random.choice((0, 1, 2)))]
    if "properties" in schema:
        chance = 0.5 / (1 + depth)
        return {
            name: from_schema(child, random, depth + 1)
            for name, child in schema["properties"].items()
            if name in schema.get("required", ()) or random.random() < chance
        }
    if "additionalProperties" in schema:
        names = random.sample((*_NAMES, "x", "é", "x" * 300), random.randrange(3))
        return {name: from_schema(schema["additionalProperties"], random, depth + 1) for name in names}
    return deep(random.choice((1, 20)))


_HOT = (
    ("tfReplicaSpecs", "*", "replicas"),
    ("tfReplicaSpecs", "*", "restartPolicy"),
    ("tfReplicaSpecs", "*", "template", "spec", "containers", 0, "resources"),
    ("tfReplicaSpecs", "*", "template", "spec", "overhead"),
    ("tfReplicaSpecs", "*", "template", "spec", "affinity"),
    ("tfReplicaSpecs", "*", "template", "spec", "nodeSelector"),
    ("tfReplicaSpecs", "*", "template", "spec", "priority"),
    ("tfReplicaSpecs", "*", "template", "spec", "initContainers"),
    ("tfReplicaSpecs", "*", "template", "metadata"),
    ("runPolicy",),
    ("successPolicy",),
    ("enableDynamicWorker",),
)


def spoil_spec(spec: Object, random: Random) -> None:
    """Put generated values at one or two places of a good spec: what the operator reads, or anywhere in a template."""
    for _ in range(random.choice((1, 1, 2))):
        path: Sequence[Any] = random.choice(_HOT)
        if random.random() < 0.2:
            names = list(
                _at(_schema()["properties"]["spec"], ("tfReplicaSpecs", "*", "template", "spec"))["properties"]
            )
            path = ("tfReplicaSpecs", "*", "template", "spec", random.choice([n for n in names if n != "containers"]))
        _put(spec, path, random)


def _at(schema: Object, path: Sequence[Any]) -> Object:
    for part in path:
        if isinstance(part, int):
            schema = schema["items"]
        elif part == "*":
            schema = schema["additionalProperties"]
        else:
            schema = schema["properties"][part]
    return schema


def _put(spec: Object, path: Sequence[Any], random: Random) -> None:
    place: Any = spec
    for part in path[:-1]:
        if part == "*":
            place = place[random.choice(list(place))]
        else:
            place = place[part] if isinstance(part, int) else place.setdefault(part, {})
    value = from_schema(_at(_schema()["properties"]["spec"], path), random)
    if path[-1] == "resources":
        kinds = random.sample(("requests", "limits"), random.choice((1, 2)))
        known = _at(_schema()["properties"]["spec"], path)["properties"]["requests"]["additionalProperties"]
        value = {kind: {random.choice(_NAMES[:3]): from_schema(known, random)} for kind in kinds}
    if path[-1] == "metadata":
        value.pop("finalizers", None)  # a pod that nobody lets go says nothing about the operator
    if path[-1] == "runPolicy":
        value.pop("managedBy", None)  # such a job is another controller's
        value.pop("ttlSecondsAfterFinished", None)
    place[path[-1]] = value


# Annotations


def user_annotations(random: Random) -> dict[str, str]:
    """Users' annotations with values that are wrong, or absurd."""
    found = dict(ELASTIC) if random.random() < 0.7 else {}
    for name in random.sample(list(ANNOTATIONS), random.choice((1, 1, 2, 4))):
        if name.startswith(("min", "max", "target", "total")):
            values: Sequence[str] = WHOLE_NUMBERS
        elif name == "deadline":
            values = (*DURATIONS, *TIMES)
        elif name == "estimated-duration":
            values = DURATIONS
        else:
            values = (*TEXTS, *("never", "none", "auto", "recreate", "true", "both", "sidecar"))
        found[PREFIX + name] = random.choice(values)
    if random.random() < 0.1:
        found[PREFIX + "x" * random.choice((1, 50))] = "?"
    return found


def operator_annotations(random: Random) -> dict[str, str]:
    """The operator's own annotations, written by a tenant: well-formed JSON with something wrong in it."""
    found: dict[str, str] = {}
    if random.random() < 0.6:
        state = {**STATE, "phase": random.choice(PHASES)}
        if state["phase"] not in ("Waiting", "Stable") or random.random() < 0.2:
            state["next"] = _SIZE | random.choice(({}, COMING_INDEXES))
        state |= random.choice(({}, INDEXES)) | random.choice(({}, {"uid": UID}))
        found[f"{PREFIX}state"] = _json(spoiled(state, random, random.choice((1, 1, 2))))
    if not found or random.random() < 0.6:
        target = random.choice((TARGET, WAITING)) | random.choice(({}, {"uid": UID}))
        found[f"{PREFIX}target"] = _json(spoiled(target, random, random.choice((1, 1, 2))))
    if random.random() < 0.2:
        found[f"{PREFIX}{random.choice(('step', 'eta', 'verdict', 'slack'))}"] = random.choice((*TEXTS, "9" * 400))
    for name in random.sample(list(OWN), random.choice((0, 1, 2, len(OWN)))):
        found[name] = _json(spoiled(OWN[name], random, random.choice((1, 1, 2))))
        if random.random() < 0.1:
            found[name] = random.choice((*TEXTS, "9" * 400, DEEP_LIST))
    if random.random() < 0.1:
        found["example.org/filler"] = "x" * 250_000
    if random.random() < 0.05:
        found[f"{PREFIX}{random.choice(('state', 'target'))}"] = DEEP_LIST
    return found


# Answers of /status, and what a pod's status says


def answer(random: Random) -> Answer:
    """How a hostile pod answers the operator's question."""
    if random.random() < 0.55:
        return Answer("json", _json(spoiled(REPORT, random, random.choice((1, 1, 2, 3)))))
    kind = random.choice(KINDS)
    if kind == "nested":
        return Answer(kind, random.choice(("", '{"at":', '{"cpu":{"at":')), random.choice((940, 500, 20_000)))
    return Answer(kind, _json(REPORT))


def pod_status(random: Random) -> Object:
    """A pod's status as a kubelet would never write it."""
    state: Object = random.choice(
        (
            {"running": {"startedAt": _AT}},
            {"terminated": {"exitCode": random.choice((0, 1, 137, -1, 2**31 - 1)), "reason": "x" * 3000}},
            {"waiting": {"reason": "x", "message": "x" * 20_000}},
            {},
        )
    )
    names = random.sample(("tensorflow", EXPORTER, "other"), 2)
    containers = [
        {
            "name": name,
            "image": "",
            "imageID": "",
            "ready": False,
            "restartCount": random.choice((0, 1, 2**31 - 1)),
            "state": state,
        }
        for name in names
    ]
    phase = random.choice(("Running", "Running", "Pending", "Failed", "Succeeded", "Unknown"))
    return {"phase": phase, "containerStatuses": containers}


def tenants_pod(name: str, job: str, random: Random) -> Object:
    """A pod with the operator's labels, made by the tenant, with a container of the exporter's name: it is asked."""
    container = {"name": "tensorflow", "image": "x"}
    made = labels(job, random.choice(("worker", "chief", "", "nonsense")), 0)
    made["training.kubeflow.org/replica-index"] = random.choice(("0", "1", "99999", "x", "9" * 60, ""))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": made,
            "annotations": {f"{PREFIX}command": _json(spoiled(COMMAND, random))},
        },
        "spec": {
            "containers": [container],
            "initContainers": [{"name": EXPORTER, "image": "x", "restartPolicy": "Always"}],
        },
    }


# Inputs


def create(job: Object) -> Step:
    return Step("create", "tfjobs", job)


def annotate(name: str, annotations: dict[str, Any]) -> Step:
    """Annotations of a job; None removes one."""
    return Step("merge", f"tfjobs/{name}", {"metadata": {"annotations": annotations}})


def generated(name: str, random: Random) -> Input:
    """A hostile input of any family; `name` is its objects' name."""
    kind = random.choice(
        ("spec", "spec", "users", "users", "operators", "operators", "answer", "answer", "life", "pods")
    )
    job = good_job(name, elastic=random.random() < 0.8)
    notes: dict[str, str] = job["metadata"]["annotations"]
    match kind:
        case "spec":
            spoil_spec(job["spec"], random)
            return Input("spec from the schema", (create(job),), name, mendable=True, keeps=True)
        case "users":
            notes |= user_annotations(random)
            job["spec"]["runPolicy"]["suspend"] = random.random() < 0.1
            return Input(
                "users' annotations",
                (create(job),),
                name,
                must_tell=not job["spec"]["runPolicy"]["suspend"],
                mendable=True,
                keeps=True,
            )
        case "operators":
            wrong = operator_annotations(random)
            if random.random() < 0.5:
                notes |= wrong
                if random.random() < 0.3:
                    job["spec"]["runPolicy"]["suspend"] = True
                return Input("the operator's annotations, from the start", (create(job),), name, mendable=True)
            waits = Step("wait", seconds=1.5)
            return Input(
                "the operator's annotations, later", (create(job), waits, annotate(name, wrong)), name, mendable=True
            )
        case "answer":
            runs = Step("run", name, answer=answer(random), body=pod_status(random))
            if random.random() < 0.6:
                runs = Step("run", name, answer=answer(random))
            return Input("a pod's answer", (create(job), runs), name, mendable=True)
        case "pods":
            made = tenants_pod(f"{name}-own", name, random)
            steps = (
                *((create(job),) if random.random() < 0.5 else ()),
                Step("create", "pods", made),
                Step("run", name, answer=answer(random)),
                *((Step("relabel", name),) if random.random() < 0.5 else ()),
            )
            return Input("pods of the tenant's own", steps, name if steps[0].path == "tfjobs" else "")
    return Input("a job's life", (create(job), *_life(name, random)), name, mendable=True)


def _life(name: str, random: Random) -> Iterator[Step]:
    """What a tenant does to a job, in any order."""
    for _ in range(random.randrange(2, 7)):
        match random.randrange(9):
            case 0:
                yield annotate(name, dict(user_annotations(random)))
            case 1:
                yield annotate(name, dict(operator_annotations(random)))
            case 2:
                names = random.sample([*ELASTIC, *(f"{PREFIX}{each}" for each in ("state", "target", "step"))], 2)
                yield annotate(name, dict.fromkeys(names))
            case 3:
                yield Step("merge", f"tfjobs/{name}", {"spec": {"runPolicy": {"suspend": random.random() < 0.6}}})
            case 4:
                status = from_schema(_schema()["properties"]["status"], random)
                yield Step("merge", f"tfjobs/{name}/status", {"status": status})
            case 5:
                spec = good_job(name)["spec"]
                spoil_spec(spec, random)
                yield Step("merge", f"tfjobs/{name}", {"spec": spec})
            case 6:
                yield Step("run", name, answer=answer(random))
            case 7:
                yield Step("relabel", name)
            case _:
                yield Step("wait", seconds=random.random())
    if random.random() < 0.2:
        yield Step("delete", f"tfjobs/{name}")


def corpus(name: str) -> tuple[Input, ...]:
    """What has done harm before, one of each kind."""
    return tuple(_corpus(name))


def _corpus(prefix: str) -> Iterator[Input]:
    number = 0

    def named() -> str:
        nonlocal number
        number += 1
        return f"{prefix}-{number}"

    def with_annotations(family: str, told: bool = True, suspend: bool = False, **texts: Any) -> Input:
        job = good_job(name := named(), suspend=suspend)
        values = {key.replace("_", "-"): text if isinstance(text, str) else _json(text) for key, text in texts.items()}
        job["metadata"]["annotations"] |= {PREFIX + key: text for key, text in values.items()}
        return Input(family, (create(job),), name, must_tell=told and not suspend, mendable=True)

    def answering(family: str, given: Answer) -> Input:
        job = good_job(name := named())
        return Input(family, (create(job), Step("run", name, answer=given)), name)

    def with_count(family: str, count: int, *, elastic: bool, told: bool = False) -> Input:
        job = good_job(name := named(), elastic=elastic, workers=count)
        return Input(family, (create(job),), name, must_tell=told, mendable=True)

    refused = STATE["refused"]
    job = good_job(name := named(), elastic=False, workers=70)
    job["metadata"]["annotations"] = {f"{PREFIX}inject": "sidecar"}
    nested = Step("run", name, answer=Answer("nested", '{"cpu":{"at":', 940), most=71)
    yield Input("C1: answers nested 940 deep and more", (create(job), nested), name)
    yield answering("H1: an answer that redirects", Answer("redirect"))
    yield answering(
        "H2: a report of 10^12 steps", Answer("json", _json({**REPORT, "total_steps": 10**15, "steps_per_s": 1e-9}))
    )
    yield with_annotations("C2: target.reason is a number", target={**WAITING, "reason": 5})
    yield with_annotations(
        "C3: state.refused.at, suspended",
        suspend=True,
        state={**STATE, "refused": {**refused, "at": "x"}},
        target=TARGET,
    )
    yield with_annotations(
        "C3: state.refused.generation, waiting",
        state={**STATE, "phase": "Waiting", "refused": {**refused, "generation": "x"}},
        target=WAITING,
    )
    yield with_annotations("C3: state.total_steps is a text", state={**STATE, "total_steps": "x"})
    job = good_job(name := named())
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["resources"] = {
        "requests": {"memory": "1e999999999"}
    }
    yield Input("C4: a quantity of a billion digits", (create(job),), name, must_tell=True, mendable=True)
    yield with_count("C5: 2,000 plain workers", 2_000, elastic=False)
    yield with_count("C5: a million plain workers", 10**6, elastic=False, told=True)
    yield with_count("C5: 2 * 10^9 workers, elastic from 1", 2 * 10**9, elastic=True, told=True)
    yield with_annotations("C5: target.replicas 10^10", target={**TARGET, "replicas": {"PS": 1, "Worker": 10**10}})
    yield with_annotations("C5: state.replicas 10^10", state={**STATE, "replicas": {"PS": 1, "Worker": 10**10}})
    yield with_annotations("C5: 10^9 workers asked for", max_workers="1000000000", target_workers="1000000000")
    yield with_annotations("C5: total-steps of 401 digits", total_steps="9" * 401)
    yield with_annotations("C5: state.generation 1e308", state={**STATE, "generation": 1e308})
    yield with_annotations("C5: target.replicas of no type", target={**TARGET, "replicas": {"": 1}})
    yield with_annotations("H2: deadline", deadline="1000000000d")
    yield with_annotations("H2: estimated-duration", estimated_duration="1000000000d")
    yield with_annotations("H2: state.slot is a text", state={**STATE, "slot": "1"}, target=TARGET)
    job = good_job(name := named(), elastic=False, activeDeadlineSeconds=999_999_999_999)
    yield Input("H2: activeDeadlineSeconds", (create(job),), name, must_tell=True, mendable=True)
    yield with_annotations("H11: target.cpu is negative", target={**TARGET, "cpu": {"Worker": [-64_000, -64_000]}})
    job = good_job(name := named())
    job["metadata"]["annotations"] |= {f"{PREFIX}target": _json(WAITING)}
    lost = dict.fromkeys(ELASTIC)
    yield Input("H8: the annotations go while the job waits", (create(job), annotate(name, lost)), name, must_tell=True)
    job = good_job(name := named())
    edits = [annotate(name, {f"{PREFIX}deadline": f"{n}{'x' * 200_000}"}) for n in range(40)]
    yield Input("M6: a long wrong annotation, edited over and over", (create(job), *edits), name)
    job = good_job(name := named())
    job["metadata"]["annotations"] |= {f"{PREFIX}unknown-{n}": "x" for n in range(4_000)}
    yield Input("M6: thousands of unknown annotations", (create(job),), name)
    job = good_job(name := named(), backoffLimit=3)
    for each in job["spec"]["tfReplicaSpecs"].values():
        each["restartPolicy"] = "OnFailure"
    statuses = [{"name": EXPORTER, "image": "", "imageID": "", "ready": True, "restartCount": 50, "state": {}}]
    body = {"phase": "Running", "initContainerStatuses": statuses}
    yield Input(
        "H4: restarts of the exporter",
        (create(job), Step("run", name, body=body, answer=Answer("json", _json(REPORT)))),
        name,
        must_live=True,
    )
    job = good_job(name := named())
    none = {**TARGET, "generation": 1, "replicas": {"PS": 1, "Worker": 0}, "nodes": {}, "cpu": {}}
    job["metadata"]["annotations"] |= {f"{PREFIX}min-workers": "0"}
    empty = {f"{PREFIX}target": _json(none)}
    yield Input(
        "H5: no worker at all",
        (create(job), Step("wait", seconds=1.5), annotate(name, empty)),
        name,
        must_live=True,
    )
    job = good_job(name := named())
    chief = {"Chief": copy.deepcopy(job["spec"]["tfReplicaSpecs"]["Worker"]) | {"replicas": 1}}
    run = Step("run", name, answer=Answer("json", _json({**REPORT, "prepared": None, "switch": None})))
    added = Step("merge", f"tfjobs/{name}", {"spec": {"tfReplicaSpecs": chief}})
    yield Input("H5: a chief that comes later", (create(job), run, added), name, must_live=True)
    job = good_job(name := named())
    many = [{"type": "a", "status": ""}] * 40_000
    yield Input(
        "a status of 40,000 conditions, again and again",
        (
            create(job),
            *(Step("merge", f"tfjobs/{name}/status", {"status": {"conditions": many[n:]}}) for n in range(8)),
        ),
        name,
        mendable=True,
    )
    job = good_job(name := named(), workers=130)
    yield Input("M13: silence of 130", (create(job), Step("run", name, answer=Answer("silent"), most=130)), name)
    for family, kind in (
        ("L1: an answer in two segments", "split"),
        ("silence", "silent"),
        ("an endless body", "endless"),
    ):
        yield answering(family, Answer(kind, _json(REPORT)))
