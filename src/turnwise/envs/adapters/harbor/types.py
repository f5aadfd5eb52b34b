"""Errors of reading Harbor tasks."""


class Unsupported(Exception):
    """The sandbox cannot reproduce something that a task needs. The message is one line: where, and why."""

    def __init__(self, where: str, reason: str) -> None:
        shown = where if len(where) <= 160 else f"{where[:157]}..."
        super().__init__(f"{shown}: {reason}")
