"""Twenty questions: yes-or-no questions about a hidden thing."""

from collections.abc import Sequence
from functools import cache
from typing import Annotated

from pydantic import Field

from turnwise.envs.guessing.env import GuessingGame
from turnwise.envs.guessing.facts import FactTable, Secret, load_topics
from turnwise.files.package_data import read_data

NUM_THINGS = 250
ARTICLES = ("a", "an", "the")


@cache
def load_things() -> FactTable:
    topics = load_topics("turnwise.envs.twenty_questions", "attributes.toml")
    text = read_data("turnwise.envs.twenty_questions", "things.txt")
    return FactTable(parse_things(text, [topic.key for topic in topics]), topics)


def parse_things(text: str, attributes: Sequence[str]) -> list[Secret]:
    """Parse the list of things; the head of things.txt describes its format."""
    things, group = list[Secret](), set[str]()
    for line in text.splitlines():
        if line.startswith("["):
            group = set(line.strip("[]").split())
        elif line and not line.startswith("#"):
            names, _, changes = line.partition(":")
            things.append(parse_thing(names, group, changes.split(), attributes))
    return things


def parse_thing(names: str, group: set[str], changes: list[str], attributes: Sequence[str]) -> Secret:
    """Parse one line: the group's attributes, without those marked with a minus, plus the thing's own."""
    removed = {change[1:] for change in changes if change.startswith("-")}
    added = {change for change in changes if not change.startswith("-")}
    if wrong := (removed - group) | (added & group) | (added | group).difference(attributes):
        raise ValueError(f"{names}: {', '.join(sorted(wrong))} cannot be set here")
    true = group - removed | added
    full, *aliases = names.split(" / ")
    first, _, rest = full.partition(" ")
    article, name = (f"{first} ", rest) if first in ARTICLES else ("", full)
    return Secret(
        name=name,
        article=article,
        aliases=tuple(aliases),
        facts={key: "Yes" if key in true else "No" for key in attributes},
    )


class TwentyQuestions(GuessingGame):
    """I think of a thing: ask questions, then guess it."""

    opening = "What is it?"
    examples = "A question: Is it alive? A guess: Is it a wall?"

    class Params(GuessingGame.Params):
        num_words: Annotated[int, Field(ge=5, le=NUM_THINGS)] = NUM_THINGS
        """Number of things in play, 5 to 250."""

    params: Params
    table = staticmethod(load_things)
