"""Questions about a world: a thing, and the way of relations from it to the answer."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from turnwise.envs.search_qa.world import Relation, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    text: str
    start: str
    way: tuple[Relation, ...]
    answer: str
    things: tuple[str, ...]
    """Whose passages tell it, one a hop: the start first."""


def draw_question(world: World, hops: int, rng: random.Random) -> Question:
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


def _question(start: str, way: tuple[Relation, ...], things: list[str]) -> Question:
    named = start
    for relation in way:
        named = relation.phrase.format(named)
    text = way[-1].question.format(named)
    return Question(text=text[0].upper() + text[1:], start=start, way=way, answer=things[-1], things=tuple(things[:-1]))


def next_step(question: Question, heard: Mapping[str, str]) -> tuple[str, str] | str | None:
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
