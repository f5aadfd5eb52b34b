"""Reward for SQL: 1 if the answer's query gives the same result as the reference query.

Column names are ignored: `count(*)` equals `count(*) AS n`. Column order counts, since otherwise a query that selects
everything would have more chances than one that selects what was asked. Row order counts only if the reference query
is ordered; otherwise results are compared as multisets.
"""

import asyncio
import math
import re
import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field

from turnwise.core.errors import EnvironmentFailure
from turnwise.rewards.rubric import BuiltInReward, Submission, get_column, select_text
from turnwise.settings.section import Positive
from turnwise.tools.sql.query import QueryResult, SqlLimits, SqlValue, run_query
from turnwise.tools.sql.threads import run_in_daemon_thread
from turnwise.tools.sql.tool import extract_query
from turnwise.tools.tool import ToolError

TOLERANCE = 1e-6
"""Relative tolerance: averages computed in another order differ in the last digits."""
TEXTS = re.compile(r"'[^']*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
Row = Sequence[SqlValue]


def equal_results(actual: QueryResult, expected: QueryResult, ordered: bool) -> bool:
    """Compare two results. A truncated result equals nothing."""
    if not (actual.complete and expected.complete) or len(actual.columns) != len(expected.columns):
        return False
    if len(actual.rows) != len(expected.rows):
        return False
    if ordered:
        return all(map(_equal_rows, actual.rows, expected.rows))
    left = sorted(actual.rows, key=_sort_key)
    for row in sorted(expected.rows, key=_sort_key):  # both are sorted: the match is mostly the first row
        match = next((number for number, other in enumerate(left) if _equal_rows(other, row)), None)
        if match is None:
            return False
        del left[match]
    return True


def has_order_by(query: str) -> bool:
    """Return whether the query has an ORDER BY outside of all parentheses."""
    depth, outside = 0, []
    for letter in TEXTS.sub("", query):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            outside.append(letter)
    return "order by" in " ".join("".join(outside).lower().split())


def _equal_rows(one: Row, other: Row) -> bool:
    return all(map(_equal_cells, one, other))


def _equal_cells(one: SqlValue, other: SqlValue) -> bool:
    """Compare cells. NULL equals NULL, unlike in SQL; 2 equals 2.0 but not '2'; integers, such as ids, are exact."""
    if isinstance(one, float | int) and isinstance(other, float | int):
        whole = isinstance(one, int) and isinstance(other, int)
        return one == other if whole else math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE * TOLERANCE)
    return type(one) is type(other) and one == other


def _sort_key(row: Row) -> tuple[tuple[tuple[int, float | str | bytes], ...], tuple[int | float, ...]]:
    """Return a sort key for any row: numbers by few digits, so that equal ones are neighbours, then by all digits."""
    return tuple(map(_cell_sort_key, row)), tuple(cell for cell in row if isinstance(cell, int | float))


def _cell_sort_key(cell: SqlValue) -> tuple[int, float | str | bytes]:
    if cell is None:
        return 0, 0.0
    if isinstance(cell, int | float):
        return 1, float(f"{cell:.4g}")
    return (2, cell) if isinstance(cell, str) else (3, cell)


class SqlResult(BuiltInReward):
    """1 if the answer's query gives the same result as the row's query, else 0. Both run read-only."""

    against: str = "sql"
    """Column with the reference query. If it has an ORDER BY, row order counts, also among ties: order by enough
    columns to leave none."""
    database: str = ""
    """SQLite file; empty: each row names its own in the column `database`."""
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    """Time limit of one query, in seconds."""
    max_rows: Positive = 1000
    """Rows of a result, at most; larger results equal nothing."""
    max_value: Annotated[int, Field(ge=1_000, le=1_000_000)] = SqlLimits().max_value
    """Bytes of one row, at most. With a higher limit one query may occupy a core for longer."""

    async def score(self, submission: Submission) -> float:
        reference = str(get_column(submission.row, self.against))
        database = Path(self.database or str(get_column(submission.row, "database"))).expanduser()
        query = extract_query(select_text(submission, "answer"))
        return await asyncio.wrap_future(run_in_daemon_thread(partial(self._compare, database, query, reference)))

    def _compare(self, database: Path, query: str, reference: str) -> float:
        """Run both queries and compare. Blocks, since comparing many rows takes time as well."""
        try:
            expected = self._run(database, reference)
        except ToolError as error:
            raise EnvironmentFailure(f"the query of a task row fails, {reference[:200]!r}: {error}") from error
        try:
            actual = self._run(database, query)
        except ToolError:  # also a time-out
            return 0.0
        return float(equal_results(actual, expected, ordered=has_order_by(reference)))

    def _run(self, database: Path, query: str) -> QueryResult:
        """Raise ToolError if the query is at fault, EnvironmentFailure if the database is, for example locked."""
        limits = SqlLimits(timeout_s=self.timeout_s, max_rows=self.max_rows, max_value=self.max_value)
        try:
            return run_query(database, query, limits)
        except sqlite3.Error as error:
            raise EnvironmentFailure(f"the database {database} cannot be read: {error}") from error
