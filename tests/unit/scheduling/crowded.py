"""Snapshots as data, as in recorded.py, of clusters where jobs have a past: nodes whose CPU is used up beside idle
ones, losses that fall, numbers that a profile remembers, stops, moves, lessons of finished jobs, and accelerators that
differ. The profiles that go by these decide as a plain one does on anything else."""

import random
from typing import Any

from elastic_tfjob.scheduling.orders import FORGIVEN
from elastic_tfjob.scheduling.profiles.specon import CONVERGED, WATCHED
from elastic_tfjob.scheduling.snapshot import PS, WORKER

NOW = 1000.0
Json = dict[str, Any]


def crowded_of(seed: int) -> Json:
    """The first node is full and busy, the second has two jobs, the others have none or few."""
    draw = random.Random(seed)
    nodes = [_node(draw, k) for k in range(draw.randint(3, 5))]
    jobs = [_running(draw, k, f"n{(0, 0, 0, 1, 1, 2)[k]}") for k in range(draw.randint(4, 6))]
    jobs += [_waiting(draw, len(jobs) + k) for k in range(draw.randint(1, 4))]
    return {"now": NOW, "seed": seed, "nodes": nodes, "jobs": jobs, "history": _history(draw)}


def _node(draw: random.Random, k: int) -> Json:
    capacity = [4000 if k < 2 else draw.choice([4000, 8000]), 64 << 30, 4]
    return {
        "name": f"n{k}",
        "capacity": capacity,
        "free": capacity,
        "labels": {"zone": "xy"[k % 2]},
        "taints": [],
        "accelerator_speed": draw.choice([1.0, 1.0, 0.5, 2.0]),
        "loan": "own" if k < 3 else draw.choice(["own", "offered", "busy", "loaned", "reclaiming"]),
    }


def _job(draw: random.Random, k: int, groups: Json) -> Json:
    total = draw.choice([None, 2000.0, 20000.0, 20000.0])
    sizes = [[p, w, round(draw.uniform(1, 9) * w**0.7, 3)] for p in (0, 1) for w in (1, 2, 3)]
    stops = draw.choice([0, 0, 1, 3])
    resizable, movable = draw.random() < 0.75, draw.random() < 0.8
    return {
        "key": f"ns/job-{k}",
        "arrival_s": float(draw.randint(0, 300)),
        "groups": groups,
        "sequence": k,
        "priority": 0,
        "deadline_s": draw.choice([None, None, 1200.0, 3000.0]),
        "total_steps": total,
        "duration_s": draw.choice([None, 500.0, 4000.0]),
        "loanable": draw.random() < 0.3,
        "resizable": resizable,
        "stoppable": resizable or draw.random() < 0.5,
        "movable": movable,
        "fixed_cpu": draw.random() < 0.1,
        "model": draw.choice(["", "small", "large"]),
        "where": "",
        "asked": 0,
        "service": draw.choice([50.0, 4000.0, 9000.0]),
        "executed_s": draw.choice([30.0, 250.0]),
        "stops": stops,
        "stopped_s": draw.choice([300.0, 970.0]) if stops else None,
        "resumed_s": None,
        "migrations": draw.choice([0, 0, 0, 1]),
        "speed": draw.choice(["", draw.sample(sizes, 3), draw.sample(sizes, 6)]),
        "cpu_use": {},
    }


def _running(draw: random.Random, k: int, node: str) -> Json:
    """Small requests, so that a crowded node has room left: it is use that crowds it."""
    groups: Json = {WORKER: {"request": [draw.choice([500, 750]), 1 << 30, draw.choice([0, 0, 1])]}}
    groups[WORKER]["bounds"] = [1, 1, draw.choice([1, 3])]
    if draw.random() < 0.4:
        groups[PS] = {"request": [250, 0, 0], "bounds": [1, 1, 2]}
    made = _job(draw, k, groups)
    since_s = float(draw.randint(300, 900))
    # Without limits pods use more than they request.
    busy = draw.choice([1.4, 1.9, 2.6]) if node == "n0" else draw.choice([0.1, 0.4, 1.0])
    made |= {
        "placement": {type_: [node] for type_ in groups},
        "phase": draw.choice(["running"] * 9 + ["rescaling"]),
        "since_s": since_s,
        "observed_s": since_s + 50.0,
        "steps": draw.choice([0.0, 100.0, 900.0]),
        "steps_per_s": draw.choice([0.5, 4.0, 4.0]),
        "rescaled_s": draw.choice([None, since_s]),
        "resumed_s": since_s if made["stops"] else None,
        "cpu_use": {type_: busy for type_ in groups if draw.random() < 0.95},
        "loss": _readings(draw),
        "memory": _memory(draw),
    }
    if made["resizable"] and not made["fixed_cpu"] and draw.random() < 0.2:
        request = groups[WORKER]["request"][0]
        made["cpu"] = {WORKER: [request + 250]}
    return made


def _waiting(draw: random.Random, k: int) -> Json:
    request = [draw.choice([500, 1000, 2000]), 0, draw.choice([0, 0, 1, 2])]
    made = _job(draw, k, {WORKER: {"request": request, "bounds": [draw.choice([1, 2]), 1, 3]}})
    forgiven = draw.choice([None, None, 1000.0])
    made["since_s"] = made["stopped_s"] or made["arrival_s"]
    made["steps"] = draw.choice([0.0, 400.0]) if made["stops"] else 0.0
    return made | {"loss": _readings(draw), "memory": {} if forgiven is None else {FORGIVEN: forgiven}}


def _readings(draw: random.Random) -> list[list[float]]:
    """(step, loss, seconds) of the reports: one that falls fast, one that fell fast once, or none."""
    kind = draw.choice(["none", "falls", "flat", "flat"])
    if kind == "none":
        return []
    falls = [1.0, 1.0, 1.0] if kind == "falls" else [1.0, 0.02, 0.01, 0.01, 0.0]
    loss, found = 10.0, [[0.0, 10.0, 400.0]]
    for k, fall in enumerate(falls, 1):
        loss = round(loss - fall, 6)
        found.append([100.0 * k, loss, 400.0 + 20.0 * k])
    return found


def _memory(draw: random.Random) -> Json:
    found: Json = {}
    if draw.random() < 0.5:
        found[WATCHED] = float(draw.choice([1, 2]))
        if draw.random() < 0.7:
            found[CONVERGED] = 1.0
    if draw.random() < 0.3:
        found[FORGIVEN] = 3500.0
    return found


def _history(draw: random.Random) -> list[Json]:
    """What finished jobs of two models took."""
    rate = draw.choice([1.0, 3.0])
    small: Json = {"model": "small", "steps": 800.0, "duration_s": 300.0, "rates": [[0, 1, rate], [0, 2, 1.7 * rate]]}
    large: Json = {"model": "large", "steps": 30000.0, "duration_s": 6000.0, "rates": [[0, 1, 5.0]]}
    return [small, small, large][: draw.randint(1, 3)]
