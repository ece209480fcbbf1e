"""What deadlines leave over goes where it brings most."""

from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

import numpy as np

from elastic_tfjob.scheduling.profiles.deadline.curves import prior
from elastic_tfjob.scheduling.profiles.deadline.outlook import Case, Outlook
from elastic_tfjob.scheduling.toolkit.cost import time_left_s

__all__ = ["share_rest"]

LEAST_S: Final = 1.0
"""A job that is about to end counts as if it had this left."""


def share_rest(outlook: Outlook) -> None:
    """To the job whose speed, relative to what it has left, gains most for the share of the cluster, size by size.

    So short jobs come before long ones, and a second worker before a tenth. The gain grows with the age of the job
    over the time that it needs (highest response ratio next, Brinch Hansen, 1971), so that nobody waits for ever.
    """
    settings, now = outlook.settings, outlook.round.now
    free = np.array(outlook.room_now(), dtype=np.float64)
    usual = _usual_s(outlook.cases)
    heap: list[tuple[float, int, int]] = []
    values: list[float] = []
    for k, case in enumerate(outlook.cases):
        if case.probe and case.row:
            values.append(0.0)
            continue
        if case.probe:
            case.most = max(1, case.current) if case.most is None else case.most
        left_s = max(LEAST_S, _left_s(case, now, usual))
        rates = case.curve.rates
        value = (1 + max(0.0, now - case.job.spec.arrival_s) / left_s) / (left_s * rates[1])
        values.append(value)
        found = _next(case, value, free, settings.keep, settings.min_gain)
        if found is not None:
            heap.append((-found[0], k, found[1]))
    heapify(heap)
    while heap:
        _, k, row = heappop(heap)
        case = outlook.cases[k]
        more = case.curve.demand[row] - case.curve.demand[case.row]
        if (more <= free).all():
            free -= more
            case.row = row
        found = _next(case, values[k], free, settings.keep, settings.min_gain)
        if found is not None:
            heappush(heap, (-found[0], k, found[1]))


def _next(case: Case, value: float, free: np.ndarray, keep: float, min_gain: float) -> tuple[float, int] | None:
    """(gain, row) of the best larger size that fits; None where there is none that pays."""
    curve, row, current = case.curve, case.row, case.current
    rates, share = curve.rates, curve.share
    if row + 1 >= len(rates) or (case.most is not None and row >= case.most):
        return None
    gains = (rates[row + 1 :] - rates[row]) / (share[row + 1 :] - share[row] + 1e-12) * value
    fits = (curve.demand[row + 1 :] - curve.demand[row] <= free).all(axis=1)
    gains = np.where(fits, gains, -inf)
    if case.most is not None:
        gains[max(0, case.most - row) :] = -inf
    if current:
        if row < current:
            # What it has costs no pause; beyond that it goes only from there.
            here = current - row - 1
            gains[here + 1 :] = -inf
            gains[: here + 1] *= 1 + keep
        else:
            need, now_s = case.need, case.need.left / rates[current] + case.need.delay_s
            then_s = need.left / rates[row + 1 :] + need.delay_s + need.pause_s
            pays = (rates[row + 1 :] >= rates[current] * (1 + min_gain)) & ((then_s < now_s) | ~np.isfinite(now_s))
            gains = np.where(pays, gains, -inf)
    best = int(gains.argmax())
    return (float(gains[best]), row + 1 + best) if gains[best] > 0 else None


def _left_s(case: Case, now: float, usual: float) -> float:
    """Seconds that the job has left at its least size; where nothing tells that, what is usual, but no less than it has
    run so far."""
    if case.curve.known and case.need.left < inf:
        return case.need.left / float(case.curve.rates[1])
    if not case.curve.known:
        case.curve = prior(case.curve)
    lasts = time_left_s(case.job, now)
    return lasts if case.job.spec.duration_s is not None and case.job.spec.total_steps is None else max(usual, lasts)


def _usual_s(cases: list[Case]) -> float:
    """What jobs that are known have left, in the mean."""
    known = [case.need.left / float(case.curve.rates[1]) for case in cases if case.curve.known and case.need.left < inf]
    return sum(known) / len(known) if known else LEAST_S
