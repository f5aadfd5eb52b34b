"""SQL functions that could run for long inside a single step are bounded by their arguments."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from turnwise.tools.sql.guard import NO_CURRENT_TIME, TOO_LONG, UNHEX_ONE_ARGUMENT, FunctionOverrides
from turnwise.tools.sql.query import SqlLimits, run_query
from turnwise.tools.tool import ToolError
from work_for_tests import hang_guard

HUGE = 2**31 - 1
LIMITS = SqlLimits(timeout_s=30.0)
"""Limits that the clock never reaches."""
ENDLESS = [
    f"printf('%.*c', {HUGE}, 'x')",
    f"format('%.*c', {HUGE}, 'x')",
    f"printf('%.{HUGE}c', 'x')",
    f"printf('%.*c', -{HUGE}, 'x')",
    f"printf('%.*c', '{HUGE} or so', 'x')",
    f"printf('%.*c', {HUGE}.5, 'x')",
    f"printf('%.*c', {2**32 + HUGE}, 'x')",
    f"printf('%5.*lc', {HUGE}, 'x')",
    f"printf('%*.*c', 3, {HUGE}, 'x')",
    f"printf('%d %s%%%-.*c', 1, 'a', {HUGE}, 'x')",
    f"printf('%.' || '*' || char(99), {HUGE}, 'x')",
    f"printf(CAST('%.*c' AS BLOB), {HUGE}, 'x')",
    f"printf('%.*d', {HUGE}, 1)",
    f"printf('%.*f', {HUGE}, 1.5)",
    f"printf('%*d', {HUGE}, 1)",
    f"printf('%0*d', {HUGE}, 1)",
    f"printf('%-*s', {HUGE}, 'a')",
    f"printf('%*c', {HUGE}, 'a')",
]


@pytest.mark.parametrize("value", ENDLESS)
def test_printf_of_huge_text_is_null(value: str) -> None:
    """SQLite returns NULL too, after counting that far."""
    assert run_query(b"", f"SELECT {value}", LIMITS).rows == ((None,),)


@pytest.mark.parametrize(
    "value", [f"zeroblob({HUGE})", "hex(zeroblob(9000))", "replace(hex(zeroblob(4000)), '0', 'ab')"]
)
def test_values_beyond_the_limit_are_refused(value: str) -> None:
    with pytest.raises(ToolError, match="too big") as error:
        run_query(b"", f"SELECT {value}", LIMITS)
    assert str(error.value) not in (TOO_LONG, NO_CURRENT_TIME)


def test_unhex_with_ignored_characters_is_refused() -> None:
    with pytest.raises(ToolError, match=UNHEX_ONE_ARGUMENT):
        run_query(b"", "SELECT unhex('6a 6b', ' ')", LIMITS)


FORMATS = st.lists(
    st.sampled_from(["%", "%.*c", "%c", ".", "*", "5", "0", "12", "c", "d", "s", "l", "-", "!", "%%", "n", "20000"]),
    max_size=8,
).map("".join)
VALUES = st.sampled_from(
    ["3", "-4", "0", "'a'", "'bcd'", "NULL", "2.5", "'7x'", "9999", "10001", "x'61'", "4294967299"]
)


@settings(deadline=None)
@given(FORMATS, st.lists(VALUES, max_size=4))
@example("%.*c", ["10001", "'a'"])
@example("%.10001c", ["'a'"])
@example("%.4294967299c", ["'a'"])
@example("%.*c", ["4294967299", "'a'"])
@example("%.*c%.*c", ["2", "'a'", "3", "'b'"])
def test_printf_matches_sqlite(template: str, values: list[str]) -> None:
    query = f"SELECT printf({', '.join([repr(template), *values])})"
    with closing(sqlite3.connect(":memory:")) as plain:
        plain.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LIMITS.max_value)
        assert run_query(b"", query, LIMITS).rows == tuple(plain.execute(query))


def test_printf_template_is_parsed_in_linear_time() -> None:
    """A million characters that could be flags or digits; quadratic time would take hours."""
    with hang_guard(), closing(FunctionOverrides(10_000)) as functions:
        for signs in ("0", "1", "l", ".", "*", ".0", "%"):
            assert functions._repeats_too_often("%." + signs * (1_000_000 // len(signs)), []) is False
