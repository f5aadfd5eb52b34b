"""Questions in a few words about the one small table of the level tiny."""

import random

from turnwise.envs.text_to_sql.one_table import at_the_bound
from turnwise.envs.text_to_sql.question import Planted, Question
from turnwise.envs.text_to_sql.schema import Schema, Table

FUNCTIONS = ("MAX", "MIN", "SUM", "AVG")


def value_of(rng: random.Random, schema: Schema) -> Question:
    (table,) = schema.tables
    number, value = rng.choice(table.numbers), rng.choice(table.label.values)
    return _asked(table, f"{number.name} of {value}", number.name, f"{table.label.name}='{value}'")


def label_if(rng: random.Random, schema: Schema) -> Question:
    (table,) = schema.tables
    condition, planted = _condition(rng, table)
    return _asked(table, f"{table.label.name} if {condition}", table.label.name, condition, planted)


def count_if(rng: random.Random, schema: Schema) -> Question:
    (table,) = schema.tables
    condition, planted = _condition(rng, table)
    return _asked(table, f"how many {condition}", "COUNT(*)", condition, planted)


def aggregate(rng: random.Random, schema: Schema) -> Question:
    (table,) = schema.tables
    number, function = rng.choice(table.numbers), rng.choice(FUNCTIONS)
    return _asked(table, f"{function.lower()} {number.name}", f"{function}({number.name})")


def aggregate_if(rng: random.Random, schema: Schema) -> Question:
    (table,) = schema.tables
    number, function = rng.choice(table.numbers), rng.choice(FUNCTIONS)
    condition, planted = _condition(rng, table, but=number.name)
    return _asked(
        table, f"{function.lower()} {number.name} if {condition}", f"{function}({number.name})", condition, planted
    )


def _condition(rng: random.Random, table: Table, but: str = "") -> tuple[str, Planted]:
    """`a>3`, which reads alike in words and in SQL; never such that no row can fulfil it. `but`: not of this column."""
    number, sign = rng.choice([number for number in table.numbers if number.name != but]), rng.choice("=<>")
    value = rng.randint(number.low + (sign == "<"), number.high - (sign == ">"))
    return f"{number.name}{sign}{value}", at_the_bound(table, number, sign, value)


def _asked(table: Table, words: str, what: str, condition: str = "", planted: Planted | None = None) -> Question:
    return Question(
        text=f"{words}?",
        query=f"SELECT {what} FROM {table.name}" + (f" WHERE {condition}" if condition else ""),
        planted=planted,
        alike=tuple(number.name for number in table.numbers),
    )


SHORT = (value_of, label_if, count_if, aggregate, aggregate_if)
