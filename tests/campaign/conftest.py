"""The campaign's tests run on virtual clocks."""

from collections.abc import Iterator

import pytest

from campaign.world import campaign


@pytest.fixture(autouse=True)
def _virtual() -> Iterator[None]:
    with campaign():
        yield
