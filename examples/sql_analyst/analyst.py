"""An analyst who answers questions with SQL: an environment around SQLite. Hidden rows check the query."""

import random
import sqlite3
from contextlib import closing
from typing import Any

import turnwise as tw

COLORS = ("black", "blue", "gold", "green", "grey", "pink", "red", "white")
QUESTIONS = {
    "COUNT(*)": "How many {} cars are there?",
    "SUM(price)": "What do all {} cars cost?",
    "AVG(price)": "What does a {} car cost on average?",
    "MAX(price)": "What does the best {} car cost?",
}
"""Selected expression -> the question that it answers."""
MAX_STEPS = 10_000
"""Steps of SQLite's virtual machine after which a query is interrupted."""
MAX_BYTES = 10_000
"""Bytes of a query, and of a value in its result."""
ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION)


def allow(operation: int, *names: str | None) -> int:
    """Allow queries to read, and nothing else: ATTACH could open other files."""
    return sqlite3.SQLITE_OK if operation in ALLOWED else sqlite3.SQLITE_DENY


def run_query(rows: list[tuple[str, int]], text: str) -> list[tuple[Any, ...]]:
    """Return the result of a query on the table cars with these rows."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE cars (color, price)")
        database.executemany("INSERT INTO cars VALUES (?, ?)", rows)
        database.set_authorizer(allow)
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES)
        database.set_progress_handler(lambda: 1, MAX_STEPS)
        try:
            return database.execute(text).fetchmany(5)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise ValueError(str(error)) from error  # the agent's mistake: it reads this and tries again


def draw_cars(rng: random.Random) -> list[tuple[str, int]]:
    """Draw two to four cars of each color."""
    return [(color, rng.randint(1, 99)) for color in COLORS for _ in range(rng.randint(2, 4))]


def write_query(selected: str, color: str) -> str:
    """Return the query that selects this of the cars of a color."""
    return f"SELECT {selected} FROM cars WHERE color = '{color}'"


class Analyst(tw.TextEnv):
    """Answer with a query on the table cars (color, price)."""

    max_turns = 1
    split_start_states = True  # no question that is evaluated is trained

    def reset(self, rng: random.Random) -> str:
        self.selected, self.color = rng.choice(list(QUESTIONS)), rng.choice(COLORS)
        self.question = QUESTIONS[self.selected].format(self.color)
        self.cars, self.hidden = draw_cars(rng), draw_cars(rng)
        return self.question

    def step(self, action: str) -> tw.Outcome:
        """The query has to be right on rows that the agent does not see, too."""
        (right,), result = self.solve(), run_query(self.cars, action)
        if result == run_query(self.cars, right) and run_query(self.hidden, action) == run_query(self.hidden, right):
            return tw.won()
        return tw.goes_on(f"{result} is not the answer. {self.question}")

    def random_action(self, rng: random.Random) -> str:
        """Draw a query about the right cars: `tiny` knows no SQL, and learns the form of queries in its warm-up."""
        return write_query(rng.choice(list(QUESTIONS)), self.color)

    def solve(self) -> list[str]:
        return [write_query(self.selected, self.color)]

    def state_key(self) -> str:
        return self.question
