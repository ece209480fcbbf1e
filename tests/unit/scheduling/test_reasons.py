"""Reasons are codes with facts; one module words them."""

from typing import get_args

import pytest

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.reasons import WORDS, Code, Reason, added, as_reason, sized
from harness.effort import effort

from .recorded import CASES, applies, built, read

MOST_FACTS, MOST_NAMES, LONGEST = 16, 64, 253


def test_each_code_has_words_even_without_facts() -> None:
    assert set(WORDS) == set(get_args(Code))
    for code in WORDS:
        assert str(Reason(code)) or code in ("own", "lost")


def reasons_of(plan: Plan) -> list[Reason]:
    given = [target.why for target in plan.changes.values()]
    return [*given, *plan.waiting.values(), *plan.kept.values(), *(loan.reason for loan in plan.loans)]


@pytest.mark.parametrize("case", CASES)
def test_every_decision_of_a_profile_has_a_code_and_bounded_facts(case: str) -> None:
    name, settings = CASES[case]
    profile, seen = build(name, parse_profile(name, settings)), 0
    for each in read()[:: effort(4, 1)]:  # test_recorded.py has the same plans on all of them
        snapshot = built(each["snapshot"])
        if not applies(case, snapshot):
            continue
        for reason in reasons_of(schedule(snapshot, profile)):
            seen += 1
            assert reason.code != "own"
            assert 0 < len(str(reason)) < 500
            assert len(reason.facts) <= MOST_FACTS
            for fact in reason.facts.values():
                if isinstance(fact, str):
                    assert len(fact) <= LONGEST
                elif not isinstance(fact, int | float):
                    assert len(fact) <= MOST_NAMES
                    assert all(isinstance(name, str) and len(name) <= LONGEST for name in fact)
    assert seen > 10


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Reason("short", {"cpu": 2500, "cpu_free": 400}), "needs 2.5 CPU, 0.4 free"),
        (
            Reason("short", {"accelerators": 2, "accelerators_free": 0, "memory": 3 << 30, "memory_free": 1 << 29}),
            "needs 2 accelerators, 0 free; 3.0 GiB, 0.5 GiB free",
        ),
        (
            Reason("short", {"pods": 2, "pods_free": 1, "storage": 2 << 30, "storage_free": 0}),
            "needs 2 pods, 1 free; 2.0 GiB of ephemeral storage, 0.0 GiB free",
        ),
        (Reason("lost", {"gone": ("a", "b")}), "a and b are gone"),
        (
            Reason("lost", {"cordoned": ("a", "b"), "refused": ("c", "d")}),
            "a and b are cordoned; c and d reject its pods",
        ),
        (
            Reason("requested-size", {"annotations": {"target-workers": 3}, "spec": {"PS": 2}}),
            "requested size: target-workers=3, spec has 2 PS",
        ),
        (
            Reason("no-space-for-names", {"reason": "best effort"}),
            "best effort; kube-scheduler chooses nodes: the job's annotations leave no room for their names",
        ),
        (
            Reason("lost", {"gone": ("a",), "cordoned": ("b",), "by": "", "fewer": True}),
            "a is gone; b is cordoned; its size is outside its bounds; no room for as many replicas",
        ),
        (
            Reason("lost", {"refused": ("a",), "gone": (), "kube_scheduler": "taints"}),
            "a rejects its pods (kube-scheduler: taints)",
        ),
        (Reason("makes-room", {"job": "j", "waits_s": 31.4}), "makes room for j, which has waited for 31 s"),
        (Reason("makes-room", {"job": "j", "by": "scaled"}), "makes room for j: scaled"),
        (
            Reason("makes-room", {"job": "j", "has": {"Worker": 1}}),
            "makes room for j, which has 1 worker, less than it declares",
        ),
        (
            Reason("makes-room", {"job": "j", "by": "", "idle": 0.125}),
            "workers use 12% of their CPU, makes room for j: its size is outside its bounds",
        ),
        (
            Reason("busy", {"use": {"PS": 1.0, "Worker": 0.94}, "idle_millicores": 900, "gain": 0.89}),
            "workers use 94% of their CPU and PS use 100% of their CPU; 900m CPU of its nodes are idle; "
            "expected to be 89% faster",
        ),
        (
            Reason("cpu", {"had": {"Worker": 200, "PS": 100}, "has": {"Worker": 300, "PS": 150}, "use": {"PS": 0.9}}),
            "CPU in place: Worker 200m -> 300m, PS 100m -> 150m (90 % used)",
        ),
        (Reason("profile-fails", {"profile": "mine"}), "profile mine fails, so no job is scheduled"),
        (Reason("slower", {"there": 12.345, "here": 9.0}), "was faster with fewer replicas: 12.3 steps/s, now 9"),
        (
            Reason("deadline-missed", {"needs_s": 100.0, "largest": {"Worker": 4}, "left_s": 9.6}),
            "best effort, its deadline cannot be met: needs 100 s even with 4 workers, has 10 s",
        ),
        (Reason("dominant-share", {"minimum": True}), "fair share (dominant resource): no room even for its minimum"),
        (
            Reason("dominant-share", {"no_nodes": {"PS": 1, "Worker": 2}}),
            "fair share (dominant resource): 1 PS + 2 workers cannot be placed",
        ),
        (
            Reason("keeps", {"was": {"Worker": 1, "PS": 2}, "now": {"Worker": 3, "PS": 1}}),
            "Worker 1 -> 3, PS 2 -> 1: keeps what it has",
        ),
    ],
)
def test_words(reason: Reason, words: str) -> None:
    assert str(reason) == words


def test_words_of_a_profiles_own() -> None:
    own = as_reason("since I say so")
    assert (own.code, str(own)) == ("own", "since I say so")
    assert len(str(as_reason("x" * 10_000))) == 1024
    assert str(added("since", kube_scheduler="taints")) == "since (kube-scheduler: taints)"
    assert sized("since", {"Worker": 1}, {"Worker": 2}) == as_reason("since")


def test_sizes_belong_to_a_reason_only_where_they_differ() -> None:
    reason = Reason("busy", {"gain": 1.0})
    changed = sized(reason, {"Worker": 1, "PS": 0}, {"Worker": 2})
    assert changed.facts == {"gain": 1.0, "was": {"Worker": 1}, "now": {"Worker": 2}}
    assert sized(changed, {"Worker": 1}, {"Worker": 1}) == reason
    assert sized(changed, {}, {"Worker": 1}) == reason
    assert sized(reason, {"Worker": 1}, {}) == reason
