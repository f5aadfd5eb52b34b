"""The answer format: `<answer>Up || Left</answer>`, optionally with `<think>...</think>` before it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.tools.call_formats import strip_thinking

SEPARATOR = "||"
MAX_PROBLEM_CHARS = 200
"""Characters of a ValueError's text that the agent reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Parsed reply: actions, or a short problem that is shown to the model."""

    actions: tuple[str, ...] = ()
    problem: str = ""


def read_answer(text: str, *, several: bool) -> Answer:
    """Parse the last complete answer outside of the thinking. Never raises.

    `several`: the environment takes more than one action per turn. Otherwise the separator is part of the action, as
    in a SQL query with `a || b`.
    """
    spoken = strip_thinking(text)
    start = spoken.rfind("<answer>", 0, max(spoken.rfind("</answer>"), 0))
    if start < 0:
        return Answer(problem="No answer found.")
    inside = spoken[start + len("<answer>") : spoken.find("</answer>", start)]
    parts = inside.split(SEPARATOR) if several else [inside]
    actions = tuple(part.strip() for part in parts if part.strip())
    return Answer(actions=actions) if actions else Answer(problem="Empty answer.")


def format_answer(actions: Sequence[str], think: str | None = None) -> str:
    """Format a reply with these actions; the inverse of `read_answer`."""
    thought = "" if think is None else f"<think>{think}</think>"
    return f"{thought}<answer>{f' {SEPARATOR} '.join(actions)}</answer>"


def random_word(rng: random.Random, observation: str) -> str:
    """Return an answer of the right format without meaning: a word of the observation, or a number."""
    words = [*observation.split()[:50], *map(str, range(101))]
    return format_answer([rng.choice(words)])


def match_name(action: str, names: Sequence[str]) -> str:
    """Return the name that equals `action`, ignoring case. Raises ValueError if there is none."""
    for name in names:
        if name.casefold() == action.casefold():
            return name
    raise ValueError  # without a text: the prompt lists the names


def invalid_action_line(error: ValueError) -> str:
    """Return what the agent reads after an invalid action: the error's text, if it has one.

    The text may quote anything, for example the agent's own words, so it becomes one printable line of bounded length.
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in str(error)[: 4 * MAX_PROBLEM_CHARS])
    text = " ".join(printable.split())
    if not text:
        return "Invalid action."
    return f"Invalid action: {text[:MAX_PROBLEM_CHARS]}{'...' if len(text) > MAX_PROBLEM_CHARS else ''}"
