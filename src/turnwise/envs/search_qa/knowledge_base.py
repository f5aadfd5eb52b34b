"""Generated knowledge bases: entities, relations between them, a passage about each, and multi-hop questions.

Two kinds: `small` has a handful of entities, drawn per task, in words that are single tokens for the model tiny;
`people` is one large corpus for all tasks, with invented names.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from turnwise.core.random_streams import random_stream
from turnwise.files.package_data import load_toml
from turnwise.tools.search.types import Passage


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """From an entity to exactly one other entity or value, so that a question has one answer."""

    name: str
    subject: str
    """Entity type that has this relation."""
    object: str = ""
    """Entity type that it leads to; empty: a plain value, about which nothing more can be asked."""
    sentence: str
    """Template of the sentence in a passage, with {name} and {value}."""
    phrase: str
    """Template of the phrase in a question, such as `the author of {}`."""
    question: str = "What is {}?"

    def state(self, name: str, value: str) -> str:
        return self.sentence.format(name=name, value=value)

    def extract(self, name: str, text: str) -> str | None:
        """Return the value that a passage states for this entity."""
        pattern = re.escape(self.sentence.format(name=name, value="\0")).replace(re.escape("\0"), "([^.]+?)")
        match = re.search(pattern, text)
        return match[1] if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeBase:
    entity_types: Mapping[str, str]
    """entity -> type"""
    facts: Mapping[tuple[str, str], str]
    """(entity, relation) -> entity or value"""
    relations: tuple[Relation, ...]
    passages: tuple[Passage, ...]

    @property
    def entities(self) -> list[str]:
        return list(self.entity_types)

    def values(self, relation: str) -> list[str]:
        """All distinct values of this relation."""
        return sorted({value for (_, name), value in self.facts.items() if name == relation})


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiHopQuestion:
    text: str
    path: tuple[Relation, ...]
    """Relations from the first entity to the answer."""
    entities: tuple[str, ...]
    """Entities whose passages are needed, one per hop; the question names the first."""
    answer: str


def draw_question(knowledge: KnowledgeBase, hops: int, rng: random.Random) -> MultiHopQuestion:
    """Draw a question that needs exactly `hops` passages. Neither the question nor the path contains the answer."""
    entities = knowledge.entities
    while True:
        path = _draw_path(knowledge.relations, hops, rng)
        start = rng.choice(entities)
        if path is None or knowledge.entity_types[start] != path[0].subject:
            continue
        visited = [start]
        for relation in path:
            visited.append(knowledge.facts[visited[-1], relation.name])
        if len(set(visited)) == len(visited):
            text = _question_text(start, path)
            return MultiHopQuestion(text=text, path=path, entities=tuple(visited[:-1]), answer=visited[-1])


def _draw_path(relations: tuple[Relation, ...], hops: int, rng: random.Random) -> tuple[Relation, ...] | None:
    """Draw relations that follow each other; None if the path reaches a plain value too early."""
    path = [rng.choice(relations)]
    while len(path) < hops:
        following = [relation for relation in relations if relation.subject == path[-1].object]
        if not following:
            return None
        path.append(rng.choice(following))
    return tuple(path)


def _question_text(start: str, path: tuple[Relation, ...]) -> str:
    phrase = start
    for relation in path:
        phrase = relation.phrase.format(phrase)
    text = path[-1].question.format(phrase)
    return text[0].upper() + text[1:]


def next_step(question: MultiHopQuestion, passages: Mapping[str, str]) -> tuple[str, str] | str | None:
    """Decide what to do after reading `passages` (title -> text): look up (entity, relation), or give the answer.

    None: a passage does not state what it should.
    """
    entity = question.entities[0]
    for relation in question.path:
        if entity not in passages:
            return entity, relation.name
        value = relation.extract(entity, passages[entity])
        if value is None:
            return None
        entity = value
    return entity


_SMALL_ENTITIES = "Baker Farmer Pirate Teacher Hunter Clerk Racer Trader Tiger Sheep Dragon"
SMALL_ENTITIES = tuple(_SMALL_ENTITIES.split())
COLOURS = ("red", "blue", "green", "black", "white", "yellow", "pink", "brown")
PRICES = tuple(str(price) for price in range(1, 10))
THING = "thing"
COLOUR = Relation(name="colour", subject=THING, phrase="colour of {}", question="{}?", sentence="Colour {value}.")
PRICE = Relation(name="price", subject=THING, phrase="price of {}", question="{}?", sentence="Price {value}.")
NEXT = Relation(
    name="next", subject=THING, object=THING, phrase="the one next to {}", question="{}?", sentence="Next {value}."
)


def make_small_knowledge_base(size: int, rng: random.Random, *, chained: bool) -> KnowledgeBase:
    """Draw a new one per task, so that nothing can be memorised. `chained`: entities also refer to each other."""
    names = rng.sample(SMALL_ENTITIES, size)
    relations = (COLOUR, PRICE, NEXT) if chained else (COLOUR, PRICE)
    facts: dict[tuple[str, str], str] = {}
    for index, name in enumerate(names):
        facts[name, COLOUR.name] = rng.choice(COLOURS)
        facts[name, PRICE.name] = rng.choice(PRICES)
        if chained:
            facts[name, NEXT.name] = names[(index + 1) % size]  # a ring, so that no path returns too early
    passages = tuple(
        Passage(
            title=name,
            text=" ".join(relation.state(name, facts[name, relation.name]) for relation in relations),
            id=name,
        )
        for name in names
    )
    return KnowledgeBase(entity_types=dict.fromkeys(names, THING), facts=facts, relations=relations, passages=passages)


def _load_relation(name: str, fields: Mapping[str, str]) -> Relation:
    question = "Who is {}?" if fields.get("object") == "person" else "What is {}?"
    return Relation(name=name, phrase=f"the {name} of {{}}", question=question, **fields)


RELATIONS = tuple(
    _load_relation(name, fields) for name, fields in load_toml("turnwise.envs.search_qa", "relations.toml").items()
)
ENTITY_SHARES = {"person": 2, "town": 1, "company": 1, "book": 1}
"""Entities of each type per five passages."""
MIN_PEOPLE_PASSAGES = 10

ONSETS = ("b", "br", "d", "dr", "f", "g", "gr", "h", "k", "kl", "l", "m", "n", "p", "r", "s", "st", "t", "v", "z")
VOWELS = ("a", "e", "i", "o", "u", "au", "ei")
CODAS = ("l", "m", "n", "r", "s", "k", "nd", "lt", "rn", "x")
_FIRST_NAMES = "Ada Ben Cleo Dora Emil Fred Gina Hugo Ines Jon Kara Lars Mona Nils"
FIRST_NAMES = tuple(_FIRST_NAMES.split())
TOWN_ENDINGS = ("ton", "burg", "wick", "ford", "stead")
COMPANY_ENDINGS = ("Works", "Mills", "Lines", "Brothers", "and Sons")
BOOK_BEGINNINGS = ("The Lantern of", "The Winter of", "A Letter to", "The Gates of", "Songs for")
INSTRUMENTS = ("violin", "harp", "trumpet", "piano", "flute", "drums", "cello", "organ")
PRODUCTS = ("bicycles", "clocks", "lamps", "paper", "tea", "glass", "ropes", "boots", "maps", "candles")


@lru_cache(maxsize=4)
def shared_knowledge_base(size: int, seed: int) -> KnowledgeBase:
    """Generate `size` entities and passages; the same in every process for equal arguments."""
    rng = random_stream("search_qa", size, seed)
    entity_types = _draw_entities(size, rng)
    rivers, regions = ([_draw_syllable(rng).capitalize() for _ in range(count)] for count in (40, 12))
    values = {
        "instrument": INSTRUMENTS,
        "age": [str(age) for age in range(20, 91)],
        "river": rivers,
        "region": regions,
        "product": PRODUCTS,
        "year": [str(year) for year in range(1850, 2021)],
    }
    by_type = {
        entity_type: [name for name, of in entity_types.items() if of == entity_type] for entity_type in ENTITY_SHARES
    }
    facts = {
        (name, relation.name): rng.choice(
            [other for other in by_type[relation.object] if other != name] if relation.object else values[relation.name]
        )
        for name, entity_type in entity_types.items()
        for relation in RELATIONS
        if relation.subject == entity_type
    }
    passages = tuple(_write_passage(name, entity_type, facts, rng) for name, entity_type in entity_types.items())
    return KnowledgeBase(entity_types=entity_types, facts=facts, relations=RELATIONS, passages=passages)


def _draw_entities(size: int, rng: random.Random) -> dict[str, str]:
    """Draw names and return name -> type. No stem occurs twice, so that a search finds a name by its own words."""
    entity_types: dict[str, str] = {}
    stems: set[str] = set()
    order = [entity_type for entity_type, share in ENTITY_SHARES.items() for _ in range(share)]
    while len(entity_types) < size:
        stem = _draw_syllable(rng) + _draw_syllable(rng)
        if stem in stems:
            continue
        stems.add(stem)
        entity_type = order[len(entity_types) % len(order)]
        entity_types[_make_name(entity_type, stem.capitalize(), rng)] = entity_type
    return entity_types


def _draw_syllable(rng: random.Random) -> str:
    return rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)


def _make_name(entity_type: str, stem: str, rng: random.Random) -> str:
    match entity_type:
        case "person":
            return f"{rng.choice(FIRST_NAMES)} {stem}"
        case "town":
            return stem + rng.choice(TOWN_ENDINGS)
        case "company":
            return f"{stem} {rng.choice(COMPANY_ENDINGS)}"
    return f"{rng.choice(BOOK_BEGINNINGS)} {stem}"


def _write_passage(name: str, entity_type: str, facts: dict[tuple[str, str], str], rng: random.Random) -> Passage:
    relations = [relation for relation in RELATIONS if relation.subject == entity_type]
    sentences = [relation.state(name, facts[name, relation.name]) for relation in rng.sample(relations, len(relations))]
    return Passage(title=name, text=" ".join(sentences), id=name)
