"""Queries that are nearly right: what somebody writes who overlooks a word of the question or takes it for another."""

import re
from collections.abc import Callable
from itertools import permutations

from turnwise.envs.text_to_sql.question import Question

NUMBER = r"(?<=[<>=])\d+|(?<=[<>=] )\d+"


def _shifted(by: int) -> Callable[[re.Match[str]], str]:
    return lambda number: str(int(number[0]) + by)


SLIPS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r" WHERE .*?(?= GROUP BY| ORDER BY|$)", ""),
    (r" HAVING .*?(?= ORDER BY|$)", ""),
    (r"([<>])( ?)(?=\d)", r"\1=\2"),
    (r"([<>])=( ?)(?=\d)", r"\1\2"),
    (NUMBER, _shifted(1)),
    (NUMBER, _shifted(-1)),
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


def near_misses(question: Question) -> tuple[str, ...]:
    """One slip each: on one of two databases at least they must give something else."""
    query = question.query
    slips = [re.sub(pattern, instead, query) for pattern, instead in SLIPS]
    slips += [re.sub(rf"\b{column}\b", other, query) for column, other in permutations(question.alike, 2)]
    return tuple(slip for slip in dict.fromkeys(slips) if slip != query)
