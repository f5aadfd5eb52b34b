"""FrozenLake whose moves take a while, so that a test can kill a process in the middle of an episode."""

import asyncio

from turnwise.envs.frozen_lake.env import FrozenLake
from turnwise.envs.text_env import Outcome


class SlowLake(FrozenLake):
    """Walk over the ice to the goal. A hole ends the game."""

    async def step(self, action: str) -> Outcome:  # type: ignore[override]
        await asyncio.sleep(0.1)
        return super().step(action)
