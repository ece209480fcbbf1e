"""Counts of replicas, for people."""

import pytest

from elastic_tfjob.api.words import count_in_words, counts_in_words
from elastic_tfjob.controller.model.target import words
from elastic_tfjob.scheduling.reasons import Reason


@pytest.mark.parametrize(
    ("count", "replica_type", "said"),
    [
        (1, "Worker", "1 worker"),
        (8, "Worker", "8 workers"),
        (0, "Worker", "0 workers"),
        (2, "Evaluator", "2 evaluators"),
        (1, "Chief", "1 chief"),
        (1, "Master", "1 master"),
        (1, "PS", "1 PS"),
        (3, "PS", "3 PS"),
        (2, "Unheard", "2 Unheard"),
    ],
)
def test_counts_of_replicas_in_words(count: int, replica_type: str, said: str) -> None:
    assert count_in_words(count, replica_type) == said


def test_types_without_a_replica_are_left_out() -> None:
    assert counts_in_words({"Worker": 2, "PS": 0, "Chief": 1}) == "2 workers + 1 chief"
    assert counts_in_words({"Worker": 0}) == "nothing"


def test_events_and_reasons_say_it_so() -> None:
    assert words({"Worker": 8, "Chief": 1, "PS": 2}) == "1 chief + 2 PS + 8 workers"
    assert str(Reason("makes-room", {"job": "j", "has": {"Worker": 1}})) == (
        "makes room for j, which has 1 worker, less than it declares"
    )
    assert "spec has 3 workers" in str(Reason("requested-size", {"spec": {"Worker": 3}}))
