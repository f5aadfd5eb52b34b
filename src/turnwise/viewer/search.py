"""Full-text search over trajectories: it streams over the files, keeps none, and answers in time."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from turnwise.core.errors import UserError
from turnwise.viewer.columns import Table
from turnwise.viewer.lines import read_row
from turnwise.viewer.query import Positions
from turnwise.viewer.root import NotThere
from turnwise.viewer.trajectory import turns_of

LIMIT_S = 2.0


class Needle:
    """A text to find, whatever its case."""

    def __init__(self, text: str) -> None:
        self._text = text.lower()
        self._bytes = self._text.encode("utf-8", "replace")
        self._plain = self._text.isascii() and self._text.isprintable() and not set(self._text) & {'"', "\\"}
        """JSON writes it letter by letter, so that a line without these bytes is done with, unparsed."""

    def within(self, line: bytes) -> bool:
        """Whether a trajectory's line holds it in a context or a message. Bad bytes and broken lines do not matter."""
        if self._plain and self._bytes not in line.lower():
            return False
        row = read_row(line) or read_row(line.decode("utf-8", "replace").encode())
        return row is not None and any(self._text in text.lower() for text in texts_of(row))


def texts_of(row: Mapping[str, Any]) -> Iterator[str]:
    """Everything that was said in a trajectory."""
    for turn in turns_of(row):
        message = turn.get("message")
        said = message if isinstance(message, dict) else {}
        calls = said.get("tool_calls")
        values = [turn.get("context"), said.get("content")]
        for call in calls if isinstance(calls, list) else ():
            values += [call.get("name"), call.get("arguments")] if isinstance(call, dict) else []
        yield from (value for value in values if isinstance(value, str))


def search(
    table: Table,
    candidates: Positions,
    text: str,
    line_of: Callable[[dict[str, Any]], bytes],
    *,
    cursor: int,
    limit: int,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """The first `limit` rows that hold the text, from the candidate at `cursor` on.

    Where that takes too long, what was found so far; "next" is then the cursor to go on with, and null at the end.
    """
    needle, until = Needle(text), clock() + LIMIT_S
    found: list[dict[str, Any]] = []
    cursor = place = min(max(cursor, 0), len(candidates))
    while place < len(candidates) and len(found) < limit and (place == cursor or clock() < until):
        row = table.row(int(candidates[place]))
        place += 1
        try:
            if needle.within(line_of(row)):
                found.append(row)
        except (NotThere, UserError):
            continue  # gone since, or too large: not found in it
    return {
        "total": len(found),
        "rows": found,
        "searched": place,
        "of": len(candidates),
        "next": place if place < len(candidates) else None,
    }
