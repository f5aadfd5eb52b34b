"""code_tests: a function to write, with tests that say how far one came; a few tries."""

import random
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from turnwise.config.section import Positive
from turnwise.core.messages import Picture, ToolSpec
from turnwise.envs.code_tests.exercises import make_exercise
from turnwise.envs.text_env import Outcome
from turnwise.envs.tool_env import Style, ToolEnv
from turnwise.tools.tool import Tool


class CodeTests(ToolEnv):
    """Write the function f(xs) of a list of whole numbers. Code is handed in and tested; you have a few tries."""

    split_start_states = True
    max_turns = 3
    answers = False

    class Params(ToolEnv.Params):
        style: Style = "python"
        """How code is handed in: in fenced blocks, or as a call of the tool python."""
        max_tool_calls: Positive = 3
        """Tries."""
        steps: Annotated[int, Field(ge=1, le=6)] = 2
        """Of the function: changes of the list, before its end."""
        tests: Annotated[int, Field(ge=3, le=50)] = 6
        """Two of them are shown."""
        timeout_s: Annotated[float, Field(gt=0, le=600)] = 5.0
        """Of one try."""

    params: Params

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        from turnwise.envs.code_tests.submission_tool import SubmissionTool
        from turnwise.tools.python import SandboxLimits

        return [SubmissionTool(SandboxLimits(timeout_s=params.timeout_s))]

    def calling_text(self, specs: Sequence[ToolSpec]) -> str:
        if self.params.style == "python":
            return "Hand code in as a block ```python ... ```."
        return f"{super().calling_text(specs)}\nA call hands code in.".strip()

    def tool_state(self) -> "CodeTests":
        return self

    def reset(self, rng: random.Random) -> str:
        self.exercise = make_exercise(rng, self.params.steps, self.params.tests)
        self.tries, self.best = 0, 0.0
        examples = [f"f({case}) == {self.exercise.run(list(case))!r}" for case in self.exercise.shown]
        return "\n".join([f"Take the list xs: {self.exercise.words}.", *examples])

    def tried(self, share: float) -> tuple[bool, float]:
        """Whether that was the last try, and what it earned beyond the best one before: rewards add up to the best."""
        self.tries += 1
        earned, self.best = max(0.0, share - self.best), max(self.best, share)
        return share == 1 or self.tries >= self.params.max_tool_calls, earned

    def step(self, action: str) -> Outcome:
        raise ValueError("code is handed in, not answered")

    def solve(self) -> list[str]:
        return [self.call("python", code=self.exercise.code)]

    def random_answer(self, rng: random.Random) -> str:
        return self.call("python", code=f"def f(xs):\n    return {rng.choice(['xs', 'sum(xs)', 'len(xs)'])}")

    def state_key(self) -> str:
        return f"{self.exercise.words} {self.exercise.tests}"

    def draw(self) -> Picture:
        return Picture(rows=((self.exercise.words,),))
