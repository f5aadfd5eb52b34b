"""Whether two queries say the same: their results are compared, not their words.

Names of columns count for nothing: `count(*)` and `count(*) AS n` are one answer. The order of columns does count:
a question asks for things in an order, and were any order right, a query that selects everything would have more
chances than one that selects what was asked. The order of rows counts where the question asks for one; elsewhere
results are multisets: a row that comes twice must come twice.
"""

import math
import re
from collections.abc import Sequence

from turnwise.tools.sql.query import QueryResult, SqlValue

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
    left = sorted(got.rows, key=_place)
    for row in sorted(wanted.rows, key=_place):  # both are sorted: what is looked for mostly stands first
        match = next((number for number, other in enumerate(left) if _equal_rows(other, row)), None)
        if match is None:
            return False
        del left[match]
    return True


def asks_for_order(query: str) -> bool:
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


def _place(row: Row) -> tuple[tuple[tuple[int, float | str | bytes], ...], tuple[int | float, ...]]:
    """Sorts any rows; numbers by so few digits that those which are equal stand together, then by all of them."""
    return tuple(map(_cell_place, row)), tuple(cell for cell in row if isinstance(cell, int | float))


def _cell_place(cell: SqlValue) -> tuple[int, float | str | bytes]:
    if cell is None:
        return 0, 0.0
    if isinstance(cell, int | float):
        return 1, float(f"{cell:.4g}")
    return (2, cell) if isinstance(cell, str) else (3, cell)
