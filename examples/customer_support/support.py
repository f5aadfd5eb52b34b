"""Customer support with tools: look up the order, then do what the policy says for its state."""

import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

import turnwise as tw

NUMBERS = ("10", "11", "12", "13", "14", "15", "16", "17")
"""Order numbers."""
POLICY = {"lost": "refund", "wrong": "replace", "open": "wait"}
"""State of an order -> what the customer gets."""


def find(order: str, state: "Support") -> tw.ToolResult:
    """The state of an order."""
    if order not in state.orders:
        raise ValueError(f"no order {order[:20]}")  # the agent reads this and may try again
    first = order == state.order and not state.found  # a repeated call pays nothing
    state.found = state.found or first
    return tw.ToolResult(text=f"state: {state.orders[order]}", reward=0.3 if first else 0.0)


def refund(order: str, state: "Support") -> tw.ToolResult:
    """Return the money for a lost order."""
    return state.settle("refund", order)


def replace(order: str, state: "Support") -> tw.ToolResult:
    """Send an order again that had the wrong contents."""
    return state.settle("replace", order)


class Support(tw.ToolEnv):
    """Look up the order. Lost: refund. Wrong: replace. Open: answer wait."""

    max_turns = 3

    class Params(tw.ToolEnv.Params):
        style: Literal["hermes", "llama", "mistral", "answer"] = "answer"
        """How calls are written: answer suits small models, hermes pretrained ones."""

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Callable[..., Any]]:
        return [find, refund, replace]

    def tool_state(self) -> "Support":
        return self

    def reset(self, rng: random.Random) -> str:
        self.orders = {number: rng.choice(list(POLICY)) for number in NUMBERS}
        self.order = rng.choice(NUMBERS)
        self.found, self.steps = False, 0
        return f"Where is my order {self.order}?"

    def settle(self, what: str, order: str) -> tw.ToolResult:
        """Refund or replace, which ends the episode."""
        right = order == self.order and self.follows_policy(what)
        return tw.ToolResult(text="done", reward=float(right), over=True, success=right)

    def follows_policy(self, what: str) -> bool:
        """Return whether the order was looked up and this is what the policy says: a lucky guess is not support."""
        return self.found and POLICY[self.orders[self.order]] == what

    def step(self, action: str) -> tw.Outcome:
        """Judge an answer to the customer, which ends the episode."""
        return tw.won() if self.follows_policy(action) else tw.lost()

    def random_answer(self, rng: random.Random) -> str:
        """Find the order, or do anything about it: `tiny` learns the form of calls from these in its warm-up."""
        self.steps += 1
        names = ["find"] if self.steps == 1 and rng.random() < 0.5 else ["refund", "replace", "wait"]
        name = rng.choice(names)
        return self.reply([name]) if name == "wait" else self.call(name, order=self.order)

    def solve(self) -> list[str]:
        if not self.found:
            return [self.call("find", order=self.order)]
        what = POLICY[self.orders[self.order]]
        return [what if what == "wait" else self.call(what, order=self.order)]
