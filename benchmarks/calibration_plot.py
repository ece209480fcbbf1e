"""How far the speeds that a profile expected are from those that jobs then had: a table and two SVGs, by cause."""

from collections.abc import Callable, Mapping, Sequence
from math import erf, log
from typing import Final

from rich.table import Table

from elastic_tfjob.simulation.report import errors_cdf
from elastic_tfjob.simulation.result import Compared
from elastic_tfjob.simulation.utilisation import by_cause
from result_table import result_table

__all__ = ["calibration_plot", "calibration_table", "interval_plot"]

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 560, 320, 60, 20, 130, 45
COLOURS: Final = ("#111827", "#0b6bcb", "#e0652f", "#1f9d6b", "#a04bd0", "#c79a00", "#d63d6b", "#2aa5b8")
GOAL: Final = 15.0
MOST: Final = 60.0
Points = list[tuple[float, float]]


def calibration_table(compared: Sequence[Compared]) -> Table:
    """A row for each cause, and for all."""
    columns = ("cause", "changes", "median error", "measured / expected", "in the 80 % interval")
    made = result_table("Speed after a change beside the one expected", columns)
    for cause, each in by_cause(compared).items():
        made.add_row(
            cause, f"{each.count:,}", f"{100 * each.error:.1f} %", f"{each.ratio:.3f}", f"{100 * each.within:.0f} %"
        )
    return made


def calibration_plot(compared: Sequence[Compared]) -> str:
    """The share of changes with no larger error, over the error, by cause; dashed: the aim for the median."""
    x, _ = _at(GOAL / MOST, 0)
    goal = f'<path d="M{x} {TOP}V{HEIGHT - BOTTOM}" stroke="#9aa5b1" stroke-dasharray="4 3"/>'

    def points(each: Sequence[Compared]) -> Points:
        return [(min(error / MOST, 1.0), share) for error, share in errors_cdf(each)]

    return _plot(compared, points, goal, MOST, "error of the expected speed")


def interval_plot(compared: Sequence[Compared]) -> str:
    """The share of changes in an interval of the expected speed, over the share that the interval says, by cause;
    dashed: what a belief with the right errors has."""
    (x0, y0), (x1, y1) = _at(0, 0), _at(1, 1)
    diagonal = f'<path d="M{x0} {y0}L{x1} {y1}" stroke="#9aa5b1" stroke-dasharray="4 3"/>'

    def points(each: Sequence[Compared]) -> Points:
        # The probability of the smallest interval around the expected speed that has the measured one.
        said = sorted(
            erf(abs(log(c.measured_steps_per_s / c.expected_steps_per_s)) / (c.relative_error * 2**0.5))
            for c in each
            if c.relative_error and c.measured_steps_per_s > 0
        )
        return [(p, (k + 1) / len(said)) for k, p in enumerate(said)][:: max(1, len(said) // 100)]

    return _plot(compared, points, diagonal, 100.0, "interval of the expected speed")


def _plot(
    compared: Sequence[Compared],
    points: Callable[[Sequence[Compared]], Points],
    guide: str,
    most: float,
    title: str,
) -> str:
    causes: dict[str, list[Compared]] = {"all": list(compared)}
    for each in compared:
        causes.setdefault(each.cause, []).append(each)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for k in range(5):
        x, y = _at(k / 4, k / 4)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#e3e8ee"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{25 * k} %</text>')
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{most * k / 4:g} %</text>')
    parts.append(guide)
    parts += _lines({cause: points(each) for cause, each in causes.items()}, causes)
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{title}</text></svg>')
    return "\n".join(parts) + "\n"


def _lines(points: Mapping[str, Points], causes: Mapping[str, Sequence[Compared]]) -> list[str]:
    parts = []
    for k, (cause, each) in enumerate(sorted(causes.items(), key=lambda item: -len(item[1]))[: len(COLOURS)]):
        line = " ".join("{},{}".format(*_at(x, share)) for x, share in points[cause])
        parts.append(
            f'<polyline fill="none" stroke="{COLOURS[k]}" stroke-width="2" points="{line}"/>'
            f'<text x="{WIDTH - RIGHT + 8}" y="{TOP + 14 + 17 * k}" fill="{COLOURS[k]}">{cause} ({len(each):,})</text>'
        )
    return parts


def _at(part: float, share: float) -> tuple[float, float]:
    x = LEFT + (WIDTH - LEFT - RIGHT) * part
    return round(x, 1), round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)
