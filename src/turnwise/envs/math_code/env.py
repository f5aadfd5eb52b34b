"""math_code: solve a math problem with a Python interpreter as a tool."""

import random
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from turnwise.core.messages import Picture
from turnwise.envs.math_code.problems import make_problem
from turnwise.envs.text_env import Outcome, lost, won
from turnwise.envs.tool_env import Style, ToolEnv
from turnwise.rewards.math_answers import equal
from turnwise.tools.tool import Tool


class MathCode(ToolEnv):
    """Solve the problem. You may run Python."""

    split_start_states = True

    class Params(ToolEnv.Params):
        style: Style = "python"
        """Form of code: python (fenced blocks), or as a call of the tool `python` in another style."""
        level: Annotated[int, Field(ge=1, le=3)] = 2
        """Difficulty, 1 to 3: larger numbers and more steps."""
        timeout_s: Annotated[float, Field(gt=0, le=600)] = 5.0
        """Time limit of one run in seconds."""
        memory_mb: Annotated[int, Field(ge=64)] = 1024
        """Memory limit of an episode's interpreter in MiB."""

    params: Params

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        from turnwise.tools.python import PythonTool, SandboxLimits

        return [PythonTool(SandboxLimits(timeout_s=params.timeout_s, memory_mb=params.memory_mb))]

    def reset(self, rng: random.Random) -> str:
        self.problem, self.ran = make_problem(rng, self.params.level), False
        return self.problem.question

    def step(self, action: str) -> Outcome:
        # a rational number needs no math-verify, and results must not depend on whether it is installed
        return won("Right.") if equal(action, self.problem.answer) else lost("Wrong.")

    def solve(self) -> list[str]:
        """Run the program first, then answer with what it printed."""
        if self.ran:
            return [str(self.problem.answer)]
        self.ran = True
        return [self.call("python", code=self.problem.code)]

    def random_answer(self, rng: random.Random) -> str:
        number = str(rng.randint(0, 100))
        return self.call("python", code=f"print({number})") if rng.random() < 0.5 else self.reply([number])

    def state_key(self) -> str:
        return self.problem.question

    def draw(self) -> Picture:
        return Picture(rows=((self.problem.question,),))
