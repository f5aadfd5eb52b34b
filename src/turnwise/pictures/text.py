"""Untrusted text on one line or in columns: what is printable, how wide it is, where it wraps."""

import unicodedata
from collections.abc import Callable, Iterator
from itertools import islice

Measure = Callable[[str], float]
"""Width of a text, in the unit of the caller's columns."""

EMOJI_JOINER = "\N{ZERO WIDTH JOINER}"
"""Joins several emoji into one. Not printable by itself, but kept."""
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


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


def display_width(text: str) -> int:
    """Return the number of terminal columns: 2 for a Chinese character or an emoji, 0 for a combining accent."""
    return sum(_columns(letter) for letter in text)


def _columns(letter: str) -> int:
    if letter == EMOJI_JOINER or unicodedata.combining(letter) or unicodedata.category(letter) == "Mn":
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def clip(text: str, columns: int, measure: Measure = display_width) -> str:
    """Cut text that is wider than `columns` and end it with an ellipsis."""
    text = text[: 4 * columns + 4]
    if measure(text) <= columns:
        return text
    kept, used = [], measure(ELLIPSIS)
    for letter in text:
        used += measure(letter)
        if used > columns:
            break
        kept.append(letter)
    return "".join(kept) + ELLIPSIS


def wrap(text: str, columns: int, lines: int, measure: Measure = display_width) -> list[str]:
    """Wrap at words, and inside words that are too long. An ellipsis marks text beyond `lines` lines."""
    wrapped = list(islice(_wrap(text[: 4 * columns * lines + 4], columns, measure), lines + 1))
    if len(wrapped) <= lines:
        return wrapped or [""]
    return [*wrapped[: lines - 1], clip(f"{wrapped[lines - 1]}{ELLIPSIS}{ELLIPSIS}", max(columns, 2), measure)]


def _wrap(text: str, columns: int, measure: Measure) -> Iterator[str]:
    line = ""
    for word in text.split():
        joined = f"{line} {word}" if line else word
        if measure(joined) <= columns:
            line = joined
            continue
        if line:
            yield line
        pieces = list(_split_word(word, columns, measure))
        yield from pieces[:-1]
        line = pieces[-1]
    if line:
        yield line


def _split_word(word: str, columns: int, measure: Measure) -> Iterator[str]:
    piece, used = "", 0.0
    for letter in word:
        width = measure(letter)
        if piece and used + width > columns:
            yield piece
            piece, used = "", 0.0
        piece, used = piece + letter, used + width
    yield piece
