"""The profile `dl2`: sizes by the scores of a network, and what it does with weights that are none."""

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.profiles.dl2 import LearnedSizes, Moment, give
from elastic_tfjob.scheduling.profiles.dl2.features import best_gains, ends, known_of, slots_left
from elastic_tfjob.scheduling.profiles.dl2.network import (
    ENDS,
    NAMES,
    Network,
    WeightsError,
    as_bytes,
    flat,
    greedy,
    of_flat,
    parse,
    read,
)
from elastic_tfjob.scheduling.reasons import as_reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Job, Node
from elastic_tfjob.speed.model import Table
from elastic_tfjob.speed.optimus import believe
from harness.effort import effort

from .build import job, node, plan, rates, servers, sizes, snapshot, workers

TOTAL = Resources(100_000, 0, 100)
GREEDY = greedy(4)


def decided(network: Network, nodes: list[Node], jobs: list[Job], now: float = 0.0, **said: Any) -> Plan:
    """What this network decides."""
    profile = replace(build("dl2", parse_profile("dl2", said)), steps=(LearnedSizes(network),))
    return schedule(snapshot(nodes, jobs, now), profile)


def with_job_skip(feature: int, value: float) -> Network:
    skip = GREEDY.job_skip.copy()
    skip[feature] = value
    return replace(GREEDY, job_skip=skip)


def test_a_size_that_helps_little_does_not_end_the_search() -> None:
    j = job("j", workers(1, 1, 4), steps=100, speed=rates(1.0, 0.9, 3.0, 3.0))
    assert sizes(decided(GREEDY, [node("n", gpus=8)], [j])) == {"j": 3}


def test_no_slower_size_is_given_where_the_better_one_does_not_fit() -> None:
    j = job("j", workers(1, 1, 4), steps=10, speed=rates(1.0, 1.1, 1.05, 4.0))
    assert sizes(decided(GREEDY, [node("n", gpus=4)], [j])) == {"j": 4}
    assert sizes(decided(GREEDY, [node("n", gpus=3)], [j])) == {"j": 2}


def test_an_action_that_does_not_fit_leaves_the_others() -> None:
    """Workers need an accelerator each, of which there is one: PSs are still added."""
    speed = Table({(p, w): (p * w) ** 0.8 for p in (1, 2, 3) for w in (1, 2, 3)})
    j = job("j", servers(1, 1, 3), workers(1, 1, 3), steps=100, speed=speed)
    assert decided(GREEDY, [node("n", gpus=1, cpus=9)], [j]).changes["j"].replicas == {PS: 3, WORKER: 1}


def test_the_networks_scores_decide_the_order_of_jobs() -> None:
    """With a weight on what is left, long jobs come first, with the opposite short ones."""
    jobs = [
        job("short", workers(1, 1, 2), steps=100, speed=rates(1.0, 1.8)),
        job("long", workers(1, 1, 2), steps=100_000, speed=rates(1.0, 1.8), at=1),
    ]
    nodes = [node("n", gpus=3)]
    assert sizes(decided(with_job_skip(1, 1.0), nodes, jobs)) == {"short": 1, "long": 2}
    assert sizes(decided(with_job_skip(1, -1.0), nodes, jobs)) == {"short": 2, "long": 1}


def test_a_job_that_ends_within_the_slot_comes_last_where_sizes_stay_for_a_slot() -> None:
    """At its minimum `short` ends after a tenth of the slot, so a larger size saves little. If changes do not wait for
    slots, what it leaves is used at once, and both jobs gain alike."""
    jobs = [
        job("short", workers(1, 1, 2), steps=30, speed=rates(1.0, 1.9)),
        job("long", workers(1, 1, 2), steps=3000, speed=rates(1.0, 1.8), at=1),
    ]
    nodes = [node("n", gpus=3)]
    assert sizes(decided(GREEDY, nodes, jobs, interval_s=300, on_change=False)) == {"short": 1, "long": 2}
    assert sizes(decided(GREEDY, nodes, jobs, interval_s=300)) == {"short": 2, "long": 1}
    assert sizes(decided(with_job_skip(ENDS, 0.0), nodes, jobs, interval_s=300, on_change=False)) == {
        "short": 2,
        "long": 1,
    }


def test_the_slots_that_are_left() -> None:
    jobs = [job("j", workers(1, 1, 2), steps=steps, speed=rates(2.0, 3.0)) for steps in (600, None)]
    known = [known_of(j, TOTAL) for j in jobs]
    assert slots_left(jobs, known, 300.0, 0.0) == [1.0, float("inf")]
    assert slots_left(jobs, known, 0.0, 0.0) == [float("inf")] * 2
    assert known[0].speeds == (1.0, 1.5)
    assert ends(1.0, 1.0) == 0.0
    assert ends(0.1, 1.0) == pytest.approx(-1.0)
    assert ends(0.0, 1.0) == ends(1e-9, 1.0) == -3.0


