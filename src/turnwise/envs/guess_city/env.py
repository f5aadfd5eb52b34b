"""Guess my city: questions about a hidden city are answered in a few words."""

import csv
from collections.abc import Sequence
from functools import cache
from typing import Annotated

from pydantic import Field

from turnwise.envs.guessing.env import GuessingGame
from turnwise.envs.guessing.facts import FactTable, Secret, Topic, load_topics
from turnwise.files.package_data import read_data

NUM_CITIES = 150


@cache
def load_cities() -> FactTable:
    """Read cities.csv: one line per city with its name, aliases after a /, and a fact for each topic."""
    topics = load_topics("turnwise.envs.guess_city", "topics.toml")
    lines = read_data("turnwise.envs.guess_city", "cities.csv").splitlines()
    return FactTable([parse_city(row, topics) for row in csv.DictReader(lines)], topics)


def parse_city(row: dict[str, str], topics: Sequence[Topic]) -> Secret:
    name, *aliases = row["name"].split("/")
    return Secret(name=name, aliases=tuple(aliases), facts={topic.key: row[topic.key] for topic in topics})


class GuessCity(GuessingGame):
    """I think of a city: ask questions, then guess it."""

    opening = "Which city is it?"
    examples = "A question: Is it in Asia? A guess: Is it Atlantis?"

    class Params(GuessingGame.Params):
        num_words: Annotated[int, Field(ge=5, le=NUM_CITIES)] = NUM_CITIES
        """Number of cities in play, 5 to 150."""

    params: Params
    table = staticmethod(load_cities)
