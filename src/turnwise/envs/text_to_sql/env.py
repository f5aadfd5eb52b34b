"""text_to_sql: a schema, a question, and a query that answers it."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

from pydantic import model_validator

from turnwise.config.section import Positive
from turnwise.core.messages import Message, Picture
from turnwise.envs.seeds import split_of_state
from turnwise.envs.text_env import Outcome, goes_on, lost, won
from turnwise.envs.text_to_sql.databases import CheckDatabase, make_check_databases
from turnwise.envs.text_to_sql.questions import (
    ADVANCED_QUESTIONS,
    ONE_TABLE_QUESTIONS,
    SMALL_QUESTIONS,
    QuestionGenerator,
    SqlQuestion,
)
from turnwise.envs.text_to_sql.schemas import SCHEMAS, TINY, Schema
from turnwise.envs.tool_env import ToolEnv
from turnwise.rewards.sql_results import equal_results
from turnwise.tools.function import from_function, tool
from turnwise.tools.sql.query import SqlLimits, run_query
from turnwise.tools.sql.threads import run_in_daemon_thread
from turnwise.tools.sql.tool import CONCURRENCY, extract_query, format_table, max_call_seconds
from turnwise.tools.tool import Tool, ToolError
from turnwise.tools.toolbox import EpisodeTools

Level = Literal["tiny", "easy", "full"]
SchemaName = Literal["shop", "school", "library", "flights", "hospital", "music"]
QUESTION_GENERATORS: dict[Level, tuple[QuestionGenerator, ...]] = {
    "tiny": SMALL_QUESTIONS,
    "easy": ONE_TABLE_QUESTIONS,
    "full": ONE_TABLE_QUESTIONS + ADVANCED_QUESTIONS,
}
LIMITS = SqlLimits(timeout_s=10.0, max_steps=200_000, max_rows=500, max_value=1_000)
"""These databases are small: the steps end what is too much, alike on every machine and before all memory is taken."""


@tool(timeout_s=max_call_seconds(LIMITS), concurrency=CONCURRENCY)
def sql(query: str, state: "TextToSql") -> str:
    """Runs a query and shows its result."""
    return state.look(query)


class TextToSql(ToolEnv):
    """Write a SQLite query that answers the question.

    The query is the answer. It must be right on this database and on another with the same tables and other rows."""

    split_start_states = True
    max_turns = 5

    class Params(ToolEnv.Params):
        style: Literal["hermes", "llama", "mistral", "answer"] = "hermes"
        """How calls are written: hermes (also Qwen), llama, mistral, answer (small models)."""
        max_tool_calls: Positive = 4
        """Queries that may be tried before one is handed in, at most."""
        level: Level = "full"
        """easy: one table; full: also groups, joins, nested queries; tiny: a small table, questions of a few words."""
        held_out: tuple[SchemaName, ...] = ()
        """Schemas that only the test split has, and it has no other; none: all splits share all of them."""
        max_rows: Positive = 10
        """Rows of a result that are shown."""

        @model_validator(mode="after")
        def _something_is_left(self) -> Self:
            if set(self.held_out) == set(SCHEMAS):
                raise ValueError("held_out names every schema: leave one for training")
            if self.held_out and self.level == "tiny":
                raise ValueError("the level tiny has one schema, which cannot be held_out: leave that empty")
            return self

    params: Params

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        return [from_function(sql)]

    def tool_state(self) -> "TextToSql":
        return self

    def rules(self) -> str:
        if self.params.level == "tiny":
            return "Answer with a query."
        wanted = "Select what is asked for, in that order, and nothing else."
        return (
            f"{super().rules()} {wanted} If it fails you see why and may answer again; a wrong result ends the episode."
        )

    def reset(self, rng: random.Random) -> str:
        self.seen = ""
        while True:
            self.schema = self._schema(rng)
            self.question = self._question(rng)
            if self.split not in (None, split_of_state(self.state_key())):
                continue
            if (pair := make_check_databases(self.question, self.schema, rng)) is not None:
                self.shown, self.hidden = pair
                return f"{self._tables()}\n{self.question.text}"

    def _schema(self, rng: random.Random) -> Schema:
        if self.params.level == "tiny":
            return TINY
        held = set(self.params.held_out)
        names = [name for name in SCHEMAS if self.split is None or not held or (name in held) == (self.split == "test")]
        return SCHEMAS[rng.choice(names)]

    def _question(self, rng: random.Random) -> SqlQuestion:
        makers = QUESTION_GENERATORS[self.params.level]
        return rng.choice(makers)(rng, self.schema)

    def _tables(self) -> str:
        if self.params.level != "tiny":
            return self.schema.create()
        (table,) = self.schema.tables
        return f"{table.name}({', '.join(column.name for column in table.columns)})"

    def look(self, query: str) -> str:
        """What a query shows; a ToolError is what is wrong with it."""
        self.seen = query  # even if it fails: the error has been seen
        limits = replace(LIMITS, max_rows=self.params.max_rows)
        return format_table(run_query(self.shown.image, extract_query(query), limits))

    async def judge(self, action: str, said: Sequence[Message], tools: EpisodeTools) -> Outcome:
        return await asyncio.wrap_future(run_in_daemon_thread(partial(self.step, action)))

    def step(self, action: str) -> Outcome:
        """A query that fails may be mended; one that says something else has been handed in.

        Of the hidden database nothing is told, not even an error: its text may hold what stands there.
        """
        query = extract_query(action)
        try:
            right = self._right(query, self.shown)
        except ToolError as error:
            self.seen = query
            return goes_on(str(error))
        return won("Right.") if right and self._right_unseen(query) else lost("Wrong.")

    def _right_unseen(self, query: str) -> bool:
        try:
            return self._right(query, self.hidden)
        except ToolError:
            return False

    def _right(self, query: str, database: CheckDatabase) -> bool:
        return equal_results(run_query(database.image, query, LIMITS), database.wanted, self.question.ordered)

    def solve(self) -> list[str]:
        """A look at what the query gives, unless something was tried already, then the query."""
        query = self.question.query
        if self.seen or self.max_turns == 1 or self.params.level == "tiny":
            return [query]
        return [self.call("sql", query=query)]

    def random_answer(self, rng: random.Random) -> str:
        """The answer to another question."""
        query = self._question(rng).query
        return self.call("sql", query=query) if rng.random() < 0.3 else self.reply([query])

    def state_key(self) -> str:
        """The question, and the last query of which the agent has seen what it gives."""
        return f"{self.schema.name}: {self.question.text}" + (f"\n{self.seen}" if self.seen else "")

    def draw(self) -> Picture:
        return Picture(rows=((self.question.text,),), caption=self.schema.name)
