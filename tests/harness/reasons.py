"""Reasons as the operator stores them, a code with facts, in the words that people read."""

from collections.abc import Mapping
from typing import Any

from elastic_tfjob.api.reading import Fields
from elastic_tfjob.scheduling.reasons import read_reason

__all__ = ["reason_of"]


def reason_of(stored: Mapping[str, Any]) -> str:
    """The sentence of the reason in a target, or in a part of a state."""
    return str(read_reason(Fields(dict(stored))))
