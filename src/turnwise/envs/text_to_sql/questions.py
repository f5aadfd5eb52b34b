"""Question generators: a question and the query that answers it, on one table, on several, or on the tiny table."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from turnwise.envs.text_to_sql.schemas import ColumnSpec, Schema, TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedRows:
    """Values that a database must contain, so that a careless reading of the question gives another result."""

    table: str
    column: str
    values: tuple[int, ...]
    """Each goes to another row."""
    ref: str = ""
    """Reference column: each value goes to all rows with the same reference, instead of to one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlQuestion:
    text: str
    query: str
    ordered: bool = False
    """The question asks for the rows in an order."""
    planted: PlantedRows | None = None
    similar_columns: tuple[str, ...] = ()
    """Columns that are easily confused; distractors swap them."""


AGGREGATES = {"average": "AVG", "highest": "MAX", "lowest": "MIN", "total": "SUM"}
BOUND_OFFSETS: dict[str, tuple[int, ...]] = {">": (1,), "<": (-1,), ">=": (-1,), "=": ()}
"""comparison -> offset from the bound of the row that distinguishes the bound from the next one"""
QuestionGenerator = Callable[[random.Random, Schema], SqlQuestion]


def draw_table(rng: random.Random, schema: Schema, condition: Callable[[TableSpec], object]) -> TableSpec:
    return rng.choice([table for table in schema.tables if condition(table)])


