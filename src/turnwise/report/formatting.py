"""Numbers and lengths of text, formatted for display."""

import math
from collections.abc import Callable, Sequence

from turnwise.record.catalogue import Metric, Unit

MISSING = "-"


def format_percent(value: float | None) -> str:
    return MISSING if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def format_decimal(value: float | None) -> str:
    """Format with three decimals, or with two significant digits below 0.001."""
    if value is None:
        return MISSING
    if value == 0 or abs(value) >= 0.001 or not math.isfinite(value):
        return f"{value:.3f}"
    return f"{value:.1e}"


def format_length(value: float | None) -> str:
    return MISSING if value is None or not math.isfinite(value) else f"{value:.1f}"


def format_count(value: float | None) -> str:
    """Format as 950, 12.4k or 3.1M."""
    if value is None or not math.isfinite(value):
        return MISSING
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.1f}{letter}"
    return f"{value:.0f}"


UNIT_FORMATS: dict[Unit, Callable[[float | None], str]] = {
    "share": format_percent,
    "count": format_count,
    "1/s": format_count,
    "mean": format_length,
    "tokens": format_length,
}


def format_metric(metric: Metric, value: float | None) -> str:
    """Format a value by the metric's unit."""
    return UNIT_FORMATS.get(metric.unit, format_decimal)(value)


def format_duration(seconds: float | None) -> str:
    """Format as 0:41, 12:05 or 1:02:33."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_money(amount: float | None) -> str:
    """Format an amount in the currency of record.price, such as 12.40; small ones with two digits, such as 0.0031."""
    if amount is None or not math.isfinite(amount):
        return MISSING
    return f"{amount:.2f}" if amount >= 0.1 or not amount else f"{amount:.2g}"


def format_energy(watt_hours: float) -> str:
    """Format as 0.42 Wh, 17.3 Wh or 2.31 kWh."""
    value, unit = (watt_hours / 1000, "kWh") if watt_hours >= 1000 else (watt_hours, "Wh")
    return f"{value:.3g} {unit}"


def format_interval(ends: Sequence[float | None] | None) -> str:
    """Format as 62.1 to 74.0 %."""
    if ends is None or None in ends:
        return MISSING
    low, high = ends
    return f"{format_percent(low).removesuffix(' %')} to {format_percent(high)}"


def format_p_value(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def format_points(difference: float) -> str:
    """Format a difference of two rates in percentage points, as +4.2."""
    return f"{100 * difference:+.1f}"


def first_line(text: str, max_chars: int = 300) -> str:
    """Return the first line that is not blank, shortened; empty if there is none."""
    return shorten(next((line.strip() for line in text.splitlines() if line.strip()), ""), max_chars)


def shorten(text: str, max_chars: int) -> str:
    """Return the beginning of the text, and how many characters follow it if it is longer."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]} … ({len(text) - max_chars:,} more characters)"
