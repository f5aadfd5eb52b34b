"""Numbers as people read them."""

import math
from collections.abc import Sequence
from itertools import pairwise

MISSING = "-"
BLOCKS = "▁▂▃▄▅▆▇█"


def percent(value: float | None) -> str:
    return MISSING if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def decimal(value: float | None) -> str:
    """Three places, or two digits that count where the number is small."""
    if value is None:
        return MISSING
    if value == 0 or abs(value) >= 0.001 or not math.isfinite(value):
        return f"{value:.3f}"
    return f"{value:.1e}"


def length(value: float | None) -> str:
    return MISSING if value is None or not math.isfinite(value) else f"{value:.1f}"


def count(value: float | None) -> str:
    """950, 12.4k, 3.1M."""
    if value is None or not math.isfinite(value):
        return MISSING
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.1f}{letter}"
    return f"{value:.0f}"


def duration(seconds: float | None) -> str:
    """0:41, 12:05, 1:02:33."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def sparkline(rates: Sequence[float], width: int) -> str:
    """Rates as blocks from 0 to 1 (never stretched, so that two runs can be compared), at most `width` of them."""
    columns = min(width, len(rates))
    edges = [index * len(rates) // columns for index in range(columns + 1)] if columns else []
    means = [sum(rates[low:high]) / (high - low) for low, high in pairwise(edges)]
    return "".join(BLOCKS[min(int(mean * len(BLOCKS)), len(BLOCKS) - 1)] for mean in means)
