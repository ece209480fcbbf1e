"""Snapshots as data, and what each profile decided on them when they were recorded: recorded_plans.json.gz.

    PYTHONPATH=tests python -m unit.scheduling.recorded

writes the file anew. That is right only where a plan was meant to change: the diff that it prints says which did. The
snapshots are drawn by their seed, so they stay the same ones.
"""

import gzip
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.places import PLACES
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import PROFILES, build, parse_profile
from elastic_tfjob.scheduling.resources import ANYWHERE, Constraints, Resources, Taint, Toleration
from elastic_tfjob.scheduling.snapshot import (
    NOTHING_LEARNED,
    PS,
    WORKER,
    Job,
    JobSpec,
    Node,
    ReplicaGroup,
    Snapshot,
)
from elastic_tfjob.simulation.speed_models.ps import MODELS, PsTrueSpeed
from elastic_tfjob.speed.growth import NOT_REPORTED
from elastic_tfjob.speed.history import Lesson
from elastic_tfjob.speed.model import Speed
from elastic_tfjob.speed.optimus import believe

from .crowded import crowded_of

FILE = Path(__file__).with_name("recorded_plans.json.gz")
SEEDS = range(120)
CROWDED_SEEDS = range(1000, 1020)
NOW = 1000.0
Json = dict[str, Any]

CASES: dict[str, tuple[str, Json]] = {name: (name, {}) for name in PROFILES}
CASES |= {"specon published": ("specon", {"published": True})}
CASES |= {"las promoting": ("las", {"promote_knob": 0.5}), "srtf cooling": ("srtf", {"stop_cooldown_s": 60.0})}
CASES |= {f"{name} {place}": (name, {"place": place}) for name in ("fifo-backfill", "drf") for place in PLACES}
CASES |= {f"{name} lend": (name, {"lend": "offered"}) for name in ("fifo-backfill", "kips", "srtf")}
"""Each profile as it comes, every placement under one that never resizes and one that does, loans, and what is off by
default and goes by what a job's past was."""


# Snapshots


def snapshot_of(seed: int) -> Json:
    """A cluster with its jobs, of which some run: up to a few nodes and jobs for small seeds, then a good many."""
    draw = random.Random(seed)
    large = seed % 10 == 9
    nodes = [_node(draw, f"n{k}") for k in range(draw.randint(10, 20) if large else draw.randint(0, 6))]
    jobs = [_job(draw, k) for k in range(draw.randint(20, 60) if large else draw.randint(0, 9))]
    made = {"now": NOW, "seed": seed, "nodes": nodes, "jobs": jobs}
    _settle(draw, made)
    return made


def _node(draw: random.Random, name: str) -> Json:
    capacity = [draw.choice([2000, 4000, 8000]), draw.choice([0, 16, 64]) << 30, draw.choice([0, 0, 2, 4])]
    busy = draw.choice([0.0, 0.0, 0.25])
    return {
        "name": name,
        "capacity": capacity,
        "free": [round(part * (1 - busy)) for part in capacity],
        "labels": {"zone": draw.choice("xy")},
        "taints": draw.choice([[], [], [], ["t"]]),
        "accelerator_speed": draw.choice([1.0, 1.0, 1.0, 0.5]),
        "loan": draw.choice(["own"] * 8 + ["busy", "offered", "loaned", "reclaiming"]),
    }


def _bounds(draw: random.Random) -> list[int]:
    low = draw.randint(1, 3)
    count = draw.randint(low, low + 2)
    return [count, low, draw.randint(count, count + 3)]


