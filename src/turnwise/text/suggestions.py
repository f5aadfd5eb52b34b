"""Suggestions for mistyped names in error messages."""

import difflib
from collections.abc import Iterable, Sequence

MAX_LISTED = 40
MIN_SHARED = 3
"""Minimum length of a name that is looked for within another one."""


def closest_match(name: str, options: Iterable[str]) -> str | None:
    """Return the most similar option, else one that contains the name or is contained in it; None if there is none."""
    by_lower, lower = {option.lower(): option for option in options}, name.lower()
    matches = difflib.get_close_matches(lower, sorted(by_lower), n=1, cutoff=0.6)
    if matches:
        return by_lower[matches[0]]
    longer = [known for known in by_lower if len(lower) >= MIN_SHARED and lower in known]
    shorter = [known for known in by_lower if len(known) >= MIN_SHARED and known in lower]
    if longer:
        return by_lower[min(longer, key=lambda known: (not known.startswith(lower), known))]
    return by_lower[max(shorter, key=len)] if shorter else None


def suggest(name: str, options: Iterable[str]) -> str:
    """Return ` did you mean "x"?`, or the list of options, for the end of an error after a colon.

    The text starts with a space and is never empty.
    """
    known = sorted(set(options))
    meant = closest_match(name, known)
    return f" {list_options(known)}" if meant is None else f' did you mean "{meant}"?'


def suggest_and_list(name: str, options: Iterable[str]) -> str:
    """Return the suggestion and always the list of options, for names that the user defined."""
    known = sorted(set(options))
    meant = closest_match(name, known)
    return f" {list_options(known)}" if meant is None else f' did you mean "{meant}"? ({list_options(known)})'


def list_options(known: Sequence[str]) -> str:
    if not known:
        return "there are none"
    return f"there are {', '.join(known[:MAX_LISTED])}" + (", ..." if len(known) > MAX_LISTED else "")
