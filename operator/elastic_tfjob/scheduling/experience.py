"""Experience: what a round saw and decided, as one line of JSON from which a policy can learn later.

State and action of DL2 (Peng et al., arXiv 1909.06040, section 4.1) follow from it: features and allowed actions from
the speeds, bounds and steps of each job, the action from the size that it gets. Later lines show what was carried out,
and the progress that followed.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from elastic_tfjob.api.reading import (
    MAX_BYTES,
    MAX_DURATION_S,
    MAX_ENTRIES,
    MAX_RATE,
    MAX_REPLICAS,
    MAX_STEPS,
    MAX_TEXT,
    MAX_WORD,
    Fields,
    Lenient,
)
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, ReplicaGroup, counts_of
from elastic_tfjob.scheduling.steps.hull import bounds
from elastic_tfjob.speed.model import known_sizes
from elastic_tfjob.speed.optimus import OnlineSpeed

__all__ = ["MOST_JOBS", "MOST_LINE_BYTES", "ExperienceJob", "ExperienceRound", "as_line", "of_line"]

VERSION: Final = 1
MOST_JOBS: Final = 1000
"""Maximum number of jobs per line, the earliest arrivals first, so that writing a line does not slow the round."""
MOST_LINE_BYTES: Final = 8 << 20
_ROOM_BYTES: Final = 4 << 20
"""The part of a line's bytes that is kept for everything except jobs."""
_MOST_NODES: Final = 10_000
_GROUPS: Final = 8
_LATEST_S: Final = float(MAX_DURATION_S) * 10