def _job(draw: random.Random, k: int) -> Json:
    groups = {}
    if draw.random() < 0.6:
        groups[PS] = {"request": [draw.choice([500, 1000, 2000]), 0, 0], "bounds": _bounds(draw)}
    request = [draw.choice([500, 1000, 2000]), draw.choice([0, 0, 1 << 30]), draw.choice([0, 0, 0, 1, 2])]
    groups[WORKER] = {"request": request, "bounds": _bounds(draw)}
    steps = draw.choice([None, 500.0, 5000.0])
    sizes = [[p, w, round(draw.uniform(1, 9) * w**0.7, 3)] for p in (0, 1, 2) for w in (1, 2, 4)]
    return {
        "key": f"job-{k}",
        "arrival_s": float(draw.randint(0, 999)),
        "groups": groups,
        "sequence": k,
        "priority": draw.choice([0, 0, 0, 1]),
        "deadline_s": draw.choice([None, 900.0, 2000.0]),
        "total_steps": steps,
        "duration_s": draw.choice([None, steps]),
        "loanable": draw.random() < 0.3,
        "resizable": draw.random() < 0.75,
        "where": draw.choice(["", "", "", "", "zone x", "tolerates"]),
        "asked": draw.choice([0] * 9 + [1]),
        "service": draw.choice([0.0, 100.0, 4000.0, 9000.0]),
        "since_s": draw.choice([0.0, 500.0, NOW]),
        "executed_s": draw.choice([0.0, 50.0]),
        "speed": draw.choice(["", *sorted(MODELS), draw.sample(sizes, 3), draw.sample(sizes, 7)]),
        "cpu_use": {t: use for t in groups if (use := draw.choice([None, None, 0.05, 0.25, 0.5, 0.9, 1.0]))},
    }


def _settle(draw: random.Random, made: Json) -> None:
    """Let a part of the jobs run where they fit, some more CPU be lent, and some nodes be lost."""
    nodes = {node["name"]: list(node["free"]) for node in made["nodes"] if node["loan"] in ("own", "loaned")}
    for job in made["jobs"][: draw.randint(0, len(made["jobs"]))]:
        placement, free = {}, {name: list(left) for name, left in nodes.items()}
        for type_, group in job["groups"].items():
            _, low, high = group["bounds"]
            count = draw.randint(low, high) if job["resizable"] else group["bounds"][0]
            placement[type_] = [_take(draw, job, group["request"], free) for _ in range(count)]
        if all(name for names in placement.values() for name in names):
            nodes = free
            job |= {"placement": placement, "phase": draw.choice(["running"] * 7 + ["rescaling"])}
            job |= {"steps": draw.choice([0.0, 100.0, 400.0]), "steps_per_s": draw.choice([0.0, 0.5, 4.0])}
            job["rescaled_s"] = draw.choice([None, 400.0, 990.0])
            if job["resizable"]:
                job["cpu"] = _lent(draw, job, nodes)
    if draw.random() < 0.15 and made["nodes"]:
        made["nodes"].pop()


def _take(draw: random.Random, job: Json, request: list[int], free: dict[str, list[int]]) -> str:
    names = [name for name, left in free.items() if all(n <= m for n, m in zip(request, left, strict=True))]
    name = draw.choice(sorted(names)) if names else ""
    if name:
        free[name] = [m - n for m, n in zip(free[name], request, strict=True)]
    return name


def _lent(draw: random.Random, job: Json, nodes: dict[str, list[int]]) -> Json:
    cpu = {}
    for type_, names in job["placement"].items():
        held = [job["groups"][type_]["request"][0]] * len(names)
        if draw.random() < 0.2:
            for k, name in enumerate(names):
                extra = min(nodes[name][0], draw.choice([0, 250]))
                nodes[name][0] -= extra
                held[k] += extra
            cpu[type_] = held
    return {t: held for t, held in cpu.items() if set(held) != {job["groups"][t]["request"][0]}}


def built(made: Json) -> Snapshot:
    """The Snapshot of today's code."""
    nodes = {
        node["name"]: Node(
            node["name"],
            Resources(*node["capacity"]),
            Resources(*node["free"]),
            labels=node["labels"],
            taints=tuple(map(Taint, node["taints"])),
            accelerator_speed=node["accelerator_speed"],
            loan=node["loan"],
        )
        for node in made["nodes"]
    }
    history = NOTHING_LEARNED
    for k, told in enumerate(made.get("history", [])):
        rates = {(p, w): rate for p, w, rate in told["rates"]}
        history = history.learned("ns", told["model"], Lesson(f"done-{k}", told["steps"], told["duration_s"], rates))
    jobs = {job["key"]: _built(job) for job in made["jobs"]}
    return Snapshot(made["now"], nodes, jobs, made["seed"], history=history)


WHERE = {
    "": ANYWHERE,
    "zone x": Constraints(selector=(("zone", "x"),)),
    "tolerates": Constraints(tolerations=(Toleration("t", "Exists"),)),
}


