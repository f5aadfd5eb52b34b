"""The small world: a handful of things, each with a colour and a price, in words that are single tokens to tiny."""

import random

from turnwise.envs.search_qa.world import Relation, World
from turnwise.tools.search.types import Passage

NAMES = ("Baker", "Farmer", "Pirate", "Teacher", "Hunter", "Clerk", "Racer", "Trader", "Tiger", "Sheep", "Dragon")
COLOURS = ("red", "blue", "green", "black", "white", "yellow", "pink", "brown")
PRICES = tuple(str(price) for price in range(1, 10))
KIND = "thing"
COLOUR = Relation(name="colour", of=KIND, phrase="colour of {}", question="{}?", sentence="Colour {value}.")
PRICE = Relation(name="price", of=KIND, phrase="price of {}", question="{}?", sentence="Price {value}.")
NEXT = Relation(name="next", of=KIND, to=KIND, phrase="the one next to {}", question="{}?", sentence="Next {value}.")


def make_small_world(size: int, rng: random.Random, *, chained: bool) -> World:
    """Drawn anew for every task, so that nothing can be learnt by heart. `chained`: things lead to one another."""
    names = rng.sample(NAMES, size)
    relations = (COLOUR, PRICE, NEXT) if chained else (COLOUR, PRICE)
    facts: dict[tuple[str, str], str] = {}
    for place, name in enumerate(names):
        facts[name, COLOUR.name] = rng.choice(COLOURS)
        facts[name, PRICE.name] = rng.choice(PRICES)
        if chained:
            facts[name, NEXT.name] = names[(place + 1) % size]  # a ring, so that no way leads back too soon
    passages = tuple(
        Passage(title=name, text=" ".join(each.told(name, facts[name, each.name]) for each in relations), id=name)
        for name in names
    )
    return World(kinds=dict.fromkeys(names, KIND), facts=facts, relations=relations, passages=passages)
