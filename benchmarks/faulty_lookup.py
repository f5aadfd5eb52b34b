"""`lookup` whose tool breaks in a fifth of all calls, not by the agent's fault: env.kind for tool_learning.py.

A broken call is made again, as tools' calls are; one that breaks three times breaks its episode, which is run again.
"""

import os
import random
from collections.abc import Sequence
from typing import Any

from turnwise.envs.lookup.env import Lookup
from turnwise.envs.lookup.env import room as sound_room
from turnwise.tools.function import from_function
from turnwise.tools.tool import Tool, ToolResult

SHARE = float(os.environ.get("FAULTS", "0.2"))
"""Of the calls; FAULTS=0 for the same tasks and the same luck without any."""
LUCK = random.Random(0)


def room(name: str, state: Lookup) -> ToolResult:
    """The room of a person."""
    if LUCK.random() < SHARE:
        raise ConnectionError("the server is gone")
    return sound_room(name, state)


class FaultyLookup(Lookup):
    """In which room is the person? Only the tool knows: rooms differ every time."""

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        return [from_function(room)]