def _built(made: Json) -> Job:
    groups = []
    for type_, group in made["groups"].items():
        count, low, high = group["bounds"]
        if made["asked"] and type_ == WORKER and made["resizable"]:
            low = high = count
        groups.append(ReplicaGroup(type_, Resources(*group["request"]), count, low, high))
    spec = JobSpec(
        made["key"],
        made["arrival_s"],
        tuple(groups),
        sequence=made["sequence"],
        priority=made["priority"],
        deadline_s=made["deadline_s"],
        total_steps=made["total_steps"],
        duration_s=made["duration_s"],
        loanable=made["loanable"],
        resizable=made["resizable"],
        stoppable=made.get("stoppable", True),
        movable=made.get("movable", True),
        fixed_cpu=made.get("fixed_cpu", False),
        model=made.get("model", ""),
        constraints=WHERE[made["where"]],
        asked="asked for by a person" if made["asked"] else "",
    )
    said = made["speed"]
    speed: Speed | None = None
    if isinstance(said, str) and said:
        speed = PsTrueSpeed(spec.total_steps or 1.0, MODELS[said])
    elif said:
        speed = believe({(p, w): rate for p, w, rate in said})
    loss = NOT_REPORTED
    for step, value, at_s in made.get("loss", []):
        loss = loss.read(step, value, at_s)
    return Job(
        spec,
        {t: tuple(names) for t, names in made.get("placement", {}).items()},
        made.get("phase", "waiting"),
        steps=made.get("steps", 0.0),
        observed_s=made["observed_s"] if "observed_s" in made else made["since_s"],
        steps_per_s=made.get("steps_per_s", 0.0),
        since_s=made["since_s"],
        service=made["service"],
        executed_s=made["executed_s"],
        rescaled_s=_moment(made.get("rescaled_s")),
        migrations=made.get("migrations", 0),
        speed=speed,
        cpu={t: tuple(held) for t, held in made.get("cpu", {}).items()},
        cpu_use=made["cpu_use"],
        loss=loss,
        stops=made.get("stops", 0),
        stopped_s=_moment(made.get("stopped_s")),
        resumed_s=_moment(made.get("resumed_s")),
        memory=made.get("memory", {}),
    )


def _moment(at_s: float | None) -> float:
    """When something was last; long ago where it never was."""
    return float("-inf") if at_s is None else at_s


# Plans


def applies(case: str, snapshot: Snapshot) -> bool:
    """A cluster of totals only has nothing that runs on nodes."""
    return not case.endswith(" count") or not any(job.placement for job in snapshot.jobs.values())


def decided(case: str, snapshot: Snapshot) -> Json:
    """What a profile decides, without the words."""
    name, settings = CASES[case]
    return told(schedule(snapshot, build(name, parse_profile(name, settings))))


def told(plan: Plan) -> Json:
    changes = {}
    for key, target in sorted(plan.changes.items()):
        nodes = {t: list(names) for t, names in target.nodes.items() if names}
        changes[key] = [nodes, {t: list(held) for t, held in target.cpu.items()}]
    found: Json = {"changes": changes}
    if plan.memory:
        found["memory"] = {key: dict(memory) for key, memory in sorted(plan.memory.items())}
    if plan.loans:
        found["loans"] = [[loan.node, loan.action] for loan in plan.loans]
    return found


def all_decided(made: Json) -> Json:
    snapshot = built(made)
    return {case: decided(case, built(made)) for case in CASES if applies(case, snapshot)}


def differences(before: Mapping[str, Json], after: Mapping[str, Json]) -> list[str]:
    """The cases that decide otherwise by now."""
    return [case for case in sorted({*before, *after}) if before.get(case) != after.get(case)]


def read() -> list[Json]:
    found: list[Json] = json.loads(gzip.decompress(FILE.read_bytes()))
    return found


def main() -> None:
    known = read() if FILE.exists() else []
    snapshots = [*map(snapshot_of, SEEDS), *map(crowded_of, CROWDED_SEEDS)]
    made = [{"snapshot": each, "plans": all_decided(each)} for each in snapshots]
    for before, after in zip(known, made, strict=False):
        for case in differences(before["plans"], after["plans"]):
            if case not in before["plans"]:  # a new profile
                continue
            print(f"seed {before['snapshot']['seed']}: {case}")
            print(f"  before {json.dumps(before['plans'].get(case))[:400]}")
            print(f"  now    {json.dumps(after['plans'].get(case))[:400]}")
    FILE.write_bytes(gzip.compress(json.dumps(made, separators=(",", ":")).encode(), mtime=0))
    changes = sum(len(plan["changes"]) for each in made for plan in each["plans"].values())
    print(f"{len(made)} snapshots, {changes} changes, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
