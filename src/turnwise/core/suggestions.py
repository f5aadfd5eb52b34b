"""Mistyped names: an error that names the nearest one saves a look into the manual."""

import difflib
from collections.abc import Iterable, Sequence

MAX_LISTED = 12


def closest_match(name: str, options: Iterable[str]) -> str | None:
    """The option that was probably meant; None when nothing is near."""
    by_lower = {option.lower(): option for option in options}
    matches = difflib.get_close_matches(name.lower(), sorted(by_lower), n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def suggest(name: str, options: Iterable[str]) -> str:
    """How an error about an unknown name ends: ` did you mean "x"?`, or what there is to choose from.

    It begins with a space and is never empty, so that it reads on after a colon.
    """
    known = sorted(set(options))
    meant = closest_match(name, known)
    return f" {list_options(known)}" if meant is None else f' did you mean "{meant}"?'


def suggest_and_list(name: str, options: Iterable[str]) -> str:
    """The same, with what there is in any case: of a user's own names, which no manual lists."""
    known = sorted(set(options))
    meant = closest_match(name, known)
    return f" {list_options(known)}" if meant is None else f' did you mean "{meant}"? ({list_options(known)})'


def list_options(known: Sequence[str]) -> str:
    if not known:
        return "there are none"
    return f"there are {', '.join(known[:MAX_LISTED])}" + (", ..." if len(known) > MAX_LISTED else "")
