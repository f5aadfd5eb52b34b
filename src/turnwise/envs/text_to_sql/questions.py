"""A question with the query that answers it."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from turnwise.envs.text_to_sql.schemas import ColumnSpec, Schema, TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedRows:
    """Rows that a database must have, so that those who read the question carelessly find something else."""

    table: str
    column: str
    values: tuple[int, ...]
    """Each is given to another row."""
    ref: str = ""
    """If given, then instead to all rows that refer to one and the same by this column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlQuestion:
    text: str
    query: str
    ordered: bool = False
    """The question asks for an order of rows."""
    planted: PlantedRows | None = None
    alike: tuple[str, ...] = ()
    """Columns that are easily taken for one another: to take the wrong one must be wrong on one of two databases."""


AGGREGATES = {"average": "AVG", "highest": "MAX", "lowest": "MIN", "total": "SUM"}
NEIGHBOURS: dict[str, tuple[int, ...]] = {">": (1,), "<": (-1,), ">=": (-1,), "=": ()}
"""By sign: how far off is the row by which a bound and the next one differ."""
QuestionGenerator = Callable[[random.Random, Schema], SqlQuestion]


def draw_table(rng: random.Random, schema: Schema, having: Callable[[TableSpec], object]) -> TableSpec:
    return rng.choice([table for table in schema.tables if having(table)])


