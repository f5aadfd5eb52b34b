"""Maths with Python: write a program in a sandbox, read what it prints, and answer."""

import random
from collections.abc import Sequence
from typing import Any, Literal

import turnwise as tw
from turnwise.tools.python import PythonTool, SandboxLimits

OPERATORS = {"sum": "+", "difference": "-", "product": "*", "remainder": "%"}


class Maths(tw.ToolEnv):
    """Run Python to find the number, then answer with it."""

    max_turns = 3
    split_start_states = True  # no question that is evaluated is trained

    class Params(tw.ToolEnv.Params):
        style: Literal["python"] = "python"
        """How programs are written: fenced blocks."""

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[tw.Tool]:
        return [PythonTool(SandboxLimits(timeout_s=5.0, memory_mb=256))]

    def reset(self, rng: random.Random) -> str:
        self.program = ""
        while True:
            self.word, self.a, self.b = rng.choice(list(OPERATORS)), rng.randint(2, 12), rng.randint(2, 12)
            if self.run(self.word) not in (str(self.a), str(self.b)):  # a number of the question would be an easy guess
                break
        return self.state_key()

    def state_key(self) -> str:
        return f"The {self.word} of {self.a} and {self.b}?"

    def step(self, action: str) -> tw.Outcome:
        """Judge the answer. Programs do not come here: the tool runs them."""
        return tw.won() if action == self.run(self.word) else tw.lost()

    def run(self, word: str) -> str:
        """Return what the program for this word prints."""
        results = {"sum": self.a + self.b, "difference": self.a - self.b, "product": self.a * self.b}
        return str(results.get(word, self.a % self.b))

    def try_operator(self, word: str) -> str:
        """Return a program with an operator; next time, an answer with what it printed."""
        if self.program:
            return self.reply([self.run(self.program)])
        self.program = word
        return self.call("python", code=f"print({self.a} {OPERATORS[word]} {self.b})")

    def random_answer(self, rng: random.Random) -> str:
        """Try any operator: `tiny` knows no Python, and learns the form of programs in its warm-up."""
        return self.try_operator(rng.choice(list(OPERATORS)))

    def solve(self) -> list[str]:
        return [self.try_operator(self.word)]
