"""Questions that need groups, two tables, or a query inside a query."""

import random

from turnwise.envs.text_to_sql.one_table import AGGREGATES, Maker, draw_table, is_group, middling
from turnwise.envs.text_to_sql.question import Planted, Question
from turnwise.envs.text_to_sql.schema import Column, Schema, Table


def _joined(rng: random.Random, schema: Schema) -> tuple[Table, Column, Table, str]:
    """A table, its column that refers to another, that other, and how a query joins them.

    All that refer have numbers, and all that are referred to have groups."""
    table, ref = rng.choice([(table, ref) for table in schema.tables for ref in table.refs])
    target = schema.target(ref)
    return table, ref, target, f"{table.name} JOIN {target.name} ON {table.name}.{ref.name} = {target.name}.id"


def _of(table: Table, column: Column) -> str:
    return f"{table.name}.{column.name}"


def count_by_group(rng: random.Random, schema: Schema) -> Question:
    table = draw_table(rng, schema, lambda table: table.groups)
    group = rng.choice(table.groups)
    return Question(
        text=f"For each {group.words} of {table.name}: give the {group.words} and how many {table.name} have it.",
        query=f"SELECT {group.name}, COUNT(*) FROM {table.name} GROUP BY {group.name}",
    )


def aggregate_by_group(rng: random.Random, schema: Schema) -> Question:
    table = draw_table(rng, schema, lambda table: table.groups and table.numbers)
    group, number = rng.choice(table.groups), rng.choice(table.numbers)
    word, function = rng.choice(sorted(AGGREGATES.items()))
    return Question(
        text=f"For each {group.words} of {table.name}: give the {group.words} and the {word} {number.words}.",
        query=f"SELECT {group.name}, {function}({number.name}) FROM {table.name} GROUP BY {group.name}",
    )


def large_groups(rng: random.Random, schema: Schema) -> Question:
    table = draw_table(rng, schema, lambda table: table.groups)
    group = rng.choice(table.groups)
    usual = sum(table.rows) // 2 // len(group.values)  # some have more, and some have fewer
    count = rng.randint(max(1, usual - 1), usual + 1)
    return Question(
        text=f"Give every {group.words} that more than {count} {table.name} have.",
        query=f"SELECT {group.name} FROM {table.name} GROUP BY {group.name} HAVING COUNT(*) > {count}",
    )


def above_average(rng: random.Random, schema: Schema) -> Question:
    table = draw_table(rng, schema, lambda table: table.numbers)
    number, label = rng.choice(table.numbers), table.label
    word, sign = rng.choice((("above", ">"), ("below", "<")))
    return Question(
        text=f"Give the {label.words} of every {table.noun} whose {number.words} is {word} the average "
        f"{number.words} of all {table.name}.",
        query=f"SELECT {label.name} FROM {table.name} WHERE {number.name} {sign} "
        f"(SELECT AVG({number.name}) FROM {table.name})",
    )


def with_its_target(rng: random.Random, schema: Schema) -> Question:
    table, _, target, join = _joined(rng, schema)
    words, condition = is_group(rng, rng.choice(target.groups))
    return Question(
        text=f"Give the {table.label.words} of every {table.noun} whose {target.noun}'s {words}, "
        f"and the {target.label.words} of that {target.noun}.",
        query=f"SELECT {_of(table, table.label)}, {_of(target, target.label)} FROM {join} "
        f"WHERE {target.name}.{condition}",
    )


def count_by_target(rng: random.Random, schema: Schema) -> Question:
    table, _, target, join = _joined(rng, schema)
    return Question(
        text=f"For each {target.noun} that has any {table.name}: give its {target.label.words} and how many.",
        query=f"SELECT {_of(target, target.label)}, COUNT(*) FROM {join} GROUP BY {target.name}.id",
    )


def aggregate_by_targets_group(rng: random.Random, schema: Schema) -> Question:
    table, _, target, join = _joined(rng, schema)
    number, group = rng.choice(table.numbers), rng.choice(target.groups)
    word, function = rng.choice(sorted(AGGREGATES.items()))
    by = _of(target, group)
    return Question(
        text=f"For each {group.words} of {target.name}: give the {group.words} and the {word} {number.words} of the "
        f"{table.name} of these {target.name}; leave out those without any.",
        query=f"SELECT {by}, {function}({_of(table, number)}) FROM {join} GROUP BY {by}",
    )


def without_any(rng: random.Random, schema: Schema) -> Question:
    table, ref, target, _ = _joined(rng, schema)
    return Question(
        text=f"Give the {target.label.words} of every {target.noun} without any {table.name}.",
        query=f"SELECT {target.label.name} FROM {target.name} WHERE id NOT IN (SELECT {ref.name} FROM {table.name})",
    )


def with_most(rng: random.Random, schema: Schema) -> Question:
    """SQLite gives equals by the larger id if it is not told: it makes the groups in the order that is asked for."""
    table, _, target, join = _joined(rng, schema)
    count = rng.randint(1, 3)
    which = f"{target.noun}" if count == 1 else f"{count} {target.name}"
    return Question(
        text=f"Give the {target.label.words} of the {which} with the most {table.name} and how many these are, "
        "the most first and of equals the smaller id first.",
        query=f"SELECT {_of(target, target.label)}, COUNT(*) FROM {join} GROUP BY {target.name}.id "
        f"ORDER BY COUNT(*) DESC, {target.name}.id LIMIT {count}",
        ordered=True,
    )


def targets_beyond(rng: random.Random, schema: Schema) -> Question:
    table, ref, target, join = _joined(rng, schema)
    number = rng.choice(table.numbers)
    bound = middling(rng, number)
    return Question(
        text=f"Give the {target.label.words} of every {target.noun} whose {table.name} have an average {number.words} "
        f"above {bound}.",
        query=f"SELECT {_of(target, target.label)} FROM {join} GROUP BY {target.name}.id "
        f"HAVING AVG({_of(table, number)}) > {bound}",
        planted=Planted(table=table.name, column=number.name, values=(bound, bound + 1), ref=ref.name),
    )


HARDER: tuple[Maker, ...] = (
    count_by_group,
    aggregate_by_group,
    large_groups,
    above_average,
    with_its_target,
    count_by_target,
    aggregate_by_targets_group,
    without_any,
    with_most,
    targets_beyond,
)
