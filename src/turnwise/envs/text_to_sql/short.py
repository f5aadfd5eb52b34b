"""Questions in a few words about the one small table of the level tiny."""

import random

from turnwise.envs.text_to_sql.question import Planted, Question
from turnwise.envs.text_to_sql.schema import Column, Schema

FUNCTIONS = ("MAX", "MIN", "SUM", "AVG")


def _columns(schema: Schema) -> tuple[str, Column, tuple[Column, ...]]:
    (table,) = schema.tables
    return table.name, table.label, table.numbers


def _condition(rng: random.Random, table: str, number: Column) -> tuple[str, Planted]:
    """`a>3`, which reads alike in words and in SQL; never such that no row can fulfil it."""
    sign = rng.choice("=<>")
    value = rng.randint(number.low + (sign == "<"), number.high - (sign == ">"))
    return f"{number.name}{sign}{value}", Planted(table=table, column=number.name, value=value)


def value_of(rng: random.Random, schema: Schema) -> Question:
    table, label, numbers = _columns(schema)
    number, value = rng.choice(numbers), rng.choice(label.values)
    query = f"SELECT {number.name} FROM {table} WHERE {label.name}='{value}'"
    return Question(text=f"{number.name} of {value}?", query=query)


def label_if(rng: random.Random, schema: Schema) -> Question:
    table, label, numbers = _columns(schema)
    condition, planted = _condition(rng, table, rng.choice(numbers))
    query = f"SELECT {label.name} FROM {table} WHERE {condition}"
    return Question(text=f"{label.name} if {condition}?", query=query, planted=planted)


def count_if(rng: random.Random, schema: Schema) -> Question:
    table, _, numbers = _columns(schema)
    condition, planted = _condition(rng, table, rng.choice(numbers))
    query = f"SELECT COUNT(*) FROM {table} WHERE {condition}"
    return Question(text=f"how many {condition}?", query=query, planted=planted)


def largest(rng: random.Random, schema: Schema) -> Question:
    table, _, numbers = _columns(schema)
    number, function = rng.choice(numbers), rng.choice(FUNCTIONS)
    return Question(text=f"{function.lower()} {number.name}?", query=f"SELECT {function}({number.name}) FROM {table}")


def largest_if(rng: random.Random, schema: Schema) -> Question:
    table, _, numbers = _columns(schema)
    number, other = rng.sample(numbers, 2)
    function = rng.choice(FUNCTIONS)
    condition, planted = _condition(rng, table, other)
    query = f"SELECT {function}({number.name}) FROM {table} WHERE {condition}"
    return Question(text=f"{function.lower()} {number.name} if {condition}?", query=query, planted=planted)


SHORT = (value_of, label_if, count_if, largest, largest_if)
