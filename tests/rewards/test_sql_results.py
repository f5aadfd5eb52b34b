"""Results of queries are compared as what they say: no more and no less."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.rewards.sql_results import equal_results, has_order_by
from turnwise.tools.sql.query import QueryResult
from work_for_tests import count_lines


def rows(*cells: Sequence[Any], more: int = 0, columns: Sequence[str] | None = None) -> QueryResult:
    width = len(cells[0]) if cells else 1
    return QueryResult(
        columns=tuple(columns or map(str, range(width))), rows=tuple(map(tuple, cells)), omitted_rows=more
    )


def same(one: QueryResult, other: QueryResult, ordered: bool = False) -> bool:
    found = equal_results(one, other, ordered)
    assert equal_results(other, one, ordered) == found, "it has no direction"
    return found


def test_equal_results_compares_row_order_on_request() -> None:
    up, down = rows([1], [2], [3]), rows([3], [2], [1])
    assert same(up, down) and not same(up, down, ordered=True) and same(up, up, ordered=True)


def test_equal_results_counts_duplicate_rows() -> None:
    assert not same(rows([1], [1], [2]), rows([1], [2], [2]))
    assert not same(rows([1], [1]), rows([1]))
    assert same(rows([1], [2], [1]), rows([1], [1], [2]))


def test_equal_results_ignores_column_names() -> None:
    assert same(rows([1, "a"], columns=("x", "y")), rows([1, "a"], columns=("n", "count(*)")))
    assert not same(rows([1, "a"]), rows(["a", 1]))
    assert not same(rows([1]), rows([1, 1]))


def test_equal_results_compares_empty_results_by_columns() -> None:
    assert same(rows(columns=("a",)), rows(columns=("b",)))
    assert not same(rows(columns=("a",)), rows(columns=("a", "b")))
    assert not same(rows(columns=("a",)), rows([None]))


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (None, None, True),
        (None, 0, False),
        (None, "", False),
        (None, "NULL", False),
        (2, 2.0, True),
        (2, "2", False),
        (2.0, "2.0", False),
        ("a", "A", False),
        ("a", "a ", False),
        (b"a", "a", False),
        (b"a", b"a", True),
        (0.1 + 0.2, 0.3, True),
        (1 / 3, 0.333333333, True),
        (1 / 3, 0.3333, False),
        (1e12 + 0.1, 1e12, True),
        (1e-20, 0.0, True),
        (1e-7, 0.0, False),
        (1e-7, 2e-7, False),
        (5, 6, False),
        (5, -5, False),
        (2**62, 2**62 + 1, False),
        (float("inf"), float("inf"), True),
        (float("inf"), float("-inf"), False),
        (float("inf"), 1e308, False),
    ],
)
def test_equal_results_compares_values(one: Any, other: Any, equal: bool) -> None:
    for ordered in (True, False):
        assert same(rows([one]), rows([other]), ordered) == equal


def test_equal_results_is_fast_in_any_row_order() -> None:
    """Numbers whose first digits are the same: to look for each among all others would take long."""

    def work(count: int) -> int:
        ids = [[10_000_000 + number, "a"] for number in range(count)]
        got, wanted = rows(*ids), rows(*reversed(ids))
        return count_lines(lambda: same(got, wanted))

    assert same(rows([1, "a"], [2, "a"]), rows([2, "a"], [1, "a"]))
    assert work(800) < 2.2 * work(400)


def test_equal_results_rejects_truncated_results() -> None:
    assert not same(rows([1], more=3), rows([1], more=3))
    assert not same(rows([1], more=1), rows([1]))


def test_equal_results_matches_nearly_equal_numbers() -> None:
    near = rows([0.1 + 0.2, "b"], [0.3, "a"], [1.0, None])
    assert same(near, rows([0.3, "b"], [0.1 + 0.2, "a"], [1.0, None]))
    assert not same(near, rows([0.3, "b"], [0.3, "b"], [1.0, None]))


CELLS = st.none() | st.integers(-3, 3) | st.sampled_from(["", "a", "b"]) | st.floats(allow_nan=False) | st.just(b"x")
TABLES = st.lists(st.tuples(CELLS, CELLS), max_size=12)


@given(TABLES, st.randoms())
def test_equal_results_ignores_row_order(table: list[tuple[Any, ...]], rng: random.Random) -> None:
    shuffled = list(table)
    rng.shuffle(shuffled)
    assert same(rows(*table, columns=("a", "b")), rows(*shuffled, columns=("a", "b")))
    if table:
        changed = [("changed", shuffled[0][1]), *shuffled[1:]]
        assert not same(rows(*table), rows(*changed))
        assert not same(rows(*table, columns=("a", "b")), rows(*shuffled[1:], columns=("a", "b")))


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("select a from t order\n  by a limit 3", True),
        ("SELECT a FROM t", False),
        ("SELECT a FROM t WHERE a IN (SELECT a FROM t ORDER BY a LIMIT 3)", False),
        ("SELECT rank() OVER (ORDER BY a) FROM t", False),
        ("SELECT a FROM t WHERE b = 'order by'", False),
        ("SELECT a FROM t WHERE b = '(' ORDER BY a", True),
        ("SELECT a FROM t -- it's (so\nORDER BY a -- isn't it", True),
        ("SELECT a /* ORDER BY a */ FROM t -- order by a", False),
    ],
)
def test_has_order_by_ignores_subqueries(query: str, ordered: bool) -> None:
    assert has_order_by(query) == ordered
