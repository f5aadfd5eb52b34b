"""FrozenLake whose moves on a cluster take a while, and can be held up while a test kills a process or publishes."""

import asyncio
import os
import shutil
from pathlib import Path

from turnwise.envs.frozen_lake.env import FrozenLake
from turnwise.envs.text_env import Outcome

GATE = "TURNWISE_TEST_GATE"
"""Variable with the path of a folder. While it exists, no move ends."""
DRIVER = "TURNWISE_TEST_DRIVER"
"""Variable with the id of the process of the tests, whose warm-ups and local episodes need not take a while."""


def arrive_at_gate() -> bool:
    """Leave a file named after this process in the folder; return whether that exists."""
    try:
        (Path(os.environ[GATE]) / str(os.getpid())).touch()
    except (KeyError, FileNotFoundError):
        return False
    return True


def open_gate() -> None:
    """Let all moves end. The folder is renamed first: processes that are still being killed create files in it."""
    gate = Path(os.environ[GATE])
    shutil.rmtree(gate.rename(gate.with_name("opened")))


class SlowLake(FrozenLake):
    """Walk over the ice to the goal. A hole ends the game."""

    async def step(self, action: str) -> Outcome:  # type: ignore[override]
        if os.environ.get(DRIVER) != str(os.getpid()):
            await asyncio.sleep(0.02)
        while arrive_at_gate():
            await asyncio.sleep(0.02)
        return super().step(action)
