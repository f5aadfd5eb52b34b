"""code_tests: write a function from its description; hidden tests score each of a few submissions."""

import random
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from turnwise.core.messages import Picture, ToolSpec
from turnwise.envs.code_tests.exercises import make_exercise
from turnwise.envs.text_env import Outcome
from turnwise.envs.tool_env import Style, ToolEnv
from turnwise.settings.section import Positive
from turnwise.tools.tool import Tool


class CodeTests(ToolEnv):
    """Write the function f(xs) of a list of whole numbers. Code is handed in and tested; you have a few tries."""

    split_start_states = True
    max_turns = 3
    answers = False

    class Params(ToolEnv.Params):
        style: Style = "python"
        """Form of submitted code: python (fenced blocks), or as a call of the tool `python` in another style."""
        max_tool_calls: Positive = 3
        """Submissions per episode, at most."""
        steps: Annotated[int, Field(ge=1, le=6)] = 2
        """Operations that the function applies to the list before it returns, 1 to 6."""
        tests: Annotated[int, Field(ge=3, le=50)] = 6
        """Tests per exercise, 3 to 50. The prompt shows two of them."""
        timeout_s: Annotated[float, Field(gt=0, le=600)] = 5.0
        """Time limit of one submission in seconds."""

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
        self.submissions, self.best_share = 0, 0.0
        examples = [f"f({case}) == {self.exercise.run(list(case))!r}" for case in self.exercise.shown]
        return "\n".join([f"Take the list xs: {self.exercise.words}.", *examples])

    def record_submission(self, share: float) -> tuple[bool, float]:
        """Count a submission that passed this share of the tests; return (episode is over, reward).

        The reward is the improvement over the best submission so far, so an episode's rewards sum to its best share.
        """
        self.submissions += 1
        reward, self.best_share = max(0.0, share - self.best_share), max(self.best_share, share)
        return share == 1 or self.submissions >= self.params.max_tool_calls, reward

    def step(self, action: str) -> Outcome:
        raise ValueError("submit code with the tool python: this environment takes no answer")

    def solve(self) -> list[str]:
        return [self.call("python", code=self.exercise.code)]

    def random_answer(self, rng: random.Random) -> str:
        return self.call("python", code=f"def f(xs):\n    return {rng.choice(['xs', 'sum(xs)', 'len(xs)'])}")

    def state_key(self) -> str:
        return f"{self.exercise.words} {self.exercise.tests}"

    def draw(self) -> Picture:
        return Picture(rows=((self.exercise.words,),))
