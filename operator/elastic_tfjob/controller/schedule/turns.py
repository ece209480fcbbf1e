"""Whose turn it is, where there is more to do for jobs than is done at once. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from elastic_tfjob.controller.objects.parsing import Key

__all__ = ["in_turn"]


def in_turn(keys: Iterable[Key], served: Mapping[str, int]) -> list[Key]:
    """These jobs so that one of each namespace comes after the other: however many jobs a tenant has, those of others
    do not wait for all of them. Within a namespace their order stays. `served` says when a namespace had a turn last,
    by a number that grows; whose turn is the longest ago (or who had none) comes first."""
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int, int, Key]] = []
    for n, key in enumerate(keys):
        ranked.append((seen[key[0]], served.get(key[0], -1), n, key))
        seen[key[0]] += 1
    return [key for *_, key in sorted(ranked)]
