"""Questions about one table: which rows, how many, the largest, what differs, what is missing."""

import random
from collections.abc import Callable

from turnwise.envs.text_to_sql.question import Planted, Question
from turnwise.envs.text_to_sql.schema import Column, Schema, Table

AGGREGATES = {"average": "AVG", "highest": "MAX", "lowest": "MIN", "total": "SUM"}
NEIGHBOURS: dict[str, tuple[int, ...]] = {">": (1,), "<": (-1,), ">=": (-1,), "=": ()}
"""By sign: how far off is the row by which a bound and the next one differ."""
Maker = Callable[[random.Random, Schema], Question]


def draw_table(rng: random.Random, schema: Schema, having: Callable[[Table], object]) -> Table:
    return rng.choice([table for table in schema.tables if having(table)])


def middling(rng: random.Random, column: Column) -> int:
    """A number that some rows lie above and some below."""
    span = column.high - column.low
    return rng.randint(column.low + span // 4, column.high - span // 4)


def at_the_bound(table: Table, number: Column, sign: str, bound: int) -> Planted:
    """Rows for which "above" and "at least" differ, and this bound and the next."""
    values = (bound, *(bound + off for off in NEIGHBOURS[sign]))
    return Planted(table=table.name, column=number.name, values=values)


def is_group(rng: random.Random, group: Column) -> tuple[str, str]:
    """A condition in words and in SQL."""
    value = rng.choice(group.values)
    return f"{group.words} is {value}", f"{group.name} = '{value}'"


def of_a_group(rng: random.Random, schema: Schema) -> Question:
    table = draw_table(rng, schema, lambda table: table.groups)
    words, condition = is_group(rng, rng.choice(table.groups))
    label = table.label
    return Question(
        text=f"Give the {label.words} of every {table.noun} whose {words}.",
        query=f"SELECT {label.name} FROM {table.name} WHERE {condition}",
    )


def beyond(rng: random.Random, schema: Schema) -> Question:
    table = draw_table(rng, schema, lambda table: table.numbers)
    number, (word, sign) = rng.choice(table.numbers), rng.choice((("above", ">"), ("below", "<")))
    bound, label = middling(rng, number), table.label
    return Question(
        text=f"Give the {label.words} of every {table.noun} with {number.words} {word} {bound}.",
        query=f"SELECT {label.name} FROM {table.name} WHERE {number.name} {sign} {bound}",
        planted=at_the_bound(table, number, sign, bound),
    )


def how_many(rng: random.Random, schema: Schema) -> Question:
    table = draw_table(rng, schema, lambda table: table.numbers)
    number = rng.choice(table.numbers)
    bound = middling(rng, number)
    return Question(
        text=f"How many {table.name} have {number.words} of at least {bound}?",
        query=f"SELECT COUNT(*) FROM {table.name} WHERE {number.name} >= {bound}",
        planted=at_the_bound(table, number, ">=", bound),
    )


def how_many_of_a_group(rng: random.Random, schema: Schema) -> Question:
    table = draw_table(rng, schema, lambda table: table.groups)
    words, condition = is_group(rng, rng.choice(table.groups))
    return Question(
        text=f"How many {table.name} are there whose {words}?",
        query=f"SELECT COUNT(*) FROM {table.name} WHERE {condition}",
    )


def different(rng: random.Random, schema: Schema) -> Question:
    table = draw_table(rng, schema, lambda table: table.groups and table.numbers)
    group, number = rng.choice(table.groups), rng.choice(table.numbers)
    span = number.high - number.low
    bound = number.high - rng.randint(max(1, span // 8), span // 2)  # above it are few, so that each of them counts
    return Question(
        text=f"Give every {group.words} once that {table.name} with {number.words} above {bound} have.",
        query=f"SELECT DISTINCT {group.name} FROM {table.name} WHERE {number.name} > {bound}",
        planted=at_the_bound(table, number, ">", bound),
    )


def aggregate(rng: random.Random, schema: Schema) -> Question:
    table = draw_table(rng, schema, lambda table: table.numbers and table.groups)
    number, (word, function) = rng.choice(table.numbers), rng.choice(sorted(AGGREGATES.items()))
    words, condition = is_group(rng, rng.choice(table.groups))
    return Question(
        text=f"What is the {word} {number.words} of {table.name} whose {words}?",
        query=f"SELECT {function}({number.name}) FROM {table.name} WHERE {condition}",
    )


def missing(rng: random.Random, schema: Schema) -> Question:
    table = draw_table(rng, schema, lambda table: table.gapped)
    column, label = rng.choice(table.gapped), table.label
    return Question(
        text=f"Give the {label.words} of every {table.noun} that has no {column.words}.",
        query=f"SELECT {label.name} FROM {table.name} WHERE {column.name} IS NULL",
    )


def first_few(rng: random.Random, schema: Schema) -> Question:
    """SQLite gives equals by the smaller id if it is not told: so the larger is asked for, and there are equals."""
    table = draw_table(rng, schema, lambda table: table.numbers)
    number, (word, order) = rng.choice(table.numbers), rng.choice((("highest", "DESC"), ("lowest", "ASC")))
    count, label, most = rng.randint(2, 5), table.label, number.high if order == "DESC" else number.low
    return Question(
        text=f"Give the {label.words} and the {number.words} of the {count} {table.name} with the {word} "
        f"{number.words}, the {word} first and of equals the larger id first.",
        query=f"SELECT {label.name}, {number.name} FROM {table.name} "
        f"ORDER BY {number.name} {order}, id DESC LIMIT {count}",
        ordered=True,
        planted=Planted(table=table.name, column=number.name, values=(most, most)),
    )


EASY: tuple[Maker, ...] = (
    of_a_group,
    beyond,
    how_many,
    how_many_of_a_group,
    different,
    aggregate,
    missing,
    first_few,
)
