"""Figure of B7: milliseconds per episode and memory over the number of episodes, as SVG."""

import math
from collections.abc import Sequence

from turnwise.report.svg import BLUE, GRID, ORANGE, svg_line, svg_start, svg_text

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 64, 72, 56, 48


def growth_svg(points: Sequence[tuple[int, float, float]]) -> str:
    """`points`: episodes, ms per episode, GiB of KV cache."""
    title = "Rollout of more concurrent episodes"
    most_ms, most_gib = (max(each[column] for each in points) * 1.1 for column in (1, 2))
    least, most = (math.log2(bound(each[0] for each in points)) for bound in (min, max))
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(episodes: int) -> float:
        return LEFT + across * (math.log2(episodes) - least) / (most - least)

    parts = [svg_start(title, WIDTH, HEIGHT), svg_text(LEFT, 24, title, size=15, weight="600")]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = HEIGHT - BOTTOM - down * share
        parts.append(svg_line(LEFT, y, WIDTH - RIGHT, y, stroke=GRID))
        parts.append(svg_text(LEFT - 8, y + 4, f"{most_ms * share:.1f}", anchor="end"))
        parts.append(svg_text(WIDTH - RIGHT + 8, y + 4, f"{most_gib * share:.0f}"))
    parts += [svg_text(x(episodes), HEIGHT - BOTTOM + 20, f"{episodes:,}", anchor="middle") for episodes, *_ in points]
    parts.append(svg_text(LEFT + across / 2, HEIGHT - 8, "concurrent episodes", anchor="middle"))
    for column, (label, colour, highest, dashes) in enumerate(
        (("ms per episode (left)", BLUE, most_ms, ""), ("GiB of KV cache (right)", ORANGE, most_gib, "6 4")), start=1
    ):
        spots = [(x(each[0]), HEIGHT - BOTTOM - down * each[column] / highest) for each in points]
        path = " ".join(f"{one:.1f},{other:.1f}" for one, other in spots)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'
        )
        parts += [f'<circle cx="{one:.1f}" cy="{other:.1f}" r="4" fill="{colour}"/>' for one, other in spots]
        parts.append(svg_text(LEFT + 200 * (column - 1), 44, label, fill=colour))
    return "\n".join([*parts, "</svg>"]) + "\n"
