"""Twenty questions: yes-or-no questions about a hidden thing."""

from functools import cache
from importlib import resources
from typing import Annotated

from pydantic import Field

from turnwise.envs.guessing.env import GuessingGame
from turnwise.envs.guessing.facts import FactTable, Secret, Topic

ATTRIBUTES: dict[str, tuple[str, str]] = {
    "alive": ("Is it alive?", "alive, living, living being"),
    "animal": ("Is it an animal?", "animal, creature"),
    "mammal": ("Is it a mammal?", "mammal"),
    "bird": ("Is it a bird?", "bird, feathers"),
    "plant": ("Is it a plant?", "plant"),
    "food": ("Can you eat it?", "you eat, eat it, people eat, we eat, eaten, edible, food"),
    "fruit": ("Is it a fruit?", "fruit"),
    "sweet": ("Is it sweet?", "sweet, taste sweet"),
    "drink": ("Can you drink it?", "you drink, drink it, people drink, we drink, drinkable, drink, beverage"),
    "wear": ("Can you wear it?", "wear, worn"),
    "tool": ("Is it a tool?", "tool"),
    "furniture": ("Is it furniture?", "furniture, piece of furniture"),
    "vehicle": ("Is it a vehicle?", "vehicle, travel in it"),
    "building": ("Is it a building?", "building"),
    "play": ("Can you play with it?", "play, playing"),
    "music": ("Can you make music with it?", "music, make music, musical instrument"),
    "sit": ("Can you sit on it?", "sit, sit down, seat"),
    "electric": ("Is it electric?", "electric, electrical, electricity, need electricity, electronic, need power"),
    "wheels": ("Does it have wheels?", "wheels, wheel"),
    "four_legs": ("Does it have four legs?", "four legs, 4 legs"),
    "meat": ("Does it eat meat?", "eat meat, carnivore, eat animals, eat other animals, hunt"),
    "flies": ("Does it fly?", "fly, flying, fly in the air"),
    "water": ("Is it found in water?", "water, live in water, aquatic"),
    "farm": ("Is it found on a farm?", "farm, live on a farm"),
    "house": ("Is it found in a house?", "house, home, inside a house, inside a home, indoors, household"),
    "kitchen": ("Is it found in a kitchen?", "kitchen"),
    "cold": ("Is it found in the cold?", "cold, winter, snow, cold weather, cold places"),
    "wood": ("Is it made of wood?", "wood, wooden"),
    "metal": ("Is it made of metal?", "metal, metallic"),
    "cloth": ("Is it made of cloth?", "cloth, fabric, textile"),
    "glass": ("Is it made of glass?", "glass"),
    "holds": ("Does it hold things?", "hold things, hold other things, contain things, container"),
    "hand": (
        "Does it fit in one hand?",
        "fit in one hand, fit in a hand, fit in your hand, fit in my hand, small, tiny",
    ),
    "big": ("Is it bigger than a car?", "bigger than a car, larger than a car, big, large, huge"),
    "round": ("Is it round?", "round, circular"),
    "sharp": ("Is it sharp?", "sharp, pointed"),
    "dangerous": ("Is it dangerous?", "dangerous, danger, harmful"),
    "red": ("Is it red?", "red"),
    "green": ("Is it green?", "green"),
    "white": ("Is it white?", "white"),
}
"""key -> (question, phrases that identify it)"""

TOPICS = tuple(
    Topic(key=key, question=question, phrases=tuple(phrases.split(", ")))
    for key, (question, phrases) in ATTRIBUTES.items()
)


NUM_THINGS = 250
ARTICLES = ("a", "an", "the")


class TwentyQuestions(GuessingGame):
    """I think of a thing: ask questions, then guess it."""

    opening = "What is it?"
    examples = "A question: Is it alive? A guess: Is it a wall?"

    class Params(GuessingGame.Params):
        num_words: Annotated[int, Field(ge=5, le=NUM_THINGS)] = NUM_THINGS
        """Number of things in play, 5 to 250."""

    params: Params

    @classmethod
    def table(cls) -> FactTable:
        return load_things()


@cache
def load_things() -> FactTable:
    text = (resources.files("turnwise.envs.twenty_questions") / "things.txt").read_text(encoding="utf-8")
    return FactTable(parse_things(text), TOPICS)


def parse_things(text: str) -> list[Secret]:
    """Parse the list of things; the head of things.txt describes its format."""
    things, group = list[Secret](), set[str]()
    for line in text.splitlines():
        if line.startswith("["):
            group = set(line.strip("[]").split())
        elif line and not line.startswith("#"):
            names, _, changes = line.partition(":")
            things.append(parse_thing(names, group, changes.split()))
    return things


def parse_thing(names: str, group: set[str], changes: list[str]) -> Secret:
    """Parse one line: the group's attributes, without those marked with a minus, plus the thing's own."""
    removed = {change[1:] for change in changes if change.startswith("-")}
    added = {change for change in changes if not change.startswith("-")}
    if wrong := (removed - group) | (added & group) | (added | group) - ATTRIBUTES.keys():
        raise ValueError(f"{names}: {', '.join(sorted(wrong))} cannot be set here")
    true = group - removed | added
    full, *aliases = names.split(" / ")
    first, _, rest = full.partition(" ")
    article, name = (f"{first} ", rest) if first in ARTICLES else ("", full)
    return Secret(
        name=name,
        article=article,
        aliases=tuple(aliases),
        facts={key: "Yes" if key in true else "No" for key in ATTRIBUTES},
    )
