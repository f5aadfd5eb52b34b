"""`lookup` with a tool that fails in a fifth of all calls: an env.kind for tool_learning.py.

Failed calls are retried. If a call fails three times, its episode is retried.
"""

import os
import random
from collections.abc import Sequence
from typing import Any

from turnwise.envs.lookup.env import Lookup
from turnwise.envs.lookup.env import room as working_room
from turnwise.tools.function import from_function
from turnwise.tools.tool import Tool, ToolResult

FAILURE_RATE = float(os.environ.get("FAULTS", "0.2"))
"""Share of the calls that fail; FAULTS=0 for the same tasks and randomness without failures."""
RNG = random.Random(0)


def room(name: str, state: Lookup) -> ToolResult:
    """The room of a person."""
    if RNG.random() < FAILURE_RATE:
        raise ConnectionError("the server is gone")
    return working_room(name, state)


class FaultyLookup(Lookup):
    """In which room is the person? Only the tool knows: rooms differ every time."""

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        return [from_function(room)]
