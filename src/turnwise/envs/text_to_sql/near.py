"""Queries that are nearly right: what somebody writes who overlooks a word of the question."""

import re

SLIPS: tuple[tuple[str, str], ...] = (
    (r" WHERE .*?(?= GROUP BY| ORDER BY|$)", ""),
    (r" HAVING .*?(?= ORDER BY|$)", ""),
    (r"([<>])( ?)(?=\d)", r"\1=\2"),
    (r"([<>])=( ?)(?=\d)", r"\1\2"),
    (r"\bDISTINCT ", ""),
    (r", (\w+\.)?id( DESC)?(?= LIMIT)", ""),
    (r"\bid DESC(?= LIMIT)", "id"),
    (r"\bid(?= LIMIT)", "id DESC"),
    (r" DESC(?=,)", " ASC"),
    (r" ASC(?=,)", " DESC"),
    (r" LIMIT \d+", ""),
    (r"\b(AVG|MIN|SUM)\(", "MAX("),
    (r"\b(AVG|MAX|SUM)\(", "MIN("),
)
"""What is replaced in a query of ours, and by what."""


def near_misses(query: str) -> tuple[str, ...]:
    """One slip each."""
    changed = (re.sub(pattern, instead, query) for pattern, instead in SLIPS)
    return tuple(each for each in changed if each != query)
