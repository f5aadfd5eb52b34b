"""Suggestions for mistyped names in error messages."""

import difflib
from collections.abc import Iterable, Sequence

MAX_LISTED = 12


def closest_match(name: str, options: Iterable[str]) -> str | None:
    """Return the most similar option; None if none is similar."""
    by_lower = {option.lower(): option for option in options}
    matches = difflib.get_close_matches(name.lower(), sorted(by_lower), n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


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
