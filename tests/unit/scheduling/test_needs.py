"""A profile declares what it needs of the world: here it is held to what its decisions read, and to what its plans do.

What nobody declares the live world is not asked for: a profile would decide on defaults without a word.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, get_args, get_origin

import pytest

from elastic_tfjob.scheduling import contract
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Assignment, Plan
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.profiles import PROFILES, build, parse_profile
from elastic_tfjob.scheduling.room import ANY_NODE
from elastic_tfjob.scheduling.rules import Need
from elastic_tfjob.scheduling.snapshot import Job, Snapshot

from .reads import recorded_reads
from .recorded import CASES, SEEDS, built, read

Json = dict[str, Any]
TOLD_BY: Final = {field: need for need, told in contract.TELLS.items() for field in told}
OTHERS: Final = {name: case for name, case in CASES.items() if not name.startswith(("fifo-backfill ", "drf "))}
"""Placements read nothing that they could be told."""


@pytest.fixture(scope="module")
def known() -> list[Snapshot]:
    """Two large ones, and those of jobs with a past."""
    made = [each["snapshot"] for each in read()]
    return [built(each) for each in (made[19], made[59], *made[len(SEEDS) :])]


def decides(profile: Profile, snapshots: Sequence[Snapshot]) -> tuple[set[Need], set[Need]]:
    """The needs that tell the fields which its decisions on these read, and those for what its plans do."""
    # Of views that are kept nothing would be read again.
    fresh = [Snapshot(each.now, each.nodes, each.jobs, each.seed, history=each.history) for each in snapshots]
    with recorded_reads() as reads:
        plans = [schedule(snapshot, profile) for snapshot in fresh]
    return {TOLD_BY[field] for field in reads & TOLD_BY.keys()}, {need for plan in plans for need in done(plan)}


def done(plan: Plan) -> Iterator[Need]:
    """What a world has to be able to do for this plan; what is mended in running jobs every world can."""
    if plan.loans:
        yield "loans"
    for key, target in plan.changes.items():
        job = plan.snapshot.jobs[key]
        if target.cpu and target.cpu != job.cpu:
            yield "cpu"
        if any(ANY_NODE in names for names in target.nodes.values()):
            yield "totals"
        if job.placement and not target.nodes:
            yield "stop"
        elif job.placement and target.cause not in ("repair", "asked"):
            if target.replicas != job.counts:
                yield "resize"
            if moves(job, target, plan.snapshot.nodes):
                yield "move"


def moves(job: Job, target: Assignment, nodes: Mapping[str, object]) -> bool:
    """Whether a replica that stays goes elsewhere, from a node that is there."""
    pairs = [(a, b) for t, names in job.placement.items() for a, b in zip(names, target.nodes.get(t, ()), strict=False)]
    return any(before != after and before in nodes for before, after in pairs)


def told(profile: Profile) -> set[Need]:
    return set(profile.needs & contract.TELLS.keys())


@pytest.mark.parametrize("case", OTHERS)
def test_a_profile_reads_what_its_needs_declare(case: str, known: list[Snapshot]) -> None:
    """Neither less nor more: on the recorded snapshots every field of every need that is declared is read by then."""
    name, settings = CASES[case]
    profile = build(name, parse_profile(name, settings))
    reads, does = decides(profile, known)
    assert sorted(reads) == sorted(told(profile))
    assert does <= profile.needs, "a plan does what nobody declared"


def variants() -> Iterator[tuple[str, Json]]:
    """Each profile with each other value of a parameter that switches something, or turns it on."""
    for name, model in PROFILES.items():
        for parameter, field in model.model_fields.items():
            values: tuple[Any, ...] = ()
            if field.annotation is bool:
                values = (not field.default,)
            elif get_origin(field.annotation) is Literal and parameter not in ("place", "reclaim"):
                values = tuple(value for value in get_args(field.annotation) if value != field.default)
            elif parameter in ("min_gain", "promote_knob"):
                values = (0.5,)
            yield from ((name, {parameter: value}) for value in values)


@pytest.mark.parametrize(("name", "settings"), variants(), ids=[f"{n} {s}" for n, s in variants()])
def test_needs_follow_the_parameters(name: str, settings: Json, known: list[Snapshot]) -> None:
    profile = build(name, parse_profile(name, settings))
    reads, does = decides(profile, known[::5])
    assert reads <= told(profile)
    assert does <= profile.needs, "a plan does what nobody declared"


def test_every_field_is_filled_in_both_worlds_or_has_a_need() -> None:
    """Both worlds fill it, or say what always stands there."""
    for kind, known in contract.FIELDS.items():
        for name, both in known.items():
            assert (both.live and both.simulated) or f"{kind}.{name}" in TOLD_BY, f"{kind}.{name}"
    for need, names in contract.TELLS.items():
        for field in names:
            kind, name = field.split(".")
            assert contract.FIELDS[kind][name].live or not contract.NEEDS[need].live, field