def test_growth_stops_where_no_score_is_above_zero() -> None:
    j = job("j", workers(1, 1, 4), steps=100, speed=rates(1.0, 2.0, 3.0, 4.0))
    stays = replace(GREEDY, output_bias=np.full(3, -100.0))
    assert sizes(decided(stays, [node("n", gpus=8)], [j])) == {"j": 1}


def test_unknown_speed_stays_at_the_minimum() -> None:
    for speed in (None, Table({}), Table({(0, 3): 9.0})):
        assert sizes(decided(GREEDY, [node("n", gpus=8)], [job("j", workers(1, 1, 4), speed=speed)])) == {"j": 1}


def test_minima_come_first_in_order() -> None:
    jobs = [job(name, workers(2, 2, 4), speed=rates(1.0, 2.0, 3.0, 4.0), at=k) for k, name in enumerate("abc")]
    assert sizes(decided(GREEDY, [node("n", gpus=5)], jobs)) == {"a": 3, "b": 2}


TABLES = st.dictionaries(
    st.tuples(st.integers(1, 4), st.integers(1, 4)), st.floats(0.01, 100), min_size=1, max_size=16
).map(lambda found: Table({(1, 1): 1.0} | found))
NETWORKS = st.integers(0, 1000).map(
    lambda seed: of_flat(np.random.default_rng(seed).normal(0, 1, len(flat(GREEDY))), 4)
)


@settings(max_examples=effort(13, 40))
@given(NETWORKS, st.lists(TABLES, min_size=1, max_size=3), st.integers(1, 8), st.integers(2, 30))
def test_a_chosen_size_fits_and_no_smaller_one_is_faster_whatever_the_weights(
    network: Network, tables: list[Table], gpus: int, cpus: int
) -> None:
    rule = LearnedSizes(network)
    free = Resources(cpus * 1000, 0, gpus)
    jobs = [job(f"j{k}", servers(1, 1, 4), workers(1, 1, 4, cpus=1), speed=t) for k, t in enumerate(tables)]
    found = [rule.sizes_of(j, TOTAL) for j in jobs]
    rows = give(found, [Moment((0.0, 0.0, 0.0))] * len(jobs), free)
    held = [j.spec.demand(each.sizes[row - 1]) for j, each, row in zip(jobs, found, rows, strict=True) if row]
    assert Resources(*map(sum, zip(*held, strict=True))).within(free) if held else rows == [0] * len(jobs)
    for table, j, each, row in zip(tables, jobs, found, rows, strict=True):
        if row:
            has = table.rates.get(tuple(each.sizes[row - 1].get(t, 0) for t in (PS, WORKER)), 0.0)  # type: ignore[arg-type]
            others = [r for (p, w), r in table.rates.items() if within(j, (p, w), each.sizes[row - 1])]
            assert has >= max(others)


def within(j: Job, size: tuple[int, int], other: dict[str, int] | Any) -> bool:
    return j.spec.demand({PS: size[0], WORKER: size[1]}).within(j.spec.demand(other))


