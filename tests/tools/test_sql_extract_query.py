"""Extracting the query from a model's answer."""

import pytest

from turnwise.tools.sql.tool import extract_query
from work_for_tests import hang_guard


@pytest.mark.parametrize(
    ("answer", "query"),
    [
        ("SELECT 1", "SELECT 1"),
        ("  SELECT 1;\n", "SELECT 1"),
        ("```sql\nSELECT 1\n```", "SELECT 1"),
        ("```\nSELECT 1```", "SELECT 1"),
        ("```SQL\nSELECT 1;\n```", "SELECT 1"),
        ("```sqlite\nSELECT 1\n```", "SELECT 1"),
        ("```sql SELECT 1```", "SELECT 1"),
        ("```SELECT 1```", "SELECT 1"),
        ("```select\n1```", "select\n1"),
        ("Here it is:\n```sql\nSELECT 1\n```\nDone.", "SELECT 1"),
        ("No:\n```sql\nSELECT 1\n```\nbut\n```sql\nSELECT 2\n```", "SELECT 2"),
        ("```python\nx\n```\nor rather\n```sql\nSELECT 2\n```", "SELECT 2"),
        ("SELECT '```'", "SELECT '```'"),
        ("", ""),
    ],
)
def test_extract_query_takes_last_block_or_whole_text(answer: str, query: str) -> None:
    assert extract_query(answer) == query


@pytest.mark.parametrize("hostile", ["`" * 10**6, "```sql\n" * 200_000, "``` " * 300_001, "```" + "sql" * 500_000])
def test_extract_query_takes_linear_time(hostile: str) -> None:
    """1 ms per 100 kB; quadratic time would take hours."""
    with hang_guard():
        extract_query(hostile)