def draw_bound(rng: random.Random, column: ColumnSpec) -> int:
    """Draw a bound with rows above and below it."""
    span = column.high - column.low
    return rng.randint(column.low + span // 4, column.high - span // 4)


def plant_at_bound(table: TableSpec, number: ColumnSpec, sign: str, bound: int) -> PlantedRows:
    """Plant rows that distinguish "above" from "at least", and this bound from the next."""
    values = (bound, *(bound + offset for offset in BOUND_OFFSETS[sign]))
    return PlantedRows(table=table.name, column=number.name, values=values)


def draw_group_condition(rng: random.Random, group: ColumnSpec) -> tuple[str, str]:
    """Draw a condition; return (words, SQL)."""
    value = rng.choice(group.values)
    return f"{group.words} is {value}", f"{group.name} = '{value}'"


def _ask_labels(table: TableSpec, words: str, condition: str, planted: PlantedRows | None = None) -> SqlQuestion:
    """Ask for the labels of all rows that meet a condition, given in words and in SQL."""
    return SqlQuestion(
        text=f"Give the {table.label.words} of every {table.noun} {words}.",
        query=f"SELECT {table.label.name} FROM {table.name} WHERE {condition}",
        planted=planted,
    )


def _ask_count(table: TableSpec, words: str, condition: str, planted: PlantedRows | None = None) -> SqlQuestion:
    return SqlQuestion(
        text=f"How many {table.name} {words}?",
        query=f"SELECT COUNT(*) FROM {table.name} WHERE {condition}",
        planted=planted,
    )


def labels_in_group(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.groups)
    words, condition = draw_group_condition(rng, rng.choice(table.groups))
    return _ask_labels(table, f"whose {words}", condition)


def labels_beyond_bound(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.numbers)
    number, (word, sign) = rng.choice(table.numbers), rng.choice((("above", ">"), ("below", "<")))
    bound = draw_bound(rng, number)
    condition, planted = f"{number.name} {sign} {bound}", plant_at_bound(table, number, sign, bound)
    return _ask_labels(table, f"with {number.words} {word} {bound}", condition, planted)


def count_above_bound(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.numbers)
    number = rng.choice(table.numbers)
    bound = draw_bound(rng, number)
    planted = plant_at_bound(table, number, ">=", bound)
    return _ask_count(table, f"have {number.words} of at least {bound}", f"{number.name} >= {bound}", planted)


def count_in_group(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.groups)
    words, condition = draw_group_condition(rng, rng.choice(table.groups))
    return _ask_count(table, f"are there whose {words}", condition)


def distinct_groups(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.groups and table.numbers)
    group, number = rng.choice(table.groups), rng.choice(table.numbers)
    span = number.high - number.low
    bound = number.high - rng.randint(max(1, span // 8), span // 2)  # few rows are above it: each matters
    return SqlQuestion(
        text=f"Give every {group.words} once that {table.name} with {number.words} above {bound} have.",
        query=f"SELECT DISTINCT {group.name} FROM {table.name} WHERE {number.name} > {bound}",
        planted=plant_at_bound(table, number, ">", bound),
    )


def aggregate_of_group(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.numbers and table.groups)
    number, (word, function) = rng.choice(table.numbers), rng.choice(sorted(AGGREGATES.items()))
    words, condition = draw_group_condition(rng, rng.choice(table.groups))
    return SqlQuestion(
        text=f"What is the {word} {number.words} of {table.name} whose {words}?",
        query=f"SELECT {function}({number.name}) FROM {table.name} WHERE {condition}",
    )


def labels_with_null(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.nullable)
    column = rng.choice(table.nullable)
    return _ask_labels(table, f"that has no {column.words}", f"{column.name} IS NULL")


def top_rows(rng: random.Random, schema: Schema) -> SqlQuestion:
    """Ties are planted and ordered by the larger id, because SQLite returns the smaller id first by default."""
    table = draw_table(rng, schema, lambda table: table.numbers)
    number, (word, order) = rng.choice(table.numbers), rng.choice((("highest", "DESC"), ("lowest", "ASC")))
    count, label, extreme = rng.randint(2, 5), table.label, number.high if order == "DESC" else number.low
    return SqlQuestion(
        text=f"Give the {label.words} and the {number.words} of the {count} {table.name} with the {word} "
        f"{number.words}, the {word} first and of equals the larger id first.",
        query=f"SELECT {label.name}, {number.name} FROM {table.name} "
        f"ORDER BY {number.name} {order}, id DESC LIMIT {count}",
        ordered=True,
        planted=PlantedRows(table=table.name, column=number.name, values=(extreme, extreme)),
    )


ONE_TABLE_QUESTIONS: tuple[QuestionGenerator, ...] = (
    labels_in_group,
    labels_beyond_bound,
    count_above_bound,
    count_in_group,
    distinct_groups,
    aggregate_of_group,
    labels_with_null,
    top_rows,
)


def _draw_join(rng: random.Random, schema: Schema) -> tuple[TableSpec, ColumnSpec, TableSpec, str]:
    """Return (table, its reference column, the referenced table, SQL of their join).

    In all schemas, tables with references have numbers, and referenced tables have groups.
    """
    table, ref = rng.choice([(table, ref) for table in schema.tables for ref in table.refs])
    target = schema.referenced_table(ref)
    return table, ref, target, f"{table.name} JOIN {target.name} ON {table.name}.{ref.name} = {target.name}.id"


def _qualified(table: TableSpec, column: ColumnSpec) -> str:
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


def groups_above_count(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.groups)
    group = rng.choice(table.groups)
    typical = sum(table.rows) // 2 // len(group.values)  # some have more, and some have fewer
    count = rng.randint(max(1, typical - 1), typical + 1)
    return SqlQuestion(
        text=f"Give every {group.words} that more than {count} {table.name} have.",
        query=f"SELECT {group.name} FROM {table.name} GROUP BY {group.name} HAVING COUNT(*) > {count}",
    )


def labels_beyond_average(rng: random.Random, schema: Schema) -> SqlQuestion:
    table = draw_table(rng, schema, lambda table: table.numbers)
    number, (word, sign) = rng.choice(table.numbers), rng.choice((("above", ">"), ("below", "<")))
    words = f"whose {number.words} is {word} the average {number.words} of all {table.name}"
    return _ask_labels(table, words, f"{number.name} {sign} (SELECT AVG({number.name}) FROM {table.name})")


def labels_with_target(rng: random.Random, schema: Schema) -> SqlQuestion:
    table, _, target, join = _draw_join(rng, schema)
    words, condition = draw_group_condition(rng, rng.choice(target.groups))
    return SqlQuestion(
        text=f"Give the {table.label.words} of every {table.noun} whose {target.noun}'s {words}, "
        f"and the {target.label.words} of that {target.noun}.",
        query=f"SELECT {_qualified(table, table.label)}, {_qualified(target, target.label)} FROM {join} "
        f"WHERE {target.name}.{condition}",
    )


def count_by_target(rng: random.Random, schema: Schema) -> SqlQuestion:
    table, _, target, join = _draw_join(rng, schema)
    return SqlQuestion(
        text=f"For each {target.noun} that has any {table.name}: give its {target.label.words} and how many.",
        query=f"SELECT {_qualified(target, target.label)}, COUNT(*) FROM {join} GROUP BY {target.name}.id",
    )


def aggregate_by_target_group(rng: random.Random, schema: Schema) -> SqlQuestion:
    table, _, target, join = _draw_join(rng, schema)
    number, group = rng.choice(table.numbers), rng.choice(target.groups)
    word, function = rng.choice(sorted(AGGREGATES.items()))
    by = _qualified(target, group)
    return SqlQuestion(
        text=f"For each {group.words} of {target.name}: give the {group.words} and the {word} {number.words} of the "
        f"{table.name} of these {target.name}; leave out those without any.",
        query=f"SELECT {by}, {function}({_qualified(table, number)}) FROM {join} GROUP BY {by}",
    )


def targets_without_rows(rng: random.Random, schema: Schema) -> SqlQuestion:
    table, ref, target, _ = _draw_join(rng, schema)
    return SqlQuestion(
        text=f"Give the {target.label.words} of every {target.noun} without any {table.name}.",
        query=f"SELECT {target.label.name} FROM {target.name} WHERE id NOT IN (SELECT {ref.name} FROM {table.name})",
    )


def targets_with_most_rows(rng: random.Random, schema: Schema) -> SqlQuestion:
    """Ties are ordered by the smaller id, because SQLite returns the larger id first here by default."""
    table, _, target, join = _draw_join(rng, schema)
    count = rng.randint(1, 3)
    which = f"{target.noun}" if count == 1 else f"{count} {target.name}"
    return SqlQuestion(
        text=f"Give the {target.label.words} of the {which} with the most {table.name} and how many these are, "
        "the most first and of equals the smaller id first.",
        query=f"SELECT {_qualified(target, target.label)}, COUNT(*) FROM {join} GROUP BY {target.name}.id "
        f"ORDER BY COUNT(*) DESC, {target.name}.id LIMIT {count}",
        ordered=True,
    )


def targets_beyond_average(rng: random.Random, schema: Schema) -> SqlQuestion:
    table, ref, target, join = _draw_join(rng, schema)
    number = rng.choice(table.numbers)
    bound = draw_bound(rng, number)
    return SqlQuestion(
        text=f"Give the {target.label.words} of every {target.noun} whose {table.name} have an average {number.words} "
        f"above {bound}.",
        query=f"SELECT {_qualified(target, target.label)} FROM {join} GROUP BY {target.name}.id "
        f"HAVING AVG({_qualified(table, number)}) > {bound}",
        planted=PlantedRows(table=table.name, column=number.name, values=(bound, bound + 1), ref=ref.name),
    )


ADVANCED_QUESTIONS: tuple[QuestionGenerator, ...] = (
    count_by_group,
    aggregate_by_group,
    groups_above_count,
    labels_beyond_average,
    labels_with_target,
    count_by_target,
    aggregate_by_target_group,
    targets_without_rows,
    targets_with_most_rows,
    targets_beyond_average,
)


AGGREGATE_FUNCTIONS = ("MAX", "MIN", "SUM", "AVG")


def small_value(rng: random.Random, schema: Schema) -> SqlQuestion:
    (table,) = schema.tables
    number, value = rng.choice(table.numbers), rng.choice(table.label.values)
    return _small_question(table, f"{number.name} of {value}", number.name, f"{table.label.name}='{value}'")


def small_label_if(rng: random.Random, schema: Schema) -> SqlQuestion:
    (table,) = schema.tables
    condition, planted = _draw_condition(rng, table)
    return _small_question(table, f"{table.label.name} if {condition}", table.label.name, condition, planted)


def small_count_if(rng: random.Random, schema: Schema) -> SqlQuestion:
    (table,) = schema.tables
    condition, planted = _draw_condition(rng, table)
    return _small_question(table, f"how many {condition}", "COUNT(*)", condition, planted)


def small_aggregate(rng: random.Random, schema: Schema) -> SqlQuestion:
    (table,) = schema.tables
    number, function = rng.choice(table.numbers), rng.choice(AGGREGATE_FUNCTIONS)
    return _small_question(table, f"{function.lower()} {number.name}", f"{function}({number.name})")


def small_aggregate_if(rng: random.Random, schema: Schema) -> SqlQuestion:
    (table,) = schema.tables
    number, function = rng.choice(table.numbers), rng.choice(AGGREGATE_FUNCTIONS)
    condition, planted = _draw_condition(rng, table, exclude=number.name)
    return _small_question(
        table, f"{function.lower()} {number.name} if {condition}", f"{function}({number.name})", condition, planted
    )


def _draw_condition(rng: random.Random, table: TableSpec, exclude: str = "") -> tuple[str, PlantedRows]:
    """Draw a satisfiable condition such as `a>3` on any column but `exclude`."""
    number, sign = rng.choice([number for number in table.numbers if number.name != exclude]), rng.choice("=<>")
    value = rng.randint(number.low + (sign == "<"), number.high - (sign == ">"))
    return f"{number.name}{sign}{value}", plant_at_bound(table, number, sign, value)


def _small_question(
    table: TableSpec, words: str, selected: str, condition: str = "", planted: PlantedRows | None = None
) -> SqlQuestion:
    return SqlQuestion(
        text=f"{words}?",
        query=f"SELECT {selected} FROM {table.name}" + (f" WHERE {condition}" if condition else ""),
        planted=planted,
        similar_columns=tuple(number.name for number in table.numbers),
    )


SMALL_QUESTIONS = (small_value, small_label_if, small_count_if, small_aggregate, small_aggregate_if)