def test_the_best_gain_is_over_all_larger_sizes() -> None:
    """By hand: from 1 PS and 1 worker (speed 1) to 2 and 2 (speed 9) are (3 - 1) / 2 a replica, to 1 and 2 (speed 4)
    one more."""
    root = np.array([[1.0, 2.0], [1.0, 3.0]])
    replicas = np.array([[2.0, 3.0], [3.0, 4.0]])
    by_worker, by_ps, by_both = best_gains(root, replicas, np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    assert (by_worker[0, 0], by_ps[0, 0], by_both[0, 0]) == (1.0, 1.0, 1.0)
    assert (by_worker[1, 0], by_ps[0, 1]) == (2.0, 1.0)
    assert np.isneginf([by_worker[0, 1], by_ps[1, 0], by_both[1, 1]]).all()


def test_the_same_speeds_are_looked_at_once() -> None:
    a, b = (job(name, workers(1, 1, 3), speed=rates(1.0, 2.0, 2.5)) for name in "ab")
    assert known_of(a, TOTAL).features is known_of(b, TOTAL).features


def test_where_only_the_minimum_was_measured_it_decides_as_optimus() -> None:
    """As in the live benchmark, where no job ran at a second size."""
    nodes = [node("n", gpus=30, cpus=30)]
    jobs = [
        job(f"j{k}", servers(1, 1, 2), workers(1, 1, 3), steps=100 * (k + 1), speed=believe({(1, 1): 2.0}))
        for k in range(5)
    ]
    expected = sizes(plan("optimus", nodes, jobs, oracle=False))
    assert sizes(plan("dl2", nodes, jobs)) == expected
    assert sizes(plan("dl2", nodes, jobs, weights="/nowhere")) == expected


# Weights


def changed(**arrays: Any) -> bytes:
    """A file of the greedy network with other arrays; None leaves one out."""
    with np.load(io.BytesIO(as_bytes(GREEDY, {}))) as file:
        found = {name: file[name] for name in file.files}
    found |= arrays
    out = io.BytesIO()
    np.savez(out, **{name: each for name, each in found.items() if each is not None})
    return out.getvalue()


def test_weights_come_back_as_they_were_written() -> None:
    network = of_flat(np.random.default_rng(1).normal(0, 1, len(flat(GREEDY))), 4)
    assert flat(parse(as_bytes(network, {"seed": 1}))) == pytest.approx(flat(network), rel=1e-6)


NAN = GREEDY.hidden_bias * np.nan


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a valid .npz file"),
        (b"PK\x03\x04 what is this", "not a valid .npz file"),
        (changed(hidden=None), "lacks hidden"),
        (changed(hidden=GREEDY.hidden[:-1]), "hidden has the shape (13, 4) instead of (14, 4)"),
        (changed(hidden_bias=NAN), "not finite"),
        (changed(hidden_bias=np.full(4, 1e9)), "a number above 1000"),
        (changed(hidden_bias=np.full(4, 1)), "does not have floating-point numbers"),
        (changed(hidden_bias=np.zeros(0)), "0 hidden units"),
        (changed(metadata=np.array("{}")), "different format"),
        (changed(metadata=np.array("[")), "not JSON"),
        (changed(metadata=np.array(7)), "not text"),
        (changed(metadata=np.array(json.dumps({"format": 1, "actions": ["worker"]}))), "different actions"),
        (changed(hidden=np.array([{}], dtype=object)), "not a valid .npz file"),
        (changed(more=np.zeros(1 << 18)), "more than"),
    ],
)
def test_a_file_that_is_no_network_is_refused_with_a_message(content: bytes, said: str) -> None:
    with pytest.raises(WeightsError, match=said.replace("(", r"\(").replace(")", r"\)")):
        parse(content)


def test_an_archive_that_unpacks_to_too_much_is_refused_before_it_is_unpacked() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("hidden.npy", b"\0" * (4 << 20))
    assert len(out.getvalue()) < 1 << 20
    with pytest.raises(WeightsError, match="when unpacked"):
        parse(out.getvalue())


WHOLE = as_bytes(GREEDY, {})


@settings(max_examples=effort(15, 60))
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255), st.booleans())
def test_a_broken_file_gives_a_network_or_words(at: int, byte: int, cut_off: bool) -> None:
    content = WHOLE[:at] if cut_off else WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :]
    try:
        found = parse(content)
    except WeightsError:
        return
    assert [each.shape for each in found.arrays] == [each.shape for each in GREEDY.arrays]
    assert all(np.isfinite(each).all() for each in found.arrays)


@pytest.mark.parametrize("content", [None, b"", changed(hidden_bias=NAN)])
def test_without_a_network_it_does_what_hull_does_and_says_why(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "w.npz"
    if content is not None:
        file.write_bytes(content)
    j = job("j", workers(1, 1, 4), steps=100, speed=rates(1.0, 0.9, 3.0, 3.0))
    found = plan("dl2", [node("n", gpus=8)], [j], weights=str(file))
    assert sizes(found) == sizes(plan("hull", [node("n", gpus=8)], [j])) == {"j": 3}
    reason = as_reason(found.changes["j"].reason)
    assert reason.code == "gain-per-replica"
    assert "the learned policy cannot be used" in str(reason)
    assert "w.npz" in str(reason)


@pytest.mark.parametrize(
    ("path", "said"), [("/", "is not a file"), ("a\0b", "is not a valid path"), ("/x/y", "cannot be read")]
)
def test_a_path_of_no_file_is_said(path: str, said: str) -> None:
    found = read(path)
    assert isinstance(found, str)
    assert said in found


def test_the_shipped_network_is_used() -> None:
    found = plan("dl2", [node("n", gpus=8)], [job("j", workers(1, 1, 2), steps=100, speed=rates(1.0, 2.0))])
    assert as_reason(found.changes["j"].reason).code == "learned"


def test_names_are_those_of_the_arrays() -> None:
    assert len(NAMES) == len(GREEDY.arrays)
