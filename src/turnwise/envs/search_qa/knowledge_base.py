"""A world of facts: what there is, how it hangs together, and a passage about each thing."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from turnwise.core.random_streams import stream
from turnwise.tools.search.types import Passage


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """From a thing to another one, or to a plain value: to one alone, so that a question has one answer."""

    name: str
    of: str
    """Of what kind of thing."""
    to: str = ""
    """To what kind of thing; empty: to a value, of which nothing more can be asked."""
    sentence: str
    """How a passage tells it, with {name} and {value}."""
    phrase: str
    """How a question names it, as `the author of {}`."""
    question: str = "What is {}?"

    def told(self, name: str, value: str) -> str:
        return self.sentence.format(name=name, value=value)

    def read(self, name: str, text: str) -> str | None:
        """The value, out of a text that tells it of this thing."""
        pattern = re.escape(self.sentence.format(name=name, value="\0")).replace(re.escape("\0"), "([^.]+?)")
        found = re.search(pattern, text)
        return found[1] if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeBase:
    kinds: Mapping[str, str]
    """Of each thing, by its name."""
    facts: Mapping[tuple[str, str], str]
    """(thing, relation) -> value."""
    relations: tuple[Relation, ...]
    passages: tuple[Passage, ...]

    @property
    def names(self) -> list[str]:
        return list(self.kinds)

    def values(self, relation: str) -> list[str]:
        """All that this relation leads to, each once."""
        return sorted({value for (_, name), value in self.facts.items() if name == relation})


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiHopQuestion:
    text: str
    start: str
    way: tuple[Relation, ...]
    answer: str
    things: tuple[str, ...]
    """Whose passages tell it, one a hop: the start first."""


def draw_question(world: KnowledgeBase, hops: int, rng: random.Random) -> MultiHopQuestion:
    """Whose answer is `hops` passages away: every one of them is needed, and the question does not name the answer."""
    names = world.names
    while True:
        way = _draw_way(world.relations, hops, rng)
        start = rng.choice(names)
        if way is None or world.kinds[start] != way[0].of:
            continue
        things = [start]
        for relation in way:
            things.append(world.facts[things[-1], relation.name])
        if len(set(things)) == len(things):
            return _question(start, way, things)


def _draw_way(relations: tuple[Relation, ...], hops: int, rng: random.Random) -> tuple[Relation, ...] | None:
    """Relations that follow one another; None where the way came to a value too soon."""
    way = [rng.choice(relations)]
    while len(way) < hops:
        further = [relation for relation in relations if relation.of == way[-1].to]
        if not further:
            return None
        way.append(rng.choice(further))
    return tuple(way)


def _question(start: str, way: tuple[Relation, ...], things: list[str]) -> MultiHopQuestion:
    named = start
    for relation in way:
        named = relation.phrase.format(named)
    text = way[-1].question.format(named)
    return MultiHopQuestion(
        text=text[0].upper() + text[1:], start=start, way=way, answer=things[-1], things=tuple(things[:-1])
    )


def next_step(question: MultiHopQuestion, heard: Mapping[str, str]) -> tuple[str, str] | str | None:
    """What to do by what was heard: (thing, relation) to look up, or the answer. `heard`: passages by their titles.

    None: a passage that was heard does not tell what it should.
    """
    thing = question.start
    for relation in question.way:
        if thing not in heard:
            return thing, relation.name
        value = relation.read(thing, heard[thing])
        if value is None:
            return None
        thing = value
    return thing


NAMES = ("Baker", "Farmer", "Pirate", "Teacher", "Hunter", "Clerk", "Racer", "Trader", "Tiger", "Sheep", "Dragon")
COLOURS = ("red", "blue", "green", "black", "white", "yellow", "pink", "brown")
PRICES = tuple(str(price) for price in range(1, 10))
KIND = "thing"
COLOUR = Relation(name="colour", of=KIND, phrase="colour of {}", question="{}?", sentence="Colour {value}.")
PRICE = Relation(name="price", of=KIND, phrase="price of {}", question="{}?", sentence="Price {value}.")
NEXT = Relation(name="next", of=KIND, to=KIND, phrase="the one next to {}", question="{}?", sentence="Next {value}.")


def make_small_knowledge_base(size: int, rng: random.Random, *, chained: bool) -> KnowledgeBase:
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
    return KnowledgeBase(kinds=dict.fromkeys(names, KIND), facts=facts, relations=relations, passages=passages)


RELATIONS = (
    Relation(
        name="birthplace", of="person", to="town", phrase="the birthplace of {}", sentence="{name} was born in {value}."
    ),
    Relation(
        name="employer", of="person", to="company", phrase="the employer of {}", sentence="{name} works for {value}."
    ),
    Relation(
        name="instrument",
        of="person",
        phrase="the instrument of {}",
        sentence="{name} plays the {value}.",
    ),
    Relation(name="age", of="person", phrase="the age of {}", sentence="{name} is {value} years old."),
    Relation(name="river", of="town", phrase="the river of {}", sentence="{name} lies on the river {value}."),
    Relation(
        name="mayor",
        of="town",
        to="person",
        phrase="the mayor of {}",
        question="Who is {}?",
        sentence="The mayor of {name} is {value}.",
    ),
    Relation(name="region", of="town", phrase="the region of {}", sentence="{name} belongs to the region of {value}."),
    Relation(
        name="founder",
        of="company",
        to="person",
        phrase="the founder of {}",
        question="Who is {}?",
        sentence="{name} was founded by {value}.",
    ),
    Relation(name="seat", of="company", to="town", phrase="the seat of {}", sentence="{name} has its seat in {value}."),
    Relation(name="product", of="company", phrase="the product of {}", sentence="{name} makes {value}."),
    Relation(
        name="author",
        of="book",
        to="person",
        phrase="the author of {}",
        question="Who is {}?",
        sentence="{name} was written by {value}.",
    ),
    Relation(
        name="publisher",
        of="book",
        to="company",
        phrase="the publisher of {}",
        sentence="{name} was published by {value}.",
    ),
    Relation(name="year", of="book", phrase="the year of {}", sentence="{name} appeared in {value}."),
)
SHARES = {"person": 2, "town": 1, "company": 1, "book": 1}
"""Of five passages."""
MIN_PEOPLE_PASSAGES = 10

ONSETS = ("b", "br", "d", "dr", "f", "g", "gr", "h", "k", "kl", "l", "m", "n", "p", "r", "s", "st", "t", "v", "z")
VOWELS = ("a", "e", "i", "o", "u", "au", "ei")
CODAS = ("l", "m", "n", "r", "s", "k", "nd", "lt", "rn", "x")
FIRST_NAMES = (
    "Ada",
    "Ben",
    "Cleo",
    "Dora",
    "Emil",
    "Fred",
    "Gina",
    "Hugo",
    "Ines",
    "Jon",
    "Kara",
    "Lars",
    "Mona",
    "Nils",
)
TOWN_ENDS = ("ton", "burg", "wick", "ford", "stead")
COMPANY_ENDS = ("Works", "Mills", "Lines", "Brothers", "and Sons")
BOOK_STARTS = ("The Lantern of", "The Winter of", "A Letter to", "The Gates of", "Songs for")
INSTRUMENTS = ("violin", "harp", "trumpet", "piano", "flute", "drums", "cello", "organ")
PRODUCTS = ("bicycles", "clocks", "lamps", "paper", "tea", "glass", "ropes", "boots", "maps", "candles")


@lru_cache(maxsize=4)
def shared_knowledge_base(size: int, seed: int) -> KnowledgeBase:
    """Of `size` passages, one a thing; equal for equal numbers, in every process, and made once in each."""
    rng = stream("search_qa", size, seed)
    kinds = _names(size, rng)
    rivers, regions = ([_stem(rng).capitalize() for _ in range(count)] for count in (40, 12))
    values = {
        "instrument": INSTRUMENTS,
        "age": [str(age) for age in range(20, 91)],
        "river": rivers,
        "region": regions,
        "product": PRODUCTS,
        "year": [str(year) for year in range(1850, 2021)],
    }
    by_kind = {kind: [name for name, of in kinds.items() if of == kind] for kind in SHARES}
    facts = {
        (name, relation.name): rng.choice(
            [other for other in by_kind[relation.to] if other != name] if relation.to else values[relation.name]
        )
        for name, kind in kinds.items()
        for relation in RELATIONS
        if relation.of == kind
    }
    passages = tuple(_passage(name, kind, facts, rng) for name, kind in kinds.items())
    return KnowledgeBase(kinds=kinds, facts=facts, relations=RELATIONS, passages=passages)


def _names(size: int, rng: random.Random) -> dict[str, str]:
    """By name the kind. No stem is used twice: a name is found by its own words."""
    kinds: dict[str, str] = {}
    stems: set[str] = set()
    order = [kind for kind, share in SHARES.items() for _ in range(share)]
    while len(kinds) < size:
        stem = _stem(rng) + _stem(rng)
        if stem in stems:
            continue
        stems.add(stem)
        kind = order[len(kinds) % len(order)]
        kinds[_name(kind, stem.capitalize(), rng)] = kind
    return kinds


def _stem(rng: random.Random) -> str:
    return rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)


def _name(kind: str, stem: str, rng: random.Random) -> str:
    match kind:
        case "person":
            return f"{rng.choice(FIRST_NAMES)} {stem}"
        case "town":
            return stem + rng.choice(TOWN_ENDS)
        case "company":
            return f"{stem} {rng.choice(COMPANY_ENDS)}"
    return f"{rng.choice(BOOK_STARTS)} {stem}"


def _passage(name: str, kind: str, facts: dict[tuple[str, str], str], rng: random.Random) -> Passage:
    own = [relation for relation in RELATIONS if relation.of == kind]
    told = [relation.told(name, facts[name, relation.name]) for relation in rng.sample(own, len(own))]
    return Passage(title=name, text=" ".join(told), id=name)
