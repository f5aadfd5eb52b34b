"""A question with the query that answers it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    text: str
    query: str
    ordered: bool = False
    """The question asks for an order of rows."""
