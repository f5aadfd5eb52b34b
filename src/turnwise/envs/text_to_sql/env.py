"""text_to_sql: write a query that answers a question about a database; a hidden second database checks it."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

from pydantic import model_validator

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
from turnwise.settings.section import Positive
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
"""The databases are small: the step limit stops runaway queries at the same point on every machine."""


@tool(timeout_s=max_call_seconds(LIMITS), concurrency=CONCURRENCY)
def sql(query: str, state: "TextToSql") -> str:
    """Runs a query and shows its result."""
    return state.show_result(query)


class TextToSql(ToolEnv):
    """Write a SQLite query that answers the question.

    The query is the answer. It must be right on this database and on another with the same tables and other rows."""

    split_start_states = True
    max_turns = 5

    class Params(ToolEnv.Params):
        style: Literal["hermes", "llama", "mistral", "answer"] = "hermes"
        """Format of calls: hermes (also Qwen), llama, mistral, answer (small models)."""
        max_tool_calls: Positive = 4
        """Trial queries before the answer, at most."""
        level: Level = "full"
        """easy: one table; full: also groups, joins, nested queries; tiny: one small table and few words."""
        held_out: tuple[SchemaName, ...] = ()
        """Schemas only for the test split, which then has no others; empty: all splits share all schemas."""
        max_rows: Positive = 10
        """Rows of a result that the agent sees."""

        @model_validator(mode="after")
        def _schemas_remain(self) -> Self:
            if set(self.held_out) == set(SCHEMAS):
                raise ValueError("held_out lists every schema: leave one for training")
            if self.held_out and self.level == "tiny":
                raise ValueError("level tiny has one schema, which cannot be held out: leave held_out empty")
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
        form = "Select what is asked for, in that order, and nothing else."
        return (
            f"{super().rules()} {form} If it fails you see why and may answer again; a wrong result ends the episode."
        )

    def reset(self, rng: random.Random) -> str:
        self.last_query = ""
        while True:
            self.schema = self._draw_schema(rng)
            self.question = self._draw_question(rng)
            if self.split not in (None, split_of_state(self.state_key())):
                continue
            if (pair := make_check_databases(self.question, self.schema, rng)) is not None:
                self.shown, self.hidden = pair
                return f"{self._schema_text()}\n{self.question.text}"

    def _draw_schema(self, rng: random.Random) -> Schema:
        if self.params.level == "tiny":
            return TINY
        held_out, for_test = set(self.params.held_out), self.split == "test"
        names = [name for name in SCHEMAS if self.split is None or not held_out or (name in held_out) == for_test]
        return SCHEMAS[rng.choice(names)]

    def _draw_question(self, rng: random.Random) -> SqlQuestion:
        generate = rng.choice(QUESTION_GENERATORS[self.params.level])
        return generate(rng, self.schema)

    def _schema_text(self) -> str:
        if self.params.level != "tiny":
            return self.schema.create_statement()
        (table,) = self.schema.tables
        return f"{table.name}({', '.join(column.name for column in table.columns)})"

    def show_result(self, query: str) -> str:
        """Run a trial query and return its result as text; raises ToolError if it fails."""
        self.last_query = query  # also if it fails: the agent sees the error
        limits = replace(LIMITS, max_rows=self.params.max_rows)
        return format_table(run_query(self.shown.image, extract_query(query), limits))

    async def judge(self, action: str, messages: Sequence[Message], tools: EpisodeTools) -> Outcome:
        return await asyncio.wrap_future(run_in_daemon_thread(partial(self.step, action)))

    def step(self, action: str) -> Outcome:
        """A query that fails on the shown database may be corrected; one with a wrong result ends the episode.

        The agent sees nothing of the hidden database, not even an error, whose text could contain its values.
        """
        query = extract_query(action)
        try:
            right = self._is_right(query, self.shown)
        except ToolError as error:
            self.last_query = query
            return goes_on(str(error))
        return won("Right.") if right and self._is_right_on_hidden(query) else lost("Wrong.")

    def _is_right_on_hidden(self, query: str) -> bool:
        try:
            return self._is_right(query, self.hidden)
        except ToolError:
            return False

    def _is_right(self, query: str, database: CheckDatabase) -> bool:
        return equal_results(run_query(database.image, query, LIMITS), database.expected, self.question.ordered)

    def solve(self) -> list[str]:
        """Try the query first, unless one was tried already, then answer with it."""
        query = self.question.query
        if self.last_query or self.max_turns == 1 or self.params.level == "tiny":
            return [query]
        return [self.call("sql", query=query)]

    def random_answer(self, rng: random.Random) -> str:
        """The query of another random question, as a trial or as the answer."""
        query = self._draw_question(rng).query
        return self.call("sql", query=query) if rng.random() < 0.3 else self.reply([query])

    def state_key(self) -> str:
        """The question and the last query whose result the agent has seen."""
        return f"{self.schema.name}: {self.question.text}" + (f"\n{self.last_query}" if self.last_query else "")

    def draw(self) -> Picture:
        return Picture(rows=((self.question.text,),), caption=self.schema.name)
