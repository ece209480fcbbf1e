"""Trainings without a part, of which bench_dl2_ablations.py shows what it was worth."""

import pytest
from click.testing import CliRunner
from rich.console import Console

import bench_dl2_ablations as bench
from elastic_tfjob.learning.training import RIVALS, feature_mask
from elastic_tfjob.scheduling.profiles.dl2.network import JOB_FEATURES, SIZE_FEATURES


def test_each_feature_is_left_out_by_some_training() -> None:
    assert {name for names in bench.FEATURES.values() for name in names} == {*SIZE_FEATURES, *JOB_FEATURES}


@pytest.mark.parametrize(("group", "name"), bench.ALL)
def test_a_training_without_a_part_is_another_one(group: str, name: str) -> None:
    plans = bench.PLANS[group]
    assert [other for other, plan in plans.items() if plan == plans[name]] == [name]
    assert (feature_mask(plans[name]) == 0).any() == bool(plans[name].without)


def test_the_table_has_means_and_spreads_over_training_seeds() -> None:
    group, name = bench.ALL[0]
    rows = [
        {"group": group, "name": name, "cpu_s": 10.0 * k, "change": dict.fromkeys(RIVALS, 0.01 * k)} for k in (1, 3)
    ]
    console = Console(record=True, width=200)
    console.print(bench.table(rows))
    assert "+2.0 (+1.0 to +3.0)" in console.export_text()


def test_an_unknown_group_is_refused() -> None:
    done = CliRunner().invoke(bench.main, ["--groups", "other"])
    assert done.exit_code == 2
    assert "no group other" in done.output
