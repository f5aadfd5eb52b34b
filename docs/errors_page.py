"""The errors reference: messages of UserError in the source, by topic, with values as capital letters."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "turnwise"
ERRORS = ("UserError", "Outage", "DivergedError")
TOPICS = {
    "Your environment": (
        "envs/class_checks.py",
        "envs/protocol_env.py",
        "envs/runner.py",
        "envs/spec.py",
        "envs/text_env.py",
        "envs/tool_env.py",
    ),
    "Tools": ("tools/function.py", "tools/toolbox.py", "tools/mcp/options.py", "envs/tools/*.py"),
    "Rewards and judges": ("rewards/functions.py", "rewards/factory.py"),
    "Agents and trainers": ("run/agents.py", "run/trainer.py", "run/remote_trainer.py", "gateway/*.py"),
    "Models": ("models/loading/*.py", "render/*.py"),
    "Memory and engines": ("engine/**/*.py",),
    "Data and demonstrations": ("run/stored_sources.py", "run/datasets.py", "run/demos.py", "run/sft.py"),
    "Run folders and resuming": ("record/*.py", "training/checkpoints.py", "run/training_run.py", "files/disk.py"),
}
"""Topic of the page -> the files of its errors. Messages of other files are rarer, or name a setting and its values."""
BOUNDARY = re.compile(r"(?<=[^\s:.])[:.] (?=[A-Za-z`])")
MAX_WORDS = 20
"""Longest message of the page: longer ones explain themselves."""


def errors() -> str:
    return "\n".join(topic(name, patterns) for name, patterns in TOPICS.items())


def topic(name: str, patterns: tuple[str, ...]) -> str:
    files = sorted({file for pattern in patterns for file in SOURCE.glob(pattern)})
    rows = sorted({row for file in files for row in read_rows(file)}, key=lambda row: row[0].strip("`").lower())
    if not rows:
        raise ValueError(f"no error belongs to {name}")
    return f"## {name}\n\n" + "".join(f"- {message}: {fix}.\n" for message, fix in rows)


def read_rows(file: Path) -> Iterator[tuple[str, str]]:
    """Yield (message, fix) of each error whose text has both."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)):
            continue
        if node.exc.func.id in ERRORS and node.exc.args and (text := text_of(node.exc.args[0])):
            *before, fix = BOUNDARY.split(text)
            message = text[: -len(fix)].rstrip(" :.") if before else ""
            if is_found_by(message) and len(text.split()) <= MAX_WORDS and re.search(r"\b[a-z]{2,} .*\b[a-z]", fix):
                yield f"`{message.replace('`', '')}`", fix.rstrip(".")


def is_found_by(message: str) -> bool:
    """Return whether a message has words to search for; one that begins with a value of any kind has few."""
    return not message.startswith("…") and len(re.findall(r"\b[a-z]{2,}", message)) > 2


def text_of(node: ast.expr) -> str:
    """Return the text of a literal, with names for the values in it."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if not isinstance(node, ast.JoinedStr):
        return ""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else placeholder(part) for part in node.values)


def placeholder(part: ast.expr) -> str:
    value = part.value if isinstance(part, ast.FormattedValue) else part
    name = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
    return name.strip("_").upper() or "…"
