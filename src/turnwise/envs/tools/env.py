"""Any questions with any tools, or with none, configured in a recipe: a file of rows, a list of tools, and rewards.

[env]
kind = "tools"
tasks = "questions.jsonl"                 # the whole row is passed to the rewards
tools = ["python", "mytools.py:weather", { use = "search", index = "corpus" }, { mcp = "npx -y some-server" }]
reward = "myreward.py:score"              # score(answer, row) -> number; 1 is right

A question is a text or a list of messages, perhaps with images. Without tools, the model sees it as it is, and its
reply ends the episode; a column `tools` then lists tools that it may call in that reply.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import field_validator

from turnwise.core.errors import UserError
from turnwise.core.messages import Message, text_parts
from turnwise.core.protocols import Observation, StepResult
from turnwise.core.task import Split
from turnwise.envs.answers import Answer
from turnwise.envs.rubric_env import RubricEnv
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.text_env import Outcome
from turnwise.envs.tool_env import ToolEnv, ToolEnvRunner
from turnwise.envs.tools.task_rows import has_images, load_questions, open_conversation, question_text
from turnwise.render.chat_rows import parse_tools
from turnwise.rewards.rubric import Forgeable, RewardSettings
from turnwise.text.suggestions import suggest_and_list
from turnwise.tools.call_formats import strip_thinking
from turnwise.tools.tool import Tool, ToolSource
from turnwise.tools.toolbox import EpisodeTools

ROWS_TO_CHECK = 100
"""Rows whose tests, images and tools are checked before a run starts."""
TOOL_FORMS = 'tool: "python", "FILE.py:function" or a table such as { use = "search", index = "FOLDER" }'
REWARD_FORMS = 'reward: a name, "FILE.py:function" or a table such as { use = "exact_match" }'


class ToolsRunner(ToolEnvRunner):
    """Run `Tools`. Without tools, the model sees the row's question alone, and any reply is an answer."""

    async def start(self) -> Observation:
        opening, env = await super().start(), self.tool_env
        if env.params.tools:
            self._messages = join_systems([opening.messages[0], *env.conversation])
            return replace(opening, messages=tuple(self._messages))
        self._messages, specs = list(env.conversation), parse_tools(env.row.get("tools"), env.where)
        words = env.tools_in_words(specs) if specs else ""
        return replace(opening, messages=env.conversation, tools=specs, tools_in_words=words)

    async def step(self, action: Message) -> StepResult:
        if self.tool_env.params.tools:
            return await super().step(action)
        self._messages.append(action)
        return await TextEnvRunner.step(self, action)

    def _read(self, reply: str) -> Answer:
        answer = super()._read(reply)
        if self.tool_env.params.tools or answer.actions:
            return answer
        return Answer(actions=(strip_thinking(reply).strip(),))


class Tools(RubricEnv):
    """Answer the question; use the tools where they help."""

    class Params(ToolEnv.Params):
        tasks: str
        """File of rows (JSONL, JSON, CSV, Parquet), a folder of them, or hf://datasets/OWNER/NAME. The question, a text
        or a list of messages, is in a column `question`, `prompt`, `problem`, `input` or `messages`."""
        tools: tuple[str | dict[str, Any], ...] = ()
        """List of python, FILE.py:function, {use = "search", index = FOLDER} and {mcp = COMMAND or URL}; or empty."""
        reward: RewardSettings
        """FILE.py:function of (answer, row), the name of a reward, or a list of names and tables with `use`."""
        success_at: float = 1.0
        """Lowest value of the first reward at which an answer counts as success."""

        @field_validator("tools", mode="before")
        @classmethod
        def _tools_are_a_list(cls, value: Any) -> Any:
            return value if value in ([], ()) else _check_list(value, "tools", TOOL_FORMS)

        @field_validator("reward", mode="before")
        @classmethod
        def _rewards_are_a_list(cls, value: Any) -> Any:
            return value if isinstance(value, str) else _check_list(value, "reward", REWARD_FORMS)

    params: Params
    runner = ToolsRunner

    @classmethod
    def check(cls, params: Any) -> None:
        rows = load_questions(params.tasks).rows
        super().check(params)
        for number in range(min(ROWS_TO_CHECK, len(rows))):
            where = rows.source(number)
            open_conversation(rows[number], where, rows.folder(number))
            if not params.tools:
                parse_tools(rows[number].get("tools"), where)
        for name, column in cls.build_rubric(params).columns.items():
            incomplete = next((number for number, row in enumerate(rows) if column not in row), None)
            if incomplete is not None:
                raise UserError(
                    f'The reward {name} compares with the column "{column}", which is missing in row {incomplete + 1}:'
                    f"{suggest_and_list(column, rows[incomplete])}"
                )

    @classmethod
    def notes(cls, params: Any) -> list[str]:
        rows, parts = load_questions(params.tasks).rows[:ROWS_TO_CHECK], cls.build_rubric(params).parts
        return [
            f"note: the reward {name} has tests that submitted code could forge, because it runs beside them: "
            "write them as assert CALL == VALUE (docs/rewards.md)"
            for name, part in parts.items()
            if isinstance(part, Forgeable) and any(map(part.can_be_forged, rows))
        ]

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        from turnwise.envs.tools.tool_factory import make_tools

        return make_tools(params.tools)

    @classmethod
    def make_sources(cls, params: Any) -> Sequence[ToolSource]:
        from turnwise.envs.tools.tool_factory import make_sources

        return make_sources(params.tools)

    @classmethod
    def size(cls, params: Any, split: Split) -> int:
        return len(load_questions(params.tasks).of_split(split))

    @classmethod
    def shows_images(cls, params: Any) -> bool:
        return any(map(has_images, load_questions(params.tasks).rows[:ROWS_TO_CHECK]))

    def reset(self, rng: random.Random) -> str:
        table = load_questions(self.params.tasks)
        rows = table.rows if self.split is None else table.of_split(self.split)
        number = self.index % len(rows)
        self.row, self.where = rows[number], rows.source(number)
        self.conversation = tuple(open_conversation(self.row, self.where, rows.folder(number)))
        return question_text(self.conversation)

    def step(self, action: str) -> Outcome:
        raise RuntimeError("answers are judged asynchronously: run this environment with a ToolEnvRunner")

    async def judge(self, action: str, messages: Sequence[Message], tools: EpisodeTools) -> Outcome:
        return await self.score(
            question=question_text(self.conversation),
            answer=action,
            row=self.row,
            messages=messages,
            tools=tools,
            success_at=self.params.success_at,
        )

    def state_key(self) -> str:
        return question_text(self.conversation)


def join_systems(messages: Sequence[Message]) -> list[Message]:
    """Join the first two messages if both are a system's, because templates accept one."""
    first, *rest = messages
    if not rest or rest[0].role != "system":
        return list(messages)
    return [replace(first, parts=(*first.parts, *text_parts("\n\n"), *rest[0].parts)), *rest[1:]]


def _check_list(value: Any, name: str, form: str) -> Any:
    """Return a list of strings and tables as it is; else raise ValueError with the form that a recipe needs."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        raise ValueError(f"must be a list: {name} = {json.dumps(parts, ensure_ascii=False)}")
    if isinstance(value, Mapping):
        raise ValueError(f"must be a list: {name} = [{{ ... }}], with that table in it")
    if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str | Mapping) for item in value):
        raise ValueError(f"must be a list of at least one {form}")
    return value
