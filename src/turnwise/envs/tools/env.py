"""Any questions with any tools: `kind = "tools"`, a file of rows, a list of tools and what answers are worth.

[env]
kind = "tools"
tasks = "questions.jsonl"                 # any rows; the whole row goes to the rewards
tools = ["python", "mytools.py:weather", { use = "search", index = "corpus" }, { mcp = "npx -y some-server" }]
reward = "myreward.py:score"              # score(answer, row) -> a number; 1 is right
"""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator

from turnwise.core.errors import UserError
from turnwise.core.messages import Message
from turnwise.core.suggestions import suggest_and_list
from turnwise.core.task import Split
from turnwise.envs.rubrics import Rewards, judged, judges_of_reward, rubric_of
from turnwise.envs.text_env import Outcome
from turnwise.envs.tool_env import ToolEnv
from turnwise.envs.tools.task_rows import get_question, read_rows, rows_of_split
from turnwise.rewards.rubric import Forgeable
from turnwise.tools.tool import NeedsServer, Tool, ToolSource
from turnwise.tools.toolbox import EpisodeTools

MANY_ROWS = 100
"""Of which the tests are looked at before a run starts."""
EACH_TOOL = 'tool: "python", "FILE.py:function" or a table such as { use = "search", index = "FOLDER" }'
EACH_REWARD = 'reward: a name, "FILE.py:function" or a table such as { use = "exact_match" }'


class Tools(ToolEnv):
    """Answer the question; use the tools where they help."""

    class Params(ToolEnv.Params):
        tasks: str
        """A JSONL or CSV file of rows. The question is in `question`, `prompt`, `problem` or `input`."""
        tools: tuple[str | dict[str, Any], ...] = Field(min_length=1)
        """Each python, FILE.py:function, a table like {use = "search", index = FOLDER}, or {mcp = COMMAND or URL}."""
        reward: Rewards
        """FILE.py:function from the answer and its row to a number, a reward by name, or a list of tables: `use`."""
        success_at: float = 1.0
        """The first reward's value from which an answer counts as right."""

        @field_validator("tools", mode="before")
        @classmethod
        def _listed_tools(cls, given: Any) -> Any:
            return _listed(given, "tools", EACH_TOOL)

        @field_validator("reward", mode="before")
        @classmethod
        def _listed_rewards(cls, given: Any) -> Any:
            return given if isinstance(given, str) else _listed(given, "reward", EACH_REWARD)

    params: Params

    @classmethod
    def check(cls, params: Any) -> None:
        rows = read_rows(params.tasks)
        super().check(params)
        for name, part in rubric_of(params.reward).parts.items():
            column = getattr(part, "against", "")
            lacking = next((number for number, row in enumerate(rows) if column and column not in row), None)
            if lacking is not None:
                told = f'the reward {name} compares with the column "{column}", which row {lacking + 1} lacks'
                raise UserError(f"{told}:{suggest_and_list(column, rows[lacking])}")

    @classmethod
    def notes(cls, params: Any) -> list[str]:
        rows, parts = read_rows(params.tasks)[:MANY_ROWS], rubric_of(params.reward).parts
        return [
            f"note: the reward {name} has tests that code could claim to pass, as it runs beside them: write them as "
            "assert CALL == VALUE (docs/rewards.md)"
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
    def servers(cls, params: Any) -> list[NeedsServer]:
        return [*super().servers(params), *judges_of_reward(params.reward)]

    @classmethod
    def size(cls, params: Any, split: Split) -> int:
        return len(rows_of_split(params.tasks, split))

    def reset(self, rng: random.Random) -> str:
        rows = rows_of_split(self.params.tasks, self.split)
        self.row = rows[self.index % len(rows)]
        return get_question(self.row)

    def step(self, action: str) -> Outcome:
        raise RuntimeError("answers are judged by awaiting: a ToolEnvRunner plays this environment")

    async def judge(self, action: str, said: Sequence[Message], tools: EpisodeTools) -> Outcome:
        return await judged(
            self.params.reward,
            question=get_question(self.row),
            answer=action,
            row=self.row,
            said=said,
            tools=tools,
            success_at=self.params.success_at,
        )

    def state_key(self) -> str:
        return get_question(self.row)


def _listed(given: Any, name: str, each: str) -> Any:
    """`given` if it is a list of texts and tables; what is none is told as a recipe would write it."""
    if isinstance(given, str):
        raise ValueError(f"must be a list: {name} = {json.dumps([given], ensure_ascii=False)}")
    if isinstance(given, Mapping):
        raise ValueError(f"must be a list: {name} = [{{ ... }}], with that table in it")
    if not isinstance(given, list | tuple) or not given or not all(isinstance(one, str | Mapping) for one in given):
        raise ValueError(f"must be a list of at least one {each}")
    return given
