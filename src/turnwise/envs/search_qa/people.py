"""The large world: people, towns, companies and books, with names that nobody bears."""

import random
from functools import lru_cache

from turnwise.core.random_streams import stream
from turnwise.envs.search_qa.world import Relation, World
from turnwise.tools.search.types import Passage

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
FEWEST = 10

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
def shared_world(size: int, seed: int) -> World:
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
    return World(kinds=kinds, facts=facts, relations=RELATIONS, passages=passages)


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
