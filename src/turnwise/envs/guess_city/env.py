"""Guess my city: questions about a hidden city are answered in a few words."""

import csv
from functools import cache
from importlib import resources
from typing import Annotated

from pydantic import Field

from turnwise.envs.guess_city.topics import TOPICS
from turnwise.envs.guessing.env import GuessingGame
from turnwise.envs.guessing.facts import FactTable, Secret

NUM_CITIES = 150


class GuessCity(GuessingGame):
    """I think of a city: ask questions, then guess it."""

    opening = "Which city is it?"
    examples = "A question: Is it in Asia? A guess: Is it Atlantis?"

    class Params(GuessingGame.Params):
        num_words: Annotated[int, Field(ge=5, le=NUM_CITIES)] = NUM_CITIES
        """Number of cities in play, 5 to 150."""

    params: Params

    @classmethod
    def table(cls) -> FactTable:
        return load_cities()


@cache
def load_cities() -> FactTable:
    """Read cities.csv: one line per city with its name, aliases after a /, and a fact for each topic."""
    text = (resources.files("turnwise.envs.guess_city") / "cities.csv").read_text(encoding="utf-8")
    return FactTable([parse_city(row) for row in csv.DictReader(text.splitlines())], TOPICS)


def parse_city(row: dict[str, str]) -> Secret:
    name, *aliases = row["name"].split("/")
    return Secret(name=name, aliases=tuple(aliases), facts={topic.key: row[topic.key] for topic in TOPICS})
