"""A training as an SVG: the cost of what was tried, and on the select seeds, over iterations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from elastic_tfjob.learning.training import State

__all__ = ["draw_curve"]

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 560, 300, 70, 30, 20, 45
COLOURS: Final = {"tried": "#9aa5b1", "select seeds": "#0b6bcb"}

Points = Sequence[tuple[float, float]]


def draw_curve(state: State, path: Path) -> None:
    """Costs are shown as completion times relative to where the training began, in percent."""
    first_tried = next((tried for k, tried, _ in state.history if k > 0), 0.0)
    first = state.history[0][2] or 0.0
    lines: dict[str, Points] = {
        "tried": [(k, 100 * (tried - first_tried)) for k, tried, _ in state.history if k > 0],
        "select seeds": [(k, 100 * (found - first)) for k, _, found in state.history if found is not None],
    }
    values = [y for line in lines.values() for _, y in line]
    low, high = min(values, default=0.0) - 0.1, max(values, default=0.0) + 0.1
    last = max(state.history[-1][0], 1)

    def at(point: tuple[float, float]) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * point[0] / last
        y = TOP + (HEIGHT - TOP - BOTTOM) * (high - point[1]) / (high - low)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for k in range(5):
        value = low + (high - low) * k / 4
        x, y = at((0, value)).split(",")
        parts.append(f'<line x1="{x}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#e3e8ee"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{value:+.1f} %</text>')
    for (name, line), place in zip(lines.items(), (LEFT, LEFT + 120), strict=True):
        colour = COLOURS[name]
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(map(at, line))}"/>'
            f'<text x="{place}" y="18" fill="{colour}">{name}</text>'
        )
    parts.append(
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 10}" text-anchor="middle">'
        f"iterations (0 to {last}), mean completion time beside the first</text></svg>"
    )
    path.write_text("\n".join(parts) + "\n")
