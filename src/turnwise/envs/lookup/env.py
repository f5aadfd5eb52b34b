"""Lookup: only a tool knows the answer, so the agent must learn to call it and repeat what it returns."""

import random
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from turnwise.core.messages import Picture
from turnwise.envs.answers import format_answer
from turnwise.envs.text_env import Outcome, lost, won
from turnwise.envs.tool_env import Style, ToolEnv
from turnwise.tools.function import from_function
from turnwise.tools.tool import Tool, ToolError, ToolResult

NAMES = ("Ann", "Bob", "Eve", "Ian", "Kim", "Leo", "Max", "Zoe")
NUMBERS = tuple(str(number) for number in range(1, 10))


def room(name: str, state: "Lookup") -> ToolResult:
    """The room of a person."""
    if name not in state.rooms:
        raise ToolError(f"Nobody is called {name[:20]}.")
    newly_found = name == state.person and not state.found  # a repeated call pays nothing
    state.found = state.found or newly_found
    return ToolResult(text=state.rooms[name], reward=state.params.call_reward * newly_found)


class Lookup(ToolEnv):
    """In which room is the person? Only the tool knows: rooms differ every time."""

    max_turns = 3

    class Params(ToolEnv.Params):
        style: Style = "answer"
        """Format of calls; answer suits small models."""
        people: Annotated[int, Field(ge=1, le=len(NAMES))] = 4
        """People with a room, 1 to 8; the question is about one of them."""
        call_reward: float = 0.0
        """Process reward of the first call for the right person."""

    params: Params

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        return [from_function(room)]

    def tool_state(self) -> "Lookup":
        return self

    def reset(self, rng: random.Random) -> str:
        self.rooms = {name: rng.choice(NUMBERS) for name in NAMES[: self.params.people]}
        self.person = rng.choice(list(self.rooms))
        self.found = False
        return f"Room of {self.person}?"

    def step(self, action: str) -> Outcome:
        right = self.rooms[self.person]
        return won("Right.") if action == right else lost(f"No, {right}.")

    def random_answer(self, rng: random.Random) -> str:
        if rng.random() < 0.5:
            return self.call("room", name=rng.choice(list(self.rooms)))
        return format_answer([rng.choice(NUMBERS)])

    def solve(self) -> list[str]:
        return [self.rooms[self.person] if self.found else self.call("room", name=self.person)]

    def draw(self) -> Picture:
        return Picture(rows=((f"Room of {self.person}?",),))
