"""Answers that are queries: what they give is compared, not what they say."""

import asyncio
import sqlite3
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field

from turnwise.config.section import Positive
from turnwise.core.errors import EnvironmentFailure
from turnwise.rewards.parts.part import BuiltInPart
from turnwise.rewards.parts.texts import column, looked_at
from turnwise.rewards.rubric import Answered
from turnwise.rewards.sql_equality import asks_for_order, equal_results
from turnwise.tools.sql.query import QueryResult, SqlLimits, run_query
from turnwise.tools.sql.threads import run_in_daemon_thread
from turnwise.tools.sql.tool import extract_query
from turnwise.tools.tool import ToolError


class SqlResult(BuiltInPart):
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

    async def score(self, answered: Answered) -> float:
        right = str(column(answered.row, self.against))
        database = Path(self.database or str(column(answered.row, "database"))).expanduser()
        said = extract_query(looked_at(answered, "answer"))
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
        return float(equal_results(got, wanted, ordered=asks_for_order(right)))

    def _run(self, database: Path, query: str) -> QueryResult:
        """ToolError: the query is at fault. What else SQLite raises is the database's failure, such as a lock."""
        limits = SqlLimits(timeout_s=self.timeout_s, max_rows=self.max_rows, max_value=self.max_value)
        try:
            return run_query(database, query, limits)
        except sqlite3.Error as error:
            raise EnvironmentFailure(f"the database {database} cannot be read: {error}") from error
