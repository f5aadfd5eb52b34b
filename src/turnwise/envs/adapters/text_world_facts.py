"""Short observations of TextWorld games, made from their facts instead of their long prose."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

DIRECTIONS = ("north", "south", "east", "west")
CONDITIONS = ("open", "closed", "locked")

Fact = tuple[str, ...]
"""A predicate and the names of its arguments: ("in", "key", "box")."""


def plain_facts(facts: Iterable[Any]) -> list[Fact]:
    return [(str(fact.name), *(str(argument.name) for argument in fact.arguments)) for fact in facts]


def describe_facts(facts: Sequence[Fact]) -> str:
    """Describe the room, its exits, visible objects and the inventory. Closed containers hide their contents."""
    room = next(name for predicate, *rest in facts if predicate == "at" and rest[0] == "P" for name in rest[1:])
    inside, conditions = _contents(facts), _conditions(facts)
    things = [_thing(thing, inside, conditions) for thing in sorted(inside[room]) if thing != "P"]
    lines = [
        f"You are in the {room}.",
        f"Exits: {', '.join(_exits(room, facts, conditions)) or 'none'}.",
        f"Here: {', '.join(things) or 'nothing'}.",
        f"You carry: {', '.join(sorted(inside['I'])) or 'nothing'}.",
    ]
    return "\n".join(lines)


def _contents(facts: Sequence[Fact]) -> dict[str, list[str]]:
    contents: dict[str, list[str]] = defaultdict(list)
    for name, *rest in facts:
        if name in ("at", "in", "on"):
            contents[rest[1]].append(rest[0])
    return contents


def _conditions(facts: Sequence[Fact]) -> dict[str, str]:
    return {rest[0]: name for name, *rest in facts if name in CONDITIONS}


def _thing(thing: str, inside: dict[str, list[str]], conditions: dict[str, str]) -> str:
    condition = conditions.get(thing, "")
    hidden = condition in ("closed", "locked")
    notes = [condition, "" if hidden else f"holds {' and '.join(sorted(inside[thing]))}" if inside[thing] else ""]
    noted = ", ".join(note for note in notes if note)
    return f"{thing} ({noted})" if noted else thing


def _exits(room: str, facts: Sequence[Fact], conditions: dict[str, str]) -> list[str]:
    doors = {rest[2]: rest[1] for name, *rest in facts if name == "link" and rest[0] == room}
    exits = []
    for direction in DIRECTIONS:
        for name, *rest in facts:
            if name == f"{direction}_of" and rest[1] == room:
                door = doors.get(rest[0])
                exits.append(f"{direction} ({door}, {conditions[door]})" if door else direction)
    return exits
