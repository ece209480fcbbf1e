"""The reference pages say what the code does."""

from elastic_tfjob.controller.objects.catalogue import EVENTS

from . import reference


def test_pages_are_as_the_code_says() -> None:
    assert reference.old() == [], "make reference"


def test_each_event_of_the_code_is_in_the_catalogue() -> None:
    found = reference.reasons_in_code()
    assert {"Rescaled", "SuccessfulCreatePod", "ResizeRefused", "TFJobFailed"} <= found, "the search finds nothing"
    assert found <= EVENTS.keys()


def test_each_event_of_the_catalogue_is_in_the_code() -> None:
    kinds = ("Pod", "Service", "PodGroup")
    found = reference.reasons_in_code()
    found |= {reason.removesuffix("Pod") + kind for reason in found if reason.endswith("Pod") for kind in kinds}
    assert EVENTS.keys() <= found