@dataclass(frozen=True, slots=True)
class ExperienceJob:
    """A job in a round. `has`: its size before; `gets`: the decision. `speeds`: (PSs, workers, steps per second) of the
    sizes whose speed was known."""

    job: str
    arrival_s: float
    model: str
    groups: tuple[ReplicaGroup, ...]
    resizable: bool
    steps: float
    total_steps: float | None
    has: Counts
    gets: Counts
    speeds: tuple[tuple[int, int, float], ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class ExperienceRound:
    """A round at `now`. `nodes`: kinds of nodes by free resources, and how many there are. `slot_s`: the time between
    changes of size. `unreadable`: the number of jobs that were skipped."""

    now: float
    slot_s: float
    nodes: tuple[tuple[Resources, int], ...]
    jobs: tuple[ExperienceJob, ...]
    unreadable: int = 0


def as_line(plan: Plan, slot_s: float) -> str:
    """One line, without its end. `slot_s`: the profile's interval."""
    snapshot = plan.snapshot
    kinds = {job.spec.constraints for job in snapshot.jobs.values()}
    ours = [node for node in snapshot.nodes.values() if node.loan in ("own", "loaned")]
    # Without nodes where no job may run, such as a control plane's.
    nodes = Counter(node.free for node in ours if any(kind.admit(node.labels, node.taints) for kind in kinds))
    said = {
        "version": VERSION,
        "at": snapshot.now,
        "slot": slot_s,
        "nodes": [{"free": list(free), "number": number} for free, number in nodes.most_common(_MOST_NODES)],
    }
    jobs, left = list[str](), MOST_LINE_BYTES - _ROOM_BYTES
    for job in islice(snapshot.jobs.values(), MOST_JOBS):
        try:
            text = _dumped(_of_job(job, plan))
        except (ValueError, OverflowError):  # NaN or infinite: the other jobs are still written
            continue
        left -= len(text) + 1
        if left < 0:
            break
        jobs.append(text)
    return f'{_dumped(said)[:-1]},"jobs":[{",".join(jobs)}]}}'


def _dumped(content: object) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _of_job(job: Job, plan: Plan) -> dict[str, Any]:
    spec, target = job.spec, plan.changes.get(job.key)
    return {
        "job": spec.key,
        "arrival": spec.arrival_s,
        "model": spec.model,
        "groups": [
            {"type": g.type, "request": list(g.request), "count": g.count, "min": g.minimum, "max": g.maximum}
            for g in spec.groups
        ],
        "resizable": spec.resizable,
        "steps": min(job.steps_at(plan.snapshot.now), MAX_STEPS),
        "total": spec.total_steps,
        "has": dict(job.counts),
        "gets": counts_of(target.nodes) if target is not None else dict(job.counts),
        "speeds": [{"ps": p, "workers": w, "rate": rate} for p, w, rate in _speeds(job)],
        "why": str(target.reason) if target is not None else "",
    }


def _speeds(job: Job) -> Iterable[tuple[int, int, float]]:
    """The known speeds: in a live cluster the measured ones; in a simulation with the oracle, all."""
    speed = job.speed
    if isinstance(speed, OnlineSpeed):
        return islice(((p, w, rate) for (p, w), rate in speed.measured.items()), MAX_ENTRIES)
    if speed is None or job.spec.group(WORKER) is None:
        return ()
    found = known_sizes(speed, bounds(job.spec, PS), bounds(job.spec, WORKER))
    rows = zip(found.ps.tolist(), found.workers.tolist(), found.steps_per_s.tolist(), strict=True)
    return islice(rows, MAX_ENTRIES)


def of_line(line: str) -> ExperienceRound:
    """Parses a line. Raises ValueError that names the position and the cause of an error. An invalid job is skipped,
    and the line's other jobs are kept."""
    if len(line) > MOST_LINE_BYTES:
        raise ValueError(f"the line has more than {MOST_LINE_BYTES} bytes")
    try:
        fields = Fields(json.loads(line))
    except RecursionError as error:
        raise ValueError("the line is nested too deeply") from error
    if fields.whole("version", 2**31) != VERSION:
        raise fields.wrong("version", f"{VERSION}, the supported version")
    now, slot_s = _measured(fields, "at", _LATEST_S), _measured(fields, "slot", MAX_DURATION_S)
    nodes = [(_resources(each, "free"), each.whole("number", _MOST_NODES)) for each in fields.objects("nodes", 10_000)]
    reading = Lenient()
    jobs = [reading(_job, fields, raw) for raw in fields.items("jobs", MOST_JOBS)]
    return ExperienceRound(
        now, slot_s, tuple(nodes), tuple(job for job in jobs if job is not None), len(reading.problems)
    )


def _job(fields: Fields, raw: object) -> ExperienceJob:
    return _seen(Fields(raw, fields.place("jobs")))


def _seen(fields: Fields) -> ExperienceJob:
    groups = tuple(
        ReplicaGroup(
            each.text("type", MAX_WORD),
            _resources(each, "request"),
            each.whole("count", MAX_REPLICAS),
            each.whole("min", MAX_REPLICAS),
            each.whole("max", MAX_REPLICAS),
        )
        for each in fields.objects("groups", _GROUPS)
    )
    if any(not group.minimum <= group.maximum for group in groups):
        raise fields.wrong("groups", "a list of groups whose min is at most their max")
    speeds = []
    for each in fields.objects("speeds"):
        rate = _measured(each, "rate", MAX_RATE)
        speeds.append((each.whole("ps", MAX_REPLICAS), each.whole("workers", MAX_REPLICAS), rate))
    return ExperienceJob(
        fields.text("job"),
        _measured(fields, "arrival", _LATEST_S),
        fields.text("model"),
        groups,
        bool(fields.flag("resizable")),
        _measured(fields, "steps", MAX_STEPS),
        fields.number("total", MAX_STEPS),
        _counts(fields, "has"),
        _counts(fields, "gets"),
        tuple(speeds),
        fields.text("why", MAX_TEXT),
    )


def _measured(fields: Fields, name: str, most: float) -> float:
    found = fields.number(name, most)
    if found is None:
        raise fields.wrong(name, f"a number from 0 to {most:g}")
    return found


def _resources(fields: Fields, name: str) -> Resources:
    found = fields.items(name, len(Resources._fields))
    if len(found) != len(Resources._fields) or any(type(n) is not int or not 0 <= n <= MAX_BYTES for n in found):
        raise fields.wrong(name, f"a list of {len(Resources._fields)} amounts")
    return Resources(*found)


def _counts(fields: Fields, name: str) -> Counts:
    within = fields.within(name)
    return {} if within is None else {type_: within.whole(type_, MAX_REPLICAS) for type_ in within.names(_GROUPS)}
