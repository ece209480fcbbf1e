"""The reference pages say what the code does."""

import json
from pathlib import Path

from elastic_tfjob.controller.model.catalogue import EVENTS
from elastic_tfjob.exporter.status import status
from elastic_tfjob.runtime import protocol
from elastic_tfjob.scheduling.profiles import all_profiles
from harness.packages import install_small_first

from . import reference


def test_pages_are_as_the_code_says() -> None:
    assert reference.old() == [], "make reference"


def test_pages_have_no_profile_of_an_installed_package(site: Path) -> None:
    install_small_first(site)
    assert "small-first" in all_profiles()
    assert not [place for place, text in reference.pages().items() if "small-first" in text]


def test_each_event_of_the_code_is_in_the_catalogue() -> None:
    found = reference.reasons_in_code()
    assert {"Rescaled", "SuccessfulCreatePod", "ResizeRefused", "TFJobFailed"} <= found, "the search finds nothing"
    assert found <= EVENTS.keys()


def test_each_event_of_the_catalogue_is_in_the_code() -> None:
    kinds = ("Pod", "Service", "PodGroup", "PodDisruptionBudget")
    found = reference.reasons_in_code()
    found |= {reason.removesuffix("Pod") + kind for reason in found if reason.endswith("Pod") for kind in kinds}
    assert EVENTS.keys() <= found


def test_status_has_the_keys_that_an_exporter_answers_with(tmp_path: Path) -> None:
    said = {
        "prepared": {"generation": 1},
        "switch": {"generation": 1},
        "saved": {"request": 1},
        "start": {"way": "exec"},
        "preparation": {"generation": 1},
    }
    (tmp_path / protocol.LAUNCHER).write_text(json.dumps(said))
    (tmp_path / protocol.PROGRESS).write_text(json.dumps({"checkpoint": {"step": 1}}))
    answer = status(tmp_path)
    within = {f"{key}.{each}" for key, value in answer.items() if isinstance(value, dict) for each in value}
    assert {row[0].strip("`") for row in reference.status_rows()} == answer.keys() | within
