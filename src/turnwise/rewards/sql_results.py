"""Whether two queries say the same: their results are compared, not their words.

Names of columns count for nothing: `count(*)` and `count(*) AS n` are one answer. The order of columns does count:
a question asks for things in an order, and were any order right, a query that selects everything would have more
chances than one that selects what was asked. The order of rows counts where the question asks for one; elsewhere
results are multisets: a row that comes twice must come twice.
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

from turnwise.config.section import Positive
from turnwise.core.errors import EnvironmentFailure
from turnwise.rewards.rubric import BuiltInReward, Submission, get_column, select_text
from turnwise.tools.sql.query import QueryResult, SqlLimits, SqlValue, run_query
from turnwise.tools.sql.threads import run_in_daemon_thread
from turnwise.tools.sql.tool import extract_query
from turnwise.tools.tool import ToolError

TOLERANCE = 1e-6
"""Of a number's size: averages that were summed up in another order differ in their last digits."""
TEXTS = re.compile(r"'[^']*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
Row = Sequence[SqlValue]


def equal_results(got: QueryResult, wanted: QueryResult, ordered: bool) -> bool:
    """A result that was cut short equals nothing: what was not seen cannot be compared."""
    if not (got.complete and wanted.complete) or len(got.columns) != len(wanted.columns):
        return False
    if len(got.rows) != len(wanted.rows):
        return False
    if ordered:
        return all(map(_equal_rows, got.rows, wanted.rows))
    left = sorted(got.rows, key=_sort_key)
    for row in sorted(wanted.rows, key=_sort_key):  # both are sorted: what is looked for mostly stands first
        match = next((number for number, other in enumerate(left) if _equal_rows(other, row)), None)
        if match is None:
            return False
        del left[match]
    return True


def has_order_by(query: str) -> bool:
    """Whether the query as a whole is ordered: an ORDER BY outside of all brackets."""
    depth, outside = 0, []
    for letter in TEXTS.sub("", query):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            outside.append(letter)
    return "order by" in " ".join("".join(outside).lower().split())


def _equal_rows(one: Row, other: Row) -> bool:
    return all(map(_equal_cells, one, other))


def _equal_cells(one: SqlValue, other: SqlValue) -> bool:
    """NULL equals NULL here, unlike in SQL: both queries say that nothing is known.

    2 and 2.0 are one number, '2' is a text; whole numbers, such as ids, are exact.
    """
    if isinstance(one, float | int) and isinstance(other, float | int):
        whole = isinstance(one, int) and isinstance(other, int)
        return one == other if whole else math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE * TOLERANCE)
    return type(one) is type(other) and one == other


def _sort_key(row: Row) -> tuple[tuple[tuple[int, float | str | bytes], ...], tuple[int | float, ...]]:
    """Sorts any rows; numbers by so few digits that those which are equal stand together, then by all of them."""
    return tuple(map(_cell_sort_key, row)), tuple(cell for cell in row if isinstance(cell, int | float))


def _cell_sort_key(cell: SqlValue) -> tuple[int, float | str | bytes]:
    if cell is None:
        return 0, 0.0
    if isinstance(cell, int | float):
        return 1, float(f"{cell:.4g}")
    return (2, cell) if isinstance(cell, str) else (3, cell)


class SqlResult(BuiltInReward):
    """1 where the answer, a query, gives what the row's query gives, else 0. Both are run read-only."""

    against: str = "sql"
    """The column with the query that is right. Rows count in their order where it has an ORDER BY, also those that are
    equal by it: let it name enough columns to leave none."""
    database: str = ""
    """A SQLite file; empty: each row names its own in its column `database`."""
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    """Of one query."""
    max_rows: Positive = 1000
    """A result of more rows equals nothing."""
    max_value: Annotated[int, Field(ge=1_000, le=1_000_000)] = SqlLimits().max_value
    """Bytes of one row. Longer ones cannot be read; with a higher limit one query may keep a core for longer."""

    async def score(self, answered: Submission) -> float:
        right = str(get_column(answered.row, self.against))
        database = Path(self.database or str(get_column(answered.row, "database"))).expanduser()
        said = extract_query(select_text(answered, "answer"))
        return await asyncio.wrap_future(run_in_daemon_thread(partial(self._compared, database, said, right)))

    def _compared(self, database: Path, said: str, right: str) -> float:
        """Blocks: many rows also take their time to compare."""
        try:
            wanted = self._run(database, right)
        except ToolError as error:
            raise EnvironmentFailure(f"the query of a row fails, {right[:200]!r}: {error}") from error
        try:
            got = self._run(database, said)
        except ToolError:  # too long is wrong too
            return 0.0
        return float(equal_results(got, wanted, ordered=has_order_by(right)))

    def _run(self, database: Path, query: str) -> QueryResult:
        """ToolError: the query is at fault. What else SQLite raises is the database's failure, such as a lock."""
        limits = SqlLimits(timeout_s=self.timeout_s, max_rows=self.max_rows, max_value=self.max_value)
        try:
            return run_query(database, query, limits)
        except sqlite3.Error as error:
            raise EnvironmentFailure(f"the database {database} cannot be read: {error}") from error
