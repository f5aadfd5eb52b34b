"""Twenty questions: a thing is hidden, and questions are answered with yes or no."""

from functools import cache
from importlib import resources
from typing import Annotated

from pydantic import Field

from turnwise.envs.guessing.facts import FactTable, Secret
from turnwise.envs.guessing.game import GuessingGame
from turnwise.envs.twenty_questions.attributes import ATTRIBUTES, TOPICS

NUM_WORDS = 250
ARTICLES = ("a", "an", "the")


class TwentyQuestions(GuessingGame):
    """I think of a thing: ask questions, then guess it."""

    opening = "What is it?"
    examples = "A question: Is it alive? A guess: Is it a wall?"

    class Params(GuessingGame.Params):
        num_words: Annotated[int, Field(ge=5, le=NUM_WORDS)] = NUM_WORDS
        """How many words are in play."""

    params: Params

    @classmethod
    def table(cls) -> FactTable:
        return things()


@cache
def things() -> FactTable:
    """The things of the list with Yes or No for each attribute."""
    text = (resources.files("turnwise.envs.twenty_questions") / "things.txt").read_text(encoding="utf-8")
    return FactTable(read_things(text), TOPICS)


def read_things(text: str) -> list[Secret]:
    """Reads the list; how it is written stands at its head."""
    things, group = list[Secret](), set[str]()
    for line in text.splitlines():
        if line.startswith("["):
            group = set(line.strip("[]").split())
        elif line and not line.startswith("#"):
            names, _, changes = line.partition(":")
            things.append(thing(names, group, changes.split()))
    return things


def thing(names: str, group: set[str], changes: list[str]) -> Secret:
    """One line of the list: a thing with its group's attributes, less those with a minus, and its own."""
    less = {change[1:] for change in changes if change.startswith("-")}
    own = {change for change in changes if not change.startswith("-")}
    if wrong := (less - group) | (own & group) | (own | group) - ATTRIBUTES.keys():
        raise ValueError(f"{names}: {', '.join(sorted(wrong))} cannot be set here")
    true = group - less | own
    full, *aliases = names.split(" / ")
    first, _, rest = full.partition(" ")
    article, name = (f"{first} ", rest) if first in ARTICLES else ("", full)
    return Secret(
        name=name,
        article=article,
        aliases=tuple(aliases),
        facts={key: "Yes" if key in true else "No" for key in ATTRIBUTES},
    )
