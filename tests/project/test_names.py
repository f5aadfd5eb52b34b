"""Variables of the source say what they hold."""

import ast
from pathlib import Path

import turnwise

SRC = Path(turnwise.__file__).parent
VAGUE = {"each", "found"}
TO_DO = ("run", "config", "settings", "cli")
"""Parts that still have such names. An entry goes when its part has none."""


def is_vague(node: ast.AST) -> bool:
    """Tell whether a node assigns a vague name, as a variable or as a parameter."""
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Store) and node.id in VAGUE
    return isinstance(node, ast.arg) and node.arg in VAGUE


def test_variables_say_what_they_hold() -> None:
    places = [
        f"{path}:{node.lineno}"  # type: ignore[attr-defined]
        for file in SRC.rglob("*.py")
        if not (path := file.relative_to(SRC).as_posix()).startswith(TO_DO)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if is_vague(node)
    ]
    assert places == []
