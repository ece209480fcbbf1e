"""How much of the cluster each team deserves: weighted max-min fairness by dominant share, with demand as the cap.

Water filling (Ghodsi et al., NSDI'11, section 4): all teams rise together, in proportion to their weights, from their
guarantees, until they have what they ask for or a resource that they ask for is used up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from elastic_tfjob.scheduling.resources import Resources

__all__ = ["Ask", "deserved", "with_growth"]

Vector = tuple[float, float, float]

TINY: Final = 1e-12
"""Parts of a resource that a rounding error may hide."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a team asks for. `demand`: the sum of its jobs' declared sizes; `most`: of their largest sizes. `guarantee`
    and `limit` are dominant shares, 0 to 1."""

    demand: Resources
    most: Resources
    weight: float = 1.0
    guarantee: float = 0.0
    limit: float = 1.0


def deserved(asks: Mapping[str, Ask], total: Resources) -> dict[str, float]:
    """The dominant share of `total` that each team deserves. The guarantees must not add up to more than 1."""
    rises = []
    for ask in asks.values():
        wants = ask.demand.dominant_share(total)
        cap = min(wants, ask.limit)
        rises.append(_Rise(ask.weight, min(cap, ask.guarantee), cap, _per_share(ask.demand, total, wants)))
    left = [1.0] * 3
    for rise in rises:
        for r in range(3):
            left[r] -= rise.start * rise.per_share[r]
    return dict(zip(asks, _filled(rises, left), strict=True))


def with_growth(asks: Mapping[str, Ask], total: Resources, declared: Mapping[str, float]) -> dict[str, float]:
    """The dominant share of each team if growth beyond the declared sizes shares what these leave. `declared`: the
    result of `deserved`."""
    rises, left = [], [1.0] * 3
    for name, ask in asks.items():
        has = declared[name]
        wants, most = ask.demand.dominant_share(total), ask.most.dominant_share(total)
        rises.append(_Rise(ask.weight, has, max(has, min(most, ask.limit)), _per_share(ask.most, total, most)))
        for r, part in enumerate(_per_share(ask.demand, total, wants)):
            left[r] -= has * part
    return dict(zip(asks, _filled(rises, [max(0.0, part) for part in left]), strict=True))


@dataclass(frozen=True, slots=True)
class _Rise:
    """A team that rises from `start` to at most `cap`. `per_share`: what it takes of each resource, per share."""

    weight: float
    start: float
    cap: float
    per_share: Vector


def _per_share(demand: Resources, total: Resources, share: float) -> Vector:
    cpu, memory, accelerators = (
        mine / all_ / share if all_ > 0 and share > 0 else 0.0 for mine, all_ in zip(demand[:3], total[:3], strict=True)
    )
    return cpu, memory, accelerators


def _filled(rises: Sequence[_Rise], left: list[float]) -> list[float]:
    """The shares once all have risen. A team rises from the level `start / weight` on, up to `cap / weight`: the level
    goes from one of these events to the next, or to where a resource is used up, which stops all that ask for it."""
    shares = [rise.start for rise in rises]
    events = sorted(
        event
        for k, rise in enumerate(rises)
        if rise.cap > rise.start
        for event in ((rise.start / rise.weight, 0, k), (rise.cap / rise.weight, 1, k))
    )
    rising, stopped = set[int](), set[int]()
    level, at = 0.0, 0
    speed = [0.0] * 3
    while at < len(events):
        until, ends, k = events[at]
        if k in stopped:
            at += 1
            continue
        full, room = -1, inf
        for r in range(3):
            if speed[r] > TINY and max(0.0, left[r]) / speed[r] < room:
                full, room = r, max(0.0, left[r]) / speed[r]
        if room < until - level:
            level += room
            left = [part - room * each for part, each in zip(left, speed, strict=True)]
            left[full] = 0.0
            for n, rise in enumerate(rises):
                if rise.per_share[full] > 0:
                    stopped.add(n)
                    if n in rising:
                        rising.remove(n)
                        shares[n] = min(rise.cap, level * rise.weight)
            speed = _speed(rises, rising)
            continue
        left = [part - (until - level) * each for part, each in zip(left, speed, strict=True)]
        level = until
        if ends:
            rising.remove(k)
            shares[k] = rises[k].cap
        else:
            rising.add(k)
        speed = _speed(rises, rising) if len(rises) < MANY else _changed(speed, rises[k], -1 if ends else 1)
        at += 1
    return shares


MANY: Final = 64
"""From this many teams on the speed is updated instead of summed up again, which is exact only to the last digits."""


def _speed(rises: Sequence[_Rise], rising: set[int]) -> list[float]:
    return [sum(rises[n].weight * rises[n].per_share[r] for n in sorted(rising)) for r in range(3)]


def _changed(speed: Sequence[float], rise: _Rise, sign: int) -> list[float]:
    return [each + sign * rise.weight * part for each, part in zip(speed, rise.per_share, strict=True)]
