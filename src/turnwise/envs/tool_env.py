"""The easy way to write an environment with tools: a question, tools, and what the answer is worth.

    class Capitals(ToolEnv):
        \"\"\"Name the capital.\"\"\"
        @classmethod
        def make_tools(cls, params): return [from_function(look_up)]
        def reset(self, rng): self.land = rng.choice(LANDS); return f"Capital of {self.land}?"
        def step(self, action): return won() if action == CAPITALS[self.land] else lost()

A turn with calls runs them and shows what they gave; a turn without is the answer, in `<answer>`, which `step` judges.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

from turnwise.config.numbers import Positive
from turnwise.envs.answers import format_answer
from turnwise.envs.text_env import StrictParams, TextEnv
from turnwise.envs.tool_runner import ToolEnvRunner
from turnwise.tools.formats import read_calls, write_call
from turnwise.tools.tool import Tool

Style = Literal["hermes", "llama", "mistral", "python", "answer"]


class ToolEnv(TextEnv):
    max_turns = 6
    runner = ToolEnvRunner

    class Params(StrictParams):
        style: Style = "hermes"
        """How calls are written: hermes (also Qwen), llama, mistral, python (fenced blocks), answer (small models)."""
        max_tool_calls: Positive = 4
        """Calls of an episode, at most."""
        max_output: Positive = 2000
        """Characters of a tool's output that the agent sees; the middle is left out."""

    @classmethod
    @abstractmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        """The tools of all episodes of these parameters."""

    def tool_state(self) -> Any:
        """What the tools of this episode are given to work on, after `reset`."""
        return None

    def call(self, tool: str, /, **arguments: Any) -> str:
        """A call as this environment's agents write it."""
        return write_call(tool, arguments, self.params.style)

    def reply(self, actions: Sequence[str], think: str | None = None) -> str:
        """`actions`: one call as `call` writes it, or an answer."""
        if read_calls(actions[0], self.params.style).calls:
            return actions[0] if think is None else f"<think>{think}</think>{actions[0]}"
        return format_answer(actions, think)
