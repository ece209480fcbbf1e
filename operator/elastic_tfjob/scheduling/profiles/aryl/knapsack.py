"""How many flexible replicas each job gets: the multiple-choice knapsack of Aryl's second phase. Pure."""

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["Item", "allot"]

Item = tuple[float, float]
"""What this many more replicas take, and the time that they save. Both above nothing; weights rise within a group."""


def allot(groups: Sequence[Sequence[Item]], capacity: float) -> list[int]:
    """How many items of each group are chosen, 0 for none: item k - 1 stands for k replicas.

    Greedy along the concave hull of each group: steps from corner to corner by time saved per weight, as long as they
    fit; what is left after that to items between corners. The same steps solve the linear relaxation, so less than the
    first step that did not fit is lost.
    """
    edges = []
    for g, items in enumerate(groups):
        points = [(0.0, 0.0), *items]
        for a, b in pairwise(corners(points)):
            weight, value = points[b][0] - points[a][0], points[b][1] - points[a][1]
            edges.append((-value / weight, g, a, b, weight))
    edges.sort()
    chosen, left = [0] * len(groups), capacity
    short = []
    for _, g, a, b, weight in edges:
        if chosen[g] == a and weight <= left:
            chosen[g], left = b, left - weight
        elif chosen[g] == a:
            short.append(g)
    for g in short:
        points = [(0.0, 0.0), *groups[g]]
        at = chosen[g]
        fitting = [k for k in range(at + 1, len(points)) if points[k][0] - points[at][0] <= left]
        best = max(fitting, key=lambda k: points[k][1], default=at)
        if points[best][1] > points[at][1]:
            chosen[g], left = best, left - (points[best][0] - points[at][0])
    return chosen


def corners(points: Sequence[Item]) -> list[int]:
    """Which of these points are corners of the least concave line above all, as long as it rises."""
    kept: list[int] = []
    for k, (x, y) in enumerate(points):
        if kept and y <= points[kept[-1]][1]:
            continue
        while len(kept) > 1:
            (ax, ay), (bx, by) = points[kept[-2]], points[kept[-1]]
            if (y - by) * (bx - ax) < (by - ay) * (x - bx):
                break
            kept.pop()
        kept.append(k)
    return kept
