"""The answer format: `<answer>Up || Left</answer>`, with `<think>...</think>` around it if one likes."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.tools.call_formats import strip_thinking

SEPARATOR = "||"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was read from one reply: actions, or a problem in a few words that the model is told."""

    actions: tuple[str, ...] = ()
    problem: str = ""


def read_answer(text: str, *, several: bool) -> Answer:
    """Reads the last complete answer that stands outside of the thinking. Any text is allowed; nothing raises.

    `several`: whether the environment takes more than one action a turn. Where it takes one, the separator has no
    meaning and belongs to the action, as in a query with `a || b`.
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
    """An assistant's reply with these actions: what `read_answer` reads back."""
    thought = "" if think is None else f"<think>{think}</think>"
    return f"{thought}<answer>{f' {SEPARATOR} '.join(actions)}</answer>"


def match_name(action: str, names: Sequence[str]) -> str:
    """The one of `names` that was meant, upper and lower case apart; a ValueError if there is none."""
    for name in names:
        if name.casefold() == action.casefold():
            return name
    raise ValueError("no such action")
