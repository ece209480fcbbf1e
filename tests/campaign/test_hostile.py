"""A minute of hostile tenants beside a bystander; `make campaign` has more of them."""

from pathlib import Path
from random import Random

import pytest

from harness.effort import effort

from .hostile import campaign
from .hostile_inputs import answer, corpus, generated
from .statusservers import KINDS

THOUSANDS = "C5: 2,000 plain workers"
"""It takes long to make and to delete that many pods; unit/test_large_jobs.py bounds what such a job costs."""


@pytest.mark.timeout(600)
def test_hostile_tenants_do_no_harm(tmp_path: Path) -> None:
    found = campaign(
        tmp_path,
        budget_s=effort(5, 45),
        seed=20261122,
        known=16,
        left_out=effort((THOUSANDS,), ()),
        patience=4,  # other tests want the CPU
    )
    told = [f"{each.what}: {each.detail} <- {each.family} {each.input}" for each in found.violations.values()]
    assert not told, "\n".join(told)
    assert found.inputs >= 28, "the corpus was not sent"
    assert found.restarts == 0
    assert found.recovered > 0, "no job was made good again, so nothing was shown about that"
    assert found.questions > 0, "no hostile server was asked"
    assert found.starts_s, "the bystander did nothing"
    assert found.reported_s, "the bystander did nothing"


def test_the_same_seed_sends_the_same_inputs() -> None:
    one, two = ([generated(f"h{n}", random) for n in range(300)] for random in (Random(5), Random(5)))
    assert [each.text() for each in one] == [each.text() for each in two]
    assert len({each.family for each in one}) == 7
    names = [each.job for each in corpus("known")]
    assert len(names) == len(set(names))


def test_every_way_to_answer_is_generated() -> None:
    random = Random(5)
    assert {answer(random).kind for _ in range(1000)} == {*KINDS, "json"}
