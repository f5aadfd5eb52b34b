"""What the parts of a rubric read: references out of a row, and what the agent said."""

from collections.abc import Mapping
from typing import Any, Literal

from turnwise.core.errors import UserError
from turnwise.core.suggestions import nearest_of_few
from turnwise.rewards.rubric import Answered

Of = Literal["answer", "said"]
"""The answer alone, or all that the agent said in the episode."""
LONGEST = 200_000
"""Characters that are looked at."""


def column(row: Mapping[str, Any], name: str) -> Any:
    """Of a row that was read from a file: a column that it lacks is a mistake in the settings or in the file."""
    if name not in row:
        raise UserError(
            f'a reward asks for the column "{name}", which a row lacks:{nearest_of_few(name, map(str, row))}'
        )
    return row[name]


def references(row: Mapping[str, Any], name: str) -> list[str]:
    """The accepted answers: one, or a list of them."""
    value = column(row, name)
    accepted = list(value) if isinstance(value, list | tuple) else [value]
    if not accepted or not all(isinstance(each, str | int | float) for each in accepted):
        raise UserError(f'the column "{name}" of a row is no answer: give a text, a number or a list of them')
    return [str(each) for each in accepted]


def looked_at(answered: Answered, of: Of) -> str:
    if of == "answer":
        return answered.answer[:LONGEST]
    said = [message.content for message in answered.messages if message.role == "assistant"]
    return "\n".join(said or [answered.answer])[:LONGEST]
