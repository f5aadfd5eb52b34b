"""Errors for users are sentences: they start with a capital, a name in quotes or a setting, and end with a period."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import turnwise

SRC = Path(turnwise.__file__).parent
ERRORS = {"UserError", "InvalidSetting", "Outage", "FileNotServed"}
START = re.compile(
    r"[A-Z0-9\"'`(-]|\w+[._]|(vLLM|turnwise|mcp|math-verify|reasoning-gym)\b|(seeds|tries|gpus|timeout|like|host|token|engine)\b"
)
"""The last group are names of options and settings, followed by their value."""
END = re.compile(r"[.?!`]\)?\s*$|: $")


def literal(node: ast.expr, end: int) -> str | None:
    """Return the text at the start (0) or the end (-1) of a message; None for a placeholder."""
    if isinstance(node, ast.BinOp):
        return literal(node.right if end else node.left, end)
    if isinstance(node, ast.JoinedStr):
        return literal(node.values[end], end)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def messages() -> Iterator[tuple[str, ast.expr]]:
    for file in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS and node.args:
                yield f"{file.relative_to(SRC)}:{node.lineno}", node.args[0]


def test_errors_are_sentences() -> None:
    found = list(messages())
    starts = {place: text for place, message in found if (text := literal(message, 0)) and not START.match(text)}
    ends = {place: text for place, message in found if (text := literal(message, -1)) and not END.search(text)}
    assert len(found) > 300 and (starts, ends) == ({}, {})