def draw_bound(rng: random.Random, column: ColumnSpec) -> int:
    """A number that some rows lie above and some below."""
    span = column.high - column.low
    return rng.randint(column.low + span // 4, column.high - span // 4)


def plant_at_bound(table: TableSpec, number: ColumnSpec, sign: str, bound: int) -> PlantedRows:
    """Rows for which "above" and "at least" differ, and this bound and the next."""
    values = (bound, *(bound + off for off in NEIGHBOURS[sign]))
    return PlantedRows(table=table.name, column=number.name, values=values)


def draw_group_condition(rng: random.Random, group: ColumnSpec) -> tuple[str, str]:
    """A condition in words and in SQL."""
    value = rng.choice(group.values)
    return f"{group.words} is {value}", f"{group.name} = '{value}'"


def of_a_group(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.groups)
    words, condition = draw_group_condition(rng, rng.choice(table.groups))
    label = table.label
    return SqlQuestion(
        text=f"Give the {label.words} of every {table.noun} whose {words}.",
        query=f"SELECT {label.name} FROM {table.name} WHERE {condition}",
    )


def beyond(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.numbers)
    number, (word, sign) = rng.choice(table.numbers), rng.choice((("above", ">"), ("below", "<")))
    bound, label = draw_bound(rng, number), table.label
    return SqlQuestion(
        text=f"Give the {label.words} of every {table.noun} with {number.words} {word} {bound}.",
        query=f"SELECT {label.name} FROM {table.name} WHERE {number.name} {sign} {bound}",
        planted=plant_at_bound(table, number, sign, bound),
    )


def how_many(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.numbers)
    number = rng.choice(table.numbers)
    bound = draw_bound(rng, number)
    return SqlQuestion(
        text=f"How many {table.name} have {number.words} of at least {bound}?",
        query=f"SELECT COUNT(*) FROM {table.name} WHERE {number.name} >= {bound}",
        planted=plant_at_bound(table, number, ">=", bound),
    )


def how_many_of_a_group(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.groups)
    words, condition = draw_group_condition(rng, rng.choice(table.groups))
    return SqlQuestion(
        text=f"How many {table.name} are there whose {words}?",
        query=f"SELECT COUNT(*) FROM {table.name} WHERE {condition}",
    )


def different(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.groups and table.numbers)
    group, number = rng.choice(table.groups), rng.choice(table.numbers)
    span = number.high - number.low
    bound = number.high - rng.randint(max(1, span // 8), span // 2)  # above it are few, so that each of them counts
    return SqlQuestion(
        text=f"Give every {group.words} once that {table.name} with {number.words} above {bound} have.",
        query=f"SELECT DISTINCT {group.name} FROM {table.name} WHERE {number.name} > {bound}",
        planted=plant_at_bound(table, number, ">", bound),
    )


def aggregate(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.numbers and table.groups)
    number, (word, function) = rng.choice(table.numbers), rng.choice(sorted(AGGREGATES.items()))
    words, condition = draw_group_condition(rng, rng.choice(table.groups))
    return SqlQuestion(
        text=f"What is the {word} {number.words} of {table.name} whose {words}?",
        query=f"SELECT {function}({number.name}) FROM {table.name} WHERE {condition}",
    )


def missing(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.gapped)
    column, label = rng.choice(table.gapped), table.label
    return SqlQuestion(
        text=f"Give the {label.words} of every {table.noun} that has no {column.words}.",
        query=f"SELECT {label.name} FROM {table.name} WHERE {column.name} IS NULL",
    )


def first_few(rng: random.Random, schema: Schema) -> SqlQuestion:
    """SQLite gives equals by the smaller id if it is not told: so the larger is asked for, and there are equals."""
    table = draw_table(rng, schema, lambda table: table.numbers)
    number, (word, order) = rng.choice(table.numbers), rng.choice((("highest", "DESC"), ("lowest", "ASC")))
    count, label, most = rng.randint(2, 5), table.label, number.high if order == "DESC" else number.low
    return SqlQuestion(
        text=f"Give the {label.words} and the {number.words} of the {count} {table.name} with the {word} "
        f"{number.words}, the {word} first and of equals the larger id first.",
        query=f"SELECT {label.name}, {number.name} FROM {table.name} "
        f"ORDER BY {number.name} {order}, id DESC LIMIT {count}",
        ordered=True,
        planted=PlantedRows(table=table.name, column=number.name, values=(most, most)),
    )


ONE_TABLE_QUESTIONS: tuple[QuestionGenerator, ...] = (
    of_a_group,
    beyond,
    how_many,
    how_many_of_a_group,
    different,
    aggregate,
    missing,
    first_few,
)


def _joined(rng: random.Random, schema: Schema) -> tuple[TableSpec, ColumnSpec, TableSpec, str]:
    """A table, its column that refers to another, that other, and how a query joins them.

    All that refer have numbers, and all that are referred to have groups."""
    table, ref = rng.choice([(table, ref) for table in schema.tables for ref in table.refs])
    target = schema.target(ref)
    return table, ref, target, f"{table.name} JOIN {target.name} ON {table.name}.{ref.name} = {target.name}.id"


def _of(table: TableSpec, column: ColumnSpec) -> str:
    return f"{table.name}.{column.name}"


def count_by_group(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.groups)
    group = rng.choice(table.groups)
    return SqlQuestion(
        text=f"For each {group.words} of {table.name}: give the {group.words} and how many {table.name} have it.",
        query=f"SELECT {group.name}, COUNT(*) FROM {table.name} GROUP BY {group.name}",
    )


def aggregate_by_group(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.groups and table.numbers)
    group, number = rng.choice(table.groups), rng.choice(table.numbers)
    word, function = rng.choice(sorted(AGGREGATES.items()))
    return SqlQuestion(
        text=f"For each {group.words} of {table.name}: give the {group.words} and the {word} {number.words}.",
        query=f"SELECT {group.name}, {function}({number.name}) FROM {table.name} GROUP BY {group.name}",
    )


def large_groups(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.groups)
    group = rng.choice(table.groups)
    usual = sum(table.rows) // 2 // len(group.values)  # some have more, and some have fewer
    count = rng.randint(max(1, usual - 1), usual + 1)
    return SqlQuestion(
        text=f"Give every {group.words} that more than {count} {table.name} have.",
        query=f"SELECT {group.name} FROM {table.name} GROUP BY {group.name} HAVING COUNT(*) > {count}",
    )


def above_average(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.numbers)
    number, label = rng.choice(table.numbers), table.label
    word, sign = rng.choice((("above", ">"), ("below", "<")))
    return SqlQuestion(
        text=f"Give the {label.words} of every {table.noun} whose {number.words} is {word} the average "
        f"{number.words} of all {table.name}.",
        query=f"SELECT {label.name} FROM {table.name} WHERE {number.name} {sign} "
        f"(SELECT AVG({number.name}) FROM {table.name})",
    )


def with_its_target(rng: random.Random, schema: Schema) -> SqlQuestion:
    table, _, target, join = _joined(rng, schema)
    words, condition = draw_group_condition(rng, rng.choice(target.groups))
    return SqlQuestion(
        text=f"Give the {table.label.words} of every {table.noun} whose {target.noun}'s {words}, "
        f"and the {target.label.words} of that {target.noun}.",
        query=f"SELECT {_of(table, table.label)}, {_of(target, target.label)} FROM {join} "
        f"WHERE {target.name}.{condition}",
    )


def count_by_target(rng: random.Random, schema: Schema) -> SqlQuestion:
    table, _, target, join = _joined(rng, schema)
    return SqlQuestion(
        text=f"For each {target.noun} that has any {table.name}: give its {target.label.words} and how many.",
        query=f"SELECT {_of(target, target.label)}, COUNT(*) FROM {join} GROUP BY {target.name}.id",
    )


def aggregate_by_targets_group(rng: random.Random, schema: Schema) -> SqlQuestion:
    table, _, target, join = _joined(rng, schema)
    number, group = rng.choice(table.numbers), rng.choice(target.groups)
    word, function = rng.choice(sorted(AGGREGATES.items()))
    by = _of(target, group)
    return SqlQuestion(
        text=f"For each {group.words} of {target.name}: give the {group.words} and the {word} {number.words} of the "
        f"{table.name} of these {target.name}; leave out those without any.",
        query=f"SELECT {by}, {function}({_of(table, number)}) FROM {join} GROUP BY {by}",
    )


def without_any(rng: random.Random, schema: Schema) -> SqlQuestion:
    table, ref, target, _ = _joined(rng, schema)
    return SqlQuestion(
        text=f"Give the {target.label.words} of every {target.noun} without any {table.name}.",
        query=f"SELECT {target.label.name} FROM {target.name} WHERE id NOT IN (SELECT {ref.name} FROM {table.name})",
    )


def with_most(rng: random.Random, schema: Schema) -> SqlQuestion:
    """SQLite gives equals by the larger id if it is not told: it makes the groups in the order that is asked for."""
    table, _, target, join = _joined(rng, schema)
    count = rng.randint(1, 3)
    which = f"{target.noun}" if count == 1 else f"{count} {target.name}"
    return SqlQuestion(
        text=f"Give the {target.label.words} of the {which} with the most {table.name} and how many these are, "
        "the most first and of equals the smaller id first.",
        query=f"SELECT {_of(target, target.label)}, COUNT(*) FROM {join} GROUP BY {target.name}.id "
        f"ORDER BY COUNT(*) DESC, {target.name}.id LIMIT {count}",
        ordered=True,
    )


def targets_beyond(rng: random.Random, schema: Schema) -> SqlQuestion:
    table, ref, target, join = _joined(rng, schema)
    number = rng.choice(table.numbers)
    bound = draw_bound(rng, number)
    return SqlQuestion(
        text=f"Give the {target.label.words} of every {target.noun} whose {table.name} have an average {number.words} "
        f"above {bound}.",
        query=f"SELECT {_of(target, target.label)} FROM {join} GROUP BY {target.name}.id "
        f"HAVING AVG({_of(table, number)}) > {bound}",
        planted=PlantedRows(table=table.name, column=number.name, values=(bound, bound + 1), ref=ref.name),
    )


ADVANCED_QUESTIONS: tuple[QuestionGenerator, ...] = (
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


FUNCTIONS = ("MAX", "MIN", "SUM", "AVG")


def small_value(rng: random.Random, schema: Schema) -> SqlQuestion:
    (table,) = schema.tables
    number, value = rng.choice(table.numbers), rng.choice(table.label.values)
    return _asked(table, f"{number.name} of {value}", number.name, f"{table.label.name}='{value}'")


def small_label_if(rng: random.Random, schema: Schema) -> SqlQuestion:
    (table,) = schema.tables
    condition, planted = _condition(rng, table)
    return _asked(table, f"{table.label.name} if {condition}", table.label.name, condition, planted)


def small_count_if(rng: random.Random, schema: Schema) -> SqlQuestion:
    (table,) = schema.tables
    condition, planted = _condition(rng, table)
    return _asked(table, f"how many {condition}", "COUNT(*)", condition, planted)


def small_aggregate(rng: random.Random, schema: Schema) -> SqlQuestion:
    (table,) = schema.tables
    number, function = rng.choice(table.numbers), rng.choice(FUNCTIONS)
    return _asked(table, f"{function.lower()} {number.name}", f"{function}({number.name})")


def small_aggregate_if(rng: random.Random, schema: Schema) -> SqlQuestion:
    (table,) = schema.tables
    number, function = rng.choice(table.numbers), rng.choice(FUNCTIONS)
    condition, planted = _condition(rng, table, but=number.name)
    return _asked(
        table, f"{function.lower()} {number.name} if {condition}", f"{function}({number.name})", condition, planted
    )


def _condition(rng: random.Random, table: TableSpec, but: str = "") -> tuple[str, PlantedRows]:
    """`a>3`, which reads alike in words and in SQL; never such that no row can fulfil it. `but`: not of this column."""
    number, sign = rng.choice([number for number in table.numbers if number.name != but]), rng.choice("=<>")
    value = rng.randint(number.low + (sign == "<"), number.high - (sign == ">"))
    return f"{number.name}{sign}{value}", plant_at_bound(table, number, sign, value)


def _asked(
    table: TableSpec, words: str, what: str, condition: str = "", planted: PlantedRows | None = None
) -> SqlQuestion:
    return SqlQuestion(
        text=f"{words}?",
        query=f"SELECT {what} FROM {table.name}" + (f" WHERE {condition}" if condition else ""),
        planted=planted,
        alike=tuple(number.name for number in table.numbers),
    )


SMALL_QUESTIONS = (small_value, small_label_if, small_count_if, small_aggregate, small_aggregate_if)
