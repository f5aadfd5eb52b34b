"""Questions in three words about the one small table of the level tiny."""

import random

from turnwise.envs.text_to_sql.question import Question
from turnwise.envs.text_to_sql.schema import Column, Schema


def _columns(schema: Schema) -> tuple[str, Column, tuple[Column, ...]]:
    (table,) = schema.tables
    return table.name, table.label, table.numbers


def value_of(rng: random.Random, schema: Schema) -> Question:
    table, label, numbers = _columns(schema)
    number, value = rng.choice(numbers), rng.choice(label.values)
    query = f"SELECT {number.name} FROM {table} WHERE {label.name}='{value}'"
    return Question(text=f"{number.name} of {value}?", query=query)


def count_of(rng: random.Random, schema: Schema) -> Question:
    table, _, numbers = _columns(schema)
    number = rng.choice(numbers)
    value = rng.randint(number.low, number.high)
    return Question(
        text=f"how many {number.name}={value}?", query=f"SELECT COUNT(*) FROM {table} WHERE {number.name}={value}"
    )


def largest(rng: random.Random, schema: Schema) -> Question:
    table, _, numbers = _columns(schema)
    number, function = rng.choice(numbers), rng.choice(("MAX", "MIN", "SUM"))
    return Question(text=f"{function.lower()} {number.name}?", query=f"SELECT {function}({number.name}) FROM {table}")


SHORT = (value_of, count_of, largest)
