"""Numbers and untrusted text, formatted for display."""

import math
import unicodedata
from collections.abc import Iterator, Sequence

MISSING = "-"
EMOJI_JOINER = "\N{ZERO WIDTH JOINER}"
"""Joins several emoji into one. Not printable by itself, but kept."""
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


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


def format_duration(seconds: float | None) -> str:
    """Format as 0:41, 12:05 or 1:02:33."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


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


def to_single_line(text: str) -> str:
    """Replace line breaks, control characters, direction overrides and unpaired surrogates by spaces."""
    return "".join(letter if letter.isprintable() or letter == EMOJI_JOINER else " " for letter in text)


def show_invisible(text: str) -> str:
    """Make invisible characters visible, e.g. escapes as ␛ and direction overrides as ⟦U+202E⟧. Keep line breaks."""
    if text.isprintable():
        return text
    return "".join(_show(letter) for letter in text)


def _show(letter: str) -> str:
    if letter.isprintable() or letter in "\n\t" or letter == EMOJI_JOINER or unicodedata.category(letter) == "Zs":
        return letter
    code = ord(letter)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\N{SYMBOL FOR DELETE}" if code == 0x7F else f"⟦U+{code:04X}⟧"


def shorten(text: str, max_chars: int) -> str:
    """Return the beginning of the text, and how many characters follow it if it is longer."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]} … ({len(text) - max_chars:,} more characters)"


def display_width(text: str) -> int:
    """Return the number of terminal columns: 2 for a Chinese character or an emoji, 0 for a combining accent."""
    return sum(_columns(letter) for letter in text)


def _columns(letter: str) -> int:
    if letter == EMOJI_JOINER or unicodedata.combining(letter) or unicodedata.category(letter) == "Mn":
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def clip(text: str, columns: int) -> str:
    """Cut text that is wider than `columns` and end it with an ellipsis."""
    text = text[: 4 * columns + 4]
    if display_width(text) <= columns:
        return text
    kept, used = [], 1
    for letter in text:
        used += _columns(letter)
        if used > columns:
            break
        kept.append(letter)
    return "".join(kept) + ELLIPSIS


def wrap(text: str, columns: int, lines: int) -> list[str]:
    """Wrap at words, and inside words that are too long. An ellipsis marks text beyond `lines` lines."""
    wrapped = list(_wrap(text[: 4 * columns * lines + 4], columns))
    if len(wrapped) <= lines:
        return wrapped or [""]
    return [*wrapped[: lines - 1], clip(f"{wrapped[lines - 1]}{ELLIPSIS}{ELLIPSIS}", max(columns, 2))]


def _wrap(text: str, columns: int) -> Iterator[str]:
    line = ""
    for word in text.split():
        joined = f"{line} {word}" if line else word
        if display_width(joined) <= columns:
            line = joined
            continue
        if line:
            yield line
        pieces = list(_split_word(word, columns))
        yield from pieces[:-1]
        line = pieces[-1]
    if line:
        yield line


def _split_word(word: str, columns: int) -> Iterator[str]:
    piece, used = "", 0
    for letter in word:
        wide = _columns(letter)
        if piece and used + wide > columns:
            yield piece
            piece, used = "", 0
        piece, used = piece + letter, used + wide
    yield piece
