"""Lists of trajectories: filtered, sorted, paged and searched by text."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from turnwise.core.errors import UserError
from turnwise.viewer.json_io import read_row
from turnwise.viewer.store import RunReader
from turnwise.viewer.table import (
    Count,
    NonEmpty,
    Positions,
    Text,
    TrajectoryFilter,
    TrajectoryTable,
    rows_of_evaluation,
    select_rows,
)
from turnwise.viewer.trajectories import decode_line, iter_turns, preview_answer
from turnwise.viewer.viewed_folder import FileNotServed

MAX_PAGE = 1000
PREVIEW_BYTES = 16 << 20
"""Bytes of trajectories that one list reads for previews of their answers."""
TIME_LIMIT_S = 2.0
"""Seconds that one search request may take; it then returns what it has found and where to continue."""


class TrajectoryQuery(TrajectoryFilter):
    """Request for a page of the matching rows."""

    run: Text
    sort: Text = "number"
    offset: Count = 0
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    text: NonEmpty = None
    """Text to search the rows for, from the row at `cursor` on."""
    cursor: Count = 0
    preview: bool = False
    """Add the start of each answer."""


def list_trajectories(run: RunReader, query: TrajectoryQuery) -> dict[str, Any]:
    table, limit = run.table(), query.limit
    positions = select_rows(table, query, query.sort)
    with run.line_reader() as read_line:
        if query.text is None:
            rows = [table.row(int(position)) for position in positions[query.offset : query.offset + limit]]
            page: dict[str, Any] = {"total": len(positions), "rows": rows}
        else:
            page = search_text(table, positions, query.text, read_line, cursor=query.cursor, limit=limit)
        if query.preview:
            add_previews(page["rows"], read_line)
    return {
        **page,
        "steps": np.unique(table.columns["step"][rows_of_evaluation(table, query.evaluation)]).tolist(),
        "environments": table.sorted_names("environment"),
        "statuses": table.sorted_names("status"),
        "models": table.sorted_names("model"),
        "evaluations": table.sorted_names("evaluation"),
        "broken": table.broken,
    }


def add_previews(rows: list[dict[str, Any]], read_line: Callable[[dict[str, Any]], bytes]) -> None:
    """Add a preview of the answer to each row; not to long trajectories once PREVIEW_BYTES are read."""
    left = PREVIEW_BYTES
    for row in rows:
        left -= row["length"]
        if left < 0:
            return
        try:
            contents = decode_line(read_line(row), "")[1]
        except (FileNotServed, UserError):
            continue  # deleted since it was indexed, or not readable
        row["preview"] = preview_answer(contents)


def search_text(
    table: TrajectoryTable,
    candidates: Positions,
    text: str,
    read_line: Callable[[dict[str, Any]], bytes],
    *,
    cursor: int,
    limit: int,
) -> dict[str, Any]:
    """Return the first `limit` rows that contain the text, from the candidate at `cursor` on.

    Stops at the time limit. "next" is the cursor to continue from, null at the end.
    """
    query, deadline = TextQuery(text), time.monotonic() + TIME_LIMIT_S
    rows: list[dict[str, Any]] = []
    start = position = min(max(cursor, 0), len(candidates))
    while position < len(candidates) and len(rows) < limit and (position == start or time.monotonic() < deadline):
        row = table.row(int(candidates[position]))
        position += 1
        try:
            if query.matches(read_line(row)):
                rows.append(row)
        except (FileNotServed, UserError):
            continue  # deleted since it was indexed, or too large
    return {
        "total": len(rows),
        "rows": rows,
        "searched": position,
        "of": len(candidates),
        "next": position if position < len(candidates) else None,
    }


class TextQuery:
    """A text to find in trajectories, ignoring case."""

    def __init__(self, text: str) -> None:
        self._text = text.lower()
        self._bytes = self._text.encode("utf-8", "replace")
        self._is_unescaped = self._text.isascii() and self._text.isprintable() and not set(self._text) & {'"', "\\"}
        """JSON stores the text unchanged, so a line without these bytes need not be parsed."""

    def matches(self, line: bytes) -> bool:
        """Return whether a context or message of a trajectory contains the text; False for a broken line."""
        if self._is_unescaped and self._bytes not in line.lower():
            return False
        row = read_row(line) or read_row(line.decode("utf-8", "replace").encode())
        return row is not None and any(self._text in text.lower() for text in iter_texts(row))


def iter_texts(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the contexts, messages and tool calls of a trajectory."""
    for turn in iter_turns(row):
        stored = turn.get("message")
        message = stored if isinstance(stored, dict) else {}
        calls = message.get("tool_calls")
        values = [turn.get("context"), message.get("content")]
        for call in calls if isinstance(calls, list) else ():
            values += [call.get("name"), call.get("arguments")] if isinstance(call, dict) else []
        yield from (value for value in values if isinstance(value, str))
